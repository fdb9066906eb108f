"""Synthetic draft/verifier pairs, sweeps over rules, tables and pictures; knows `theory` only."""

import theory as _theory  # noqa: F401  # first of all, so that an interruption is one line

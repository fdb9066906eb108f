"""Measurements of the laboratory itself, and the documents that are made from them."""

import theory as _theory  # noqa: F401  # first of all, so that an interruption is one line

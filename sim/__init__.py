"""Synthetic draft/verifier pairs, sweeps over rules, tables and pictures; knows `theory` only."""

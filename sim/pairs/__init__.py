"""Synthetic draft/verifier rows."""

from sim.pairs.families import FAMILIES, Family, PairBatch, generators, make_family

__all__ = ["FAMILIES", "Family", "PairBatch", "generators", "make_family"]

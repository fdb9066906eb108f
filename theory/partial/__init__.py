"""Partial rows: what a list of the likeliest tokens says about every rule, as two-sided bounds.

The way down: ``bounds`` (the door, rule by rule) → ``kept``, ``targets``, ``candidates``,
``accepted``, ``truncated`` (what is known of each family's law) → ``envelope`` (from a box of
emitted probabilities to bounds of any divergence) → ``rows`` (listed tokens, merged and split).
"""

from theory.partial.bounds import partial_law
from theory.partial.envelope import Between, Envelope
from theory.partial.rows import PartialRows

__all__ = ["Between", "Envelope", "PartialRows", "partial_law"]

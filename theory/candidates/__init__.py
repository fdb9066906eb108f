"""Several candidates for a place: the one draft that they amount to, and the laws in use."""

from theory.candidates.effective import SCHEMES, effective_draft
from theory.candidates.enumerated import effective_draft_of
from theory.candidates.in_use import k_seq, lowest_ratio, one_by_one
from theory.candidates.selection import Selection, select

__all__ = [
    "SCHEMES",
    "Selection",
    "effective_draft",
    "effective_draft_of",
    "k_seq",
    "lowest_ratio",
    "one_by_one",
    "select",
]

"""Several candidates for a place: the one draft that they amount to, and the laws in use."""

from theory.candidates.effective import SCHEMES, effective_draft

__all__ = ["SCHEMES", "effective_draft"]

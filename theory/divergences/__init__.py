"""The f-divergences: their generators, and D_f(h‖q) to the last digits even where h is near q."""

from theory.divergences.kinds import (
    DIVERGENCES,
    SHORT_NAMES,
    Divergence,
    divergence,
    resolve_divergence,
    several_divergences,
)

__all__ = [
    "DIVERGENCES",
    "SHORT_NAMES",
    "Divergence",
    "divergence",
    "resolve_divergence",
    "several_divergences",
]

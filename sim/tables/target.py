"""What a calibration aims at: a mean divergence or a mean acceptance, and when a point meets it."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

from sim.checks import read_number, require_between, shorten, unknown_name
from sim.tables.tradeoff import DIVERGENCE_OF

__all__ = ["ACCEPTANCE", "ROUNDING", "Point", "Target", "short_name"]

ACCEPTANCE = "acceptance"
ROUNDING = 1e-9
"""Of the target: a mean that should equal it may differ in its last digits."""
_COLUMN_OF = {kind: column for column, kind in DIVERGENCE_OF.items()}


def short_name(column: str) -> str:
    """A divergence column in short: kl and reverse_kl, the others as they stand."""
    return {"kl_output_verifier": "kl", "kl_verifier_output": "reverse_kl"}.get(column, column)


class Point(NamedTuple):
    """Means at one setting: its acceptance, and the measure that the target is about."""

    acceptance: float
    realised: float


@dataclass(frozen=True)
class Target:
    """A wanted mean: a divergence of at most `level` nats, or an acceptance of at least `level`.

    measure : `acceptance` or a divergence column of tradeoff.COLUMNS; names of theory and the
              short ones (kl, reverse_kl, tv, chi2, hellinger2, js) are understood.
    level   : ≥ 0, inf included; of an acceptance in [0, 1].

    Raises ValueError for another measure or level.
    """

    measure: str
    level: float

    def __post_init__(self) -> None:
        measure = _COLUMN_OF.get(self.measure, self.measure)
        if measure not in (ACCEPTANCE, *DIVERGENCE_OF):
            raise unknown_name(
                "measure of the target", measure, (ACCEPTANCE, *DIVERGENCE_OF, *_COLUMN_OF)
            )
        object.__setattr__(self, "measure", measure)
        if self.level != math.inf or measure == ACCEPTANCE:
            high = 1.0 if measure == ACCEPTANCE else math.inf
            require_between(f"target {self.measure}", self.level, 0.0, high)

    @classmethod
    def parse(cls, text: str) -> Self:
        """A target from "kl=0.05" or "acceptance=0.9". Raises ValueError for anything else."""
        name, found, level = text.partition("=")
        try:
            if not found:
                raise ValueError(f"expected MEASURE=LEVEL, got {text!r}")
            return cls(name.strip(), read_number(shorten(repr(text)), level))
        except ValueError as error:
            raise ValueError(f"--target: {error}") from None

    @property
    def divergence(self) -> str:
        """The column of the divergence at which rules are compared: the target's, or that of KL."""
        return self.measure if self.measure in DIVERGENCE_OF else "kl_output_verifier"

    @property
    def kind(self) -> str:
        """That divergence as theory names it."""
        return DIVERGENCE_OF[self.divergence]

    @property
    def name(self) -> str:
        """The target in short: "js ≤ 0.02", "acceptance ≥ 0.9"."""
        asked = ACCEPTANCE if self.measure == ACCEPTANCE else short_name(self.measure)
        return f"{asked} {'≥' if self.measure == ACCEPTANCE else '≤'} {self.level:g}"

    def excess(self, point: Point) -> float:
        """By how much a point misses the target, relative to it where it is not 0; ≤ 0: met."""
        scale = self.level if 0 < self.level < math.inf else 1.0
        if self.level == math.inf:
            return -1.0
        difference = (point.realised - self.level) / scale
        return -difference if self.measure == ACCEPTANCE else difference

    def met_by(self, point: Point) -> bool:
        """Whether a point is within the target, but for rounding."""
        return self.excess(point) <= ROUNDING

    def gain(self, point: Point) -> float:
        """What to have most of among points that meet the target.

        The acceptance within a divergence; of an acceptance as little as is asked for, since less
        of it is stricter.
        """
        return -point.acceptance if self.measure == ACCEPTANCE else point.acceptance

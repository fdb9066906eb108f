"""Calibration where a trace lists the likeliest tokens alone and the setting leaves the rest open.

Each mean comes as two numbers, so that a target has two values: the laxest that keeps it *whatever*
the unlisted tokens hold, by the upper bound of the divergence (of an acceptance, the lower one),
and the laxest that may keep it, by the other bound: beyond that one it is surely missed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from real_models.measuring.bounds import KINDS, SIDES, batches
from real_models.measuring.parts import Part
from sim.jobs.engine import Frames
from sim.rounds.metrics import clustered_mean
from sim.tables.calibration import Choice, calibrate
from sim.tables.grid import Setting
from sim.tables.target import ACCEPTANCE, Point, Target
from theory import CorpusFrontier, PartialRows, partial_law
from theory.partial.envelope import Between

__all__ = ["BoundedCorpus", "calibrate_bounds", "sentence"]

_STRICT = Setting("sps")


@dataclass(frozen=True)
class BoundedCorpus:
    """Partial rows of one trace, in batches with the prompts that their positions belong to."""

    source: str
    pair: str
    vocab: int
    batches: Sequence[tuple[PartialRows, Sequence[str]]]

    @classmethod
    def of(cls, source: str, parts: Sequence[Part]) -> "BoundedCorpus":
        """All positions of the parts of one trace at temperature 1."""
        header = parts[0].chunk.header
        found = [
            (rows, [part.chunk.entry.prompt_id] * len(rows.p))
            for part in parts
            for rows in batches(part)
        ]
        return cls(header.pair, source, header.vocabulary, found)

    def points(self, settings: Sequence[Setting], measure: str, side: str) -> list[Point]:
        """Means of settings: acceptance and measure, both by one `side` of their bounds."""
        at = SIDES.index(side)
        found = []
        for setting in settings:
            bounds = self._bounds(setting, measure)
            found.append(Point(*(float(np.mean(values[at])) for values in bounds)))
        return found

    def row(self, setting: Setting, target: Target) -> dict[str, object]:
        """Both bounds of acceptance and divergence at a setting, with their standard errors."""
        accepted, spent = self._bounds(setting, target.divergence)
        labels = [label for _, prompts in self.batches for label in prompts]
        clusters = pd.factorize(np.array(labels))[0]
        found: dict[str, object] = {"positions": len(labels)}
        for name, bounds in ((ACCEPTANCE, accepted), (target.divergence, spent)):
            for side, values in zip(SIDES, bounds):
                sums = np.bincount(clusters, weights=values)
                mean, error = clustered_mean(sums, np.bincount(clusters))
                found |= {f"{name}_{side}": float(mean), f"{name}_{side}_se": float(error)}
        return found

    def frontier(self, kind: str) -> CorpusFrontier:
        """The frontier of the merged rows: no rule accepts more, whatever the rest."""
        frontier = CorpusFrontier(kind)
        for rows, _ in self.batches:
            frontier.add(rows.merged)
        return frontier

    def _bounds(self, setting: Setting, measure: str) -> tuple[Between, Between]:
        """Bounds of the acceptance and of one measure at every position."""
        rule, pieces = setting.build(), []
        for rows, _ in self.batches:
            law = partial_law(rule, rows)
            other = law.acceptance if measure == ACCEPTANCE else law.divergence(KINDS[measure])
            pieces.append((law.acceptance, other))
        accepted, found = (
            Between(*(np.concatenate(side) for side in zip(*bounds))) for bounds in zip(*pieces)
        )
        return accepted, found


def calibrate_bounds(
    corpus: BoundedCorpus,
    rules: Sequence[str],
    target: Target,
    *,
    grid: dict[str, list[float]],
    tolerance: float,
) -> Frames:
    """The tidy table "bounded": one row per rule.

    source, pair, vocab, rule, parameter; value, the laxest that keeps the target for certain, with
    status and note; positions; bounds of acceptance and divergence there; strict_acceptance bounds;
    best_acceptance, the most that any rule may accept at the upper bound of the divergence; beyond,
    the value behind which the target is surely missed (nan where there is none).
    """
    certain, possible = ("lower", "upper") if target.measure == ACCEPTANCE else ("upper", "lower")
    choices = {
        side: calibrate(
            lambda asked, side=side: corpus.points(asked, target.measure, side),
            rules, target, grid=grid, tolerance=tolerance,
        )
        for side in (certain, possible)
    }  # fmt: skip
    best, strict = corpus.frontier(target.kind), corpus.row(_STRICT, target)
    rows = []
    for sure, may in zip(choices[certain], choices[possible]):
        row = {
            "source": corpus.source, "pair": corpus.pair, "vocab": corpus.vocab,
            "rule": sure.setting.rule, "parameter": sure.setting.parameter,
            "value": sure.setting.value, **corpus.row(sure.setting, target),
            "strict_acceptance_lower": strict["acceptance_lower"],
            "strict_acceptance_upper": strict["acceptance_upper"],
        }  # fmt: skip
        spent = row[f"{target.divergence}_upper"]
        row["best_acceptance"] = best.acceptance(float(spent))
        row["beyond"] = may.setting.value if may.status == "met" else np.nan
        row |= {"status": sure.status, "note": sentence(sure, target)}
        rows.append(row)
    return {"bounded": pd.DataFrame(rows)}


def sentence(choice: Choice, target: Target) -> str:
    """What has to be said beside a value that keeps the target for certain."""
    if not np.isfinite(choice.point.realised):
        return "its bounds say nothing: an unlisted token may cost without end"
    return choice.sentence(target)

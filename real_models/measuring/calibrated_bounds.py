"""Calibration where a trace lists the likeliest tokens alone and the setting leaves the rest open.

Each mean comes as two numbers, so that a target has two values: the laxest that keeps it *whatever*
the unlisted tokens hold, by the upper bound of the divergence (of an acceptance, the lower one),
and the laxest that may keep it, by the other bound: beyond that one it is surely missed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from real_models.measuring.bounds import KINDS, SIDES, batches
from real_models.measuring.parts import Part
from sim.jobs.engine import Frames
from sim.rounds.metrics import clustered_mean
from sim.tables.calibration import MET, MISSED, Choice, calibrate
from sim.tables.grid import Setting
from sim.tables.target import ACCEPTANCE, Point, Target
from theory import CorpusFrontier, PartialRows, partial_law
from theory.partial.envelope import Between

__all__ = ["BoundedCorpus", "calibrate_bounds"]

_STRICT = Setting("sps")


@dataclass(frozen=True)
class BoundedCorpus:
    """Partial rows of one trace, in batches with the prompts that their positions belong to."""

    source: str
    pair: str
    vocab: int
    batches: Sequence[tuple[PartialRows, Sequence[str]]]

    @classmethod
    def of(cls, parts: Sequence[Part]) -> "BoundedCorpus":
        """All positions of the parts of one trace at temperature 1."""
        header, label = parts[0].chunk.header, parts[0].sampling.label
        found = [
            (rows, [part.chunk.entry.prompt_id] * len(rows.p))
            for part in parts
            for rows in batches(part)
        ]
        return cls(header.pair, label, header.vocabulary, found)

    def row(self, setting: Setting, target: Target) -> dict[str, Any]:
        """Both bounds of acceptance and divergence at a setting, with their standard errors."""
        accepted, spent = self._bounds(setting, target.divergence)
        labels = [label for _, prompts in self.batches for label in prompts]
        clusters = pd.factorize(np.array(labels))[0]
        found: dict[str, Any] = {"positions": len(labels)}
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

    def _bounds(self, setting: Setting, divergence: str) -> tuple[Between, Between]:
        """Bounds of the acceptance and of one divergence at every position."""
        rule, pieces = setting.build(), []
        for rows, _ in self.batches:
            law = partial_law(rule, rows)
            pieces.append((law.acceptance, law.divergence(KINDS[divergence])))
        accepted, spent = (
            Between(*(np.concatenate(side) for side in zip(*bounds))) for bounds in zip(*pieces)
        )
        return accepted, spent


def calibrate_bounds(
    corpus: BoundedCorpus,
    rules: Sequence[str],
    target: Target,
    *,
    grid: Mapping[str, Sequence[float]],
    tolerance: float,
) -> Frames:
    """The tidy table "bounded": one row per rule.

    source, pair, vocab, rule, parameter; value, the laxest that keeps the target for certain (of
    those that were tried, by `calibrate`'s search); positions; bounds of acceptance and divergence
    there; bounds of strict_acceptance; best_acceptance, which no rule exceeds at the upper bound of
    that divergence; beyond, the value behind which the target is surely missed (nan where every
    value may keep it, none can, or the bound turns round); status; note.
    """
    known: dict[Setting, dict[str, Any]] = {}

    def at(setting: Setting) -> dict[str, Any]:
        if setting not in known:
            known[setting] = corpus.row(setting, target)
        return known[setting]

    def search(accepted: str, measured: str) -> list[Choice]:
        """Calibrate by one side of the acceptance, and one of the measure."""

        def points(asked: Sequence[Setting]) -> list[Point]:
            names = (f"{ACCEPTANCE}_{accepted}", f"{target.measure}_{measured}")
            return [Point(*(at(setting)[name] for name in names)) for setting in asked]

        return calibrate(points, rules, target, grid=grid, tolerance=tolerance)

    needed = target.measure == ACCEPTANCE
    certain = search("lower", "lower" if needed else "upper")
    possible = search("upper", "upper" if needed else "lower")
    best, strict = corpus.frontier(target.kind), at(_STRICT)
    about = {name: getattr(corpus, name) for name in ("source", "pair", "vocab")}
    about |= {f"strict_{name}": strict[name] for name in ("acceptance_lower", "acceptance_upper")}
    rows = []
    for sure, may in zip(certain, possible):
        found = at(sure.setting)
        rows.append(about | vars(sure.setting) | found | {
            "best_acceptance": best.acceptance(found[f"{target.divergence}_upper"]),
            "beyond": may.setting.value if may.status == MET and may.monotone else np.nan,
            "status": sure.status,
            "note": _sentence(sure, may, target),
        })  # fmt: skip
    return {"bounded": pd.DataFrame(rows)}


def _sentence(sure: Choice, may: Choice, target: Target) -> str:
    """What has to be said beside a value; "" where the target is kept for certain."""
    if sure.status != MISSED:
        return sure.sentence(target)
    most, least = ("at most", "less") if target.measure == ACCEPTANCE else ("at least", "more")
    if may.status == MISSED:
        return f"misses it whatever the rest: {most} {may.point.realised:.4g}"
    if not math.isfinite(sure.point.realised):
        return "its bounds say nothing: an unlisted token may cost without end"
    return f"none keeps it for certain: may be {least} than it, {sure.point.realised:.4g}"

"""Prepared rows of one source, on which setting after setting is measured exactly."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from sim.tables.calibration import Choice
from sim.tables.grid import Setting
from sim.tables.target import Point, Target
from sim.tables.tradeoff import DIVERGENCE_OF, MEASURES, Tradeoff
from theory.arrays import to_numpy
from theory.divergences.kinds import several_divergences
from theory.frontier.levels import CorpusFrontier
from theory.pair import Pair

__all__ = ["CALIBRATED", "Corpus"]

_STRICT = Setting("sps")
CALIBRATED: tuple[str, ...] = ("strict_acceptance", "best_acceptance", "share", "status", "note")
"""Columns that `Corpus.table` adds to those of sim.tables.tradeoff.

strict_acceptance: what `sps` accepts. best_acceptance: the most that any rule accepts at the same
mean of the target's divergence (of KL where the target is an acceptance). share: of the possible
gain over strict sampling, (acceptance − strict)/(best_acceptance − strict); nan where nothing can
be gained. status, note: of the calibration.
"""


@dataclass(frozen=True)
class Corpus:
    """Rows of one source and pair, in batches that are gone through once per question.

    batches : pairs prepared with `sort=True`, each with the labels of its rows' clusters; a list
              where memory allows, or anything that can be iterated over again and again.
    """

    source: str
    pair: str
    vocab: int
    batches: Iterable[tuple[Pair, Sequence[Hashable]]]
    _frontiers: dict[str, CorpusFrontier] = field(default_factory=dict, repr=False, compare=False)

    def points(self, settings: Sequence[Setting], measure: str) -> list[Point]:
        """The means of settings: acceptance, and one measure of the tidy table.

        It costs a third of the whole table, and is what a calibration asks for again and again.
        """
        if not settings:
            return []
        rules = [setting.build() for setting in settings]
        sums, rows = np.zeros((len(settings), 2)), 0
        for pair, labels in self.batches:
            rows += len(labels)
            sums += list(_sums(pair, rules, measure))
        return [Point(*means) for means in (sums / rows).tolist()]

    def frontier(self, kind: str) -> CorpusFrontier:
        """The corpus frontier of a divergence; it is the same for every rule."""
        if kind not in self._frontiers:
            frontier = CorpusFrontier(kind)
            for pair, _ in self.batches:
                frontier.add(pair)
            self._frontiers[kind] = frontier
        return self._frontiers[kind]

    def table(self, choices: Sequence[Choice], target: Target) -> pd.DataFrame:
        """One row per choice: the columns of sim.tables.tradeoff, and CALIBRATED."""
        chosen = [choice.setting for choice in choices]
        tradeoff = Tradeoff([*chosen, _STRICT], self.source, self.pair, self.vocab)
        best, plain = self.frontier(target.kind), self.frontier("kl")
        measured, clusters = [], []
        for pair, labels in self.batches:
            measured.append(tradeoff.measure(pair))
            clusters += labels
        joined = {name: np.concatenate([m[name] for m in measured], axis=1) for name in MEASURES}
        tradeoff.take(joined, plain, clusters)
        table = tradeoff.rows()
        strict, table = table["acceptance"].iloc[-1], table.iloc[:-1].copy()
        table["strict_acceptance"] = strict
        table["best_acceptance"] = [best.acceptance(level) for level in table[target.divergence]]
        possible = table["best_acceptance"] - strict
        table["share"] = (table["acceptance"] - strict) / possible.where(possible > 1e-12)
        table["status"] = [choice.status for choice in choices]
        table["note"] = [choice.sentence(target) for choice in choices]
        return table


def _sums(pair: Pair, rules: Sequence[Any], measure: str) -> Iterator[tuple[float, float]]:
    """Acceptance and measure of each rule, summed over the rows of a pair."""
    output, realised = pair.q, 0.0
    for rule in rules:
        law = rule.law(pair)
        accepted = float(to_numpy(law.acceptance).sum())
        # Neighbouring settings often emit the same law, and strict ones the verifier's.
        if measure in DIVERGENCE_OF and not bool(pair.xp.all(law.output == output)):
            kinds, output = [DIVERGENCE_OF[measure]], law.output
            values = several_divergences(kinds, output, pair.q, validate=False)[0]
            realised = float(to_numpy(values).sum())
        yield accepted, realised if measure in DIVERGENCE_OF else accepted

"""From the parts of a measurement to its tables: one for all, one by domain, one of quantiles."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from real_models.measuring.spans import OUTSIDE
from real_models.measuring.stored import frontier_from_frame
from sim.jobs.engine import Frames
from sim.tables.grid import Setting
from sim.tables.tradeoff import MEASURES, Tradeoff

__all__ = ["QUANTILES", "Results"]

QUANTILES: dict[str, float] = {
    "min": 0.0,
    "q05": 0.05,
    "q25": 0.25,
    "median": 0.5,
    "q75": 0.75,
    "q95": 0.95,
    "max": 1.0,
}
"""Columns of the table of quantiles over positions."""


@dataclass(frozen=True)
class Results:
    """All finished parts of one trace, joined: the frames of `measure_part` in one order.

    source : what the trace is of; vocab : V. Every table has one pair per sampling setting.
    """

    frames: Frames
    settings: tuple[Setting, ...]
    source: str
    vocab: int

    def table(self) -> pd.DataFrame:
        """The tidy table of sim.tables.tradeoff; standard errors are clustered by prompt."""
        return _joined(tradeoff.rows() for _, tradeoff in self._by_sampling())

    def frontier(self) -> pd.DataFrame:
        """The corpus frontier over all positions of each sampling setting."""
        return _joined(tradeoff.frontier() for _, tradeoff in self._by_sampling())

    def groups(self) -> pd.DataFrame:
        """The tidy table within each domain of prompts, with a column `group` after `pair`.

        Each group has a frontier of its own. With a single prompt it has no standard error (nan).
        """
        tables = []
        for label, chosen in self._samplings():
            domains = self.frames["positions"]["domain"]
            for domain in dict.fromkeys(domains):
                rows = self._tradeoff(label, chosen & (domains == domain).to_numpy()).rows()
                tables.append(_grouped(rows, domain))
        return _joined(tables)

    def spans(self, inside: Mapping[str, np.ndarray]) -> pd.DataFrame:
        """The tidy table inside and outside a span, and of each rule inside it only.

        `inside` tells of each prompt which positions are. The column `group` is "inside",
        "outside" (absent where no position is) and "inside only": over all positions, with each
        setting inside and the rule OUTSIDE, which must be measured, outside.
        """
        places = zip(self.frames["positions"]["prompt"], self.frames["positions"]["position"])
        within = np.array([inside[prompt][position] for prompt, position in places], dtype=bool)
        tables = []
        for label, chosen in self._samplings():
            groups = {"inside": chosen & within, "outside": chosen & ~within}
            found = {
                name: self._tradeoff(label, mask) for name, mask in groups.items() if mask.any()
            }
            found["inside only"] = self._tradeoff(label, chosen, within[chosen])
            tables += [_grouped(tradeoff.rows(), name) for name, tradeoff in found.items()]
        return _joined(tables)

    def quantiles(self) -> pd.DataFrame:
        """Quantiles over positions, one row per setting and measure: the columns of QUANTILES.

        Each is the value at a position, not between two: the smallest one that at least that share
        of the positions do not exceed. Infinite values stay infinite.
        """
        tables = []
        for label, chosen in self._samplings():
            ordered = np.sort(self._measured(chosen), axis=-1)  # [measures, settings, T]
            total = ordered.shape[-1]
            for name, values in zip(MEASURES, ordered):
                rows = pd.DataFrame([vars(setting) for setting in self.settings])
                keys = {"source": self.source, "pair": label, "vocab": self.vocab}
                for place, (key, value) in enumerate({**keys, "positions": total}.items()):
                    rows.insert(place, key, value)
                rows["measure"] = name
                for column, level in QUANTILES.items():
                    rows[column] = values[:, max(int(np.ceil(level * total)) - 1, 0)]
                tables.append(rows)
        return _joined(tables)

    def _by_sampling(self) -> Iterator[tuple[str, Tradeoff]]:
        """The accumulated table of each sampling setting."""
        for label, chosen in self._samplings():
            yield label, self._tradeoff(label, chosen)

    def _samplings(self) -> Iterator[tuple[str, np.ndarray]]:
        """The sampling settings in their order, each with the mask of its positions."""
        samplings = self.frames["positions"]["sampling"]
        for label in dict.fromkeys(samplings):
            yield label, (samplings == label).to_numpy()

    def _tradeoff(
        self, label: str, chosen: np.ndarray, within: np.ndarray | None = None
    ) -> Tradeoff:
        """The table of the chosen positions, without regard to the parts they came in.

        Where `within` is given, [T], the settings hold there only, and OUTSIDE elsewhere.
        """
        measured = self._measured(chosen)
        if within is not None:
            strict = self.settings.index(Setting(OUTSIDE))
            measured = np.where(within, measured, measured[:, strict : strict + 1])
        tradeoff = Tradeoff(self.settings, self.source, label, self.vocab)
        tradeoff.take(
            dict(zip(MEASURES, measured)),
            frontier_from_frame(self.frames["frontier"][chosen]),
            self.frames["positions"]["prompt"][chosen].tolist(),
        )
        return tradeoff

    def _measured(self, chosen: np.ndarray) -> np.ndarray:
        """The results at the chosen positions, [measures, settings, T]."""
        values = self.frames["measured"][list(MEASURES)].to_numpy()
        return values.reshape(len(chosen), len(self.settings), -1)[chosen].transpose(2, 1, 0)


def _grouped(rows: pd.DataFrame, group: str) -> pd.DataFrame:
    """The rows with the name of their group in a column after `pair`."""
    rows.insert(rows.columns.get_loc("pair") + 1, "group", group)
    return rows


def _joined(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """The tables below each other."""
    return pd.concat(list(tables), ignore_index=True)

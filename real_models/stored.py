"""The trade-off table and its frontier from stored per-position results instead of fresh pairs.

A measurement of a trace takes minutes and may be interrupted, so what was computed at each position
is kept on disk. The two classes here add the way in and out of `sim.tradeoff.Tradeoff` and
`theory.CorpusFrontier` that this needs; sums, standard errors and bounds remain theirs.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd

from sim.tradeoff import MEANS, Tradeoff, measure_batch
from theory import CorpusFrontier

__all__ = ["MEASURES", "StoredFrontier", "StoredTradeoff"]

MEASURES: tuple[str, ...] = tuple(name for name in MEANS if not name.startswith("frontier_"))
"""What is known of each setting at each position by itself: the table's means but the bound."""

_ENDS = ("strict", "reachable")


class StoredFrontier(CorpusFrontier):
    """A corpus frontier that goes into a data frame, one row per position, and comes back."""

    def to_frame(self) -> pd.DataFrame:
        """The frontier of each position at every multiplier, in the order of `add`.

        Columns: accepted_0 … and spent_0 …, the acceptance and divergence at each multiplier; the
        acceptance of strict sampling and the largest one of finite divergence.
        """
        accepted, spent, ends = self._tables()
        names = [f"{name}_{k}" for name in ("accepted", "spent") for k in range(spent.shape[1])]
        return pd.DataFrame(
            np.concatenate([accepted, spent, ends], axis=1), columns=[*names, *_ENDS]
        )

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> Self:
        """The frontier over the KL divergence of the positions in a frame of `to_frame`."""
        # One memory layout, whatever the frame's: sums then round alike.
        corpus, values = cls("kl"), np.ascontiguousarray(frame.to_numpy(dtype=np.float64))
        width = (values.shape[1] - len(_ENDS)) // 2
        corpus._accepted = [values[:, :width]]
        corpus._spent = [values[:, width : 2 * width]]
        corpus._ends = [values[:, 2 * width :]]
        return corpus


class StoredTradeoff(Tradeoff):
    """A trade-off table whose measuring and adding up are two steps, with a disk between them."""

    def measure(self, pair: Any) -> dict[str, np.ndarray]:
        """The results of every setting on a prepared pair of R rows, [settings, R] by measure."""
        return measure_batch(pair, self._rules)

    def take(
        self,
        measured: dict[str, np.ndarray],
        corpus: CorpusFrontier,
        clusters: Sequence[Hashable],
    ) -> None:
        """Add positions measured before: MEASURES [settings, T], their frontier, their labels.

        Raises ValueError where the three are not of the same positions.
        """
        shape = (len(self.settings), len(clusters))
        wrong = [name for name in MEASURES if measured[name].shape != shape]
        if wrong or corpus.positions != len(clusters):
            raise ValueError(f"the stored results are not those of {shape} settings and positions")
        where = self._indices(list(clusters))
        for sums, name in zip(self._sums, MEASURES):
            np.add.at(sums, (slice(None), where), measured[name])
        self._cluster_of.append(where)
        self._realised.append(measured["kl_output_verifier"])
        self._corpus.merge(corpus)

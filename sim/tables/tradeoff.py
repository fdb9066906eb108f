"""Rules × values × pairs → the tidy table: acceptance against divergence, with standard errors.

Nothing here knows where the rows come from: `Tradeoff` takes batches of prepared pairs, numpy or
torch, one at a time, and keeps sums only, so that a trace larger than memory streams through it.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from sim.rounds.metrics import clustered_mean, expected_accepted
from sim.tables.grid import Setting
from theory.arrays import plain_number, quotient, to_numpy
from theory.divergences.kinds import SHORT_NAMES, several_divergences
from theory.frontier.levels import CorpusFrontier

__all__ = [
    "COLUMNS",
    "DIVERGENCE_OF",
    "DRAFT_LENGTHS",
    "KEYS",
    "MEANS",
    "MEASURES",
    "Tradeoff",
    "cluster_labels",
    "measure_batch",
]

KEYS: tuple[str, ...] = ("source", "pair", "vocab", "positions", "rule", "parameter", "value")
DIVERGENCE_OF: dict[str, str] = {
    "kl_output_verifier": "kl",
    "kl_verifier_output": "reverse_kl",
    **SHORT_NAMES,
}
"""Columns that hold a divergence of the output h from the verifier q, and the name theory has."""
MEASURES: tuple[str, ...] = (
    "acceptance",
    *DIVERGENCE_OF,
    "max_ratio",
    "entropy_output",
    "entropy_verifier",
)
"""What is known of each setting at each position by itself, without the other positions."""
MEANS: tuple[str, ...] = (*MEASURES, "frontier_acceptance", "frontier_gap")
DRAFT_LENGTHS: tuple[int, ...] = (5, 10, 20)
COLUMNS: tuple[str, ...] = (
    *KEYS,
    *(column for mean in MEANS for column in (mean, f"{mean}_se")),
    *(f"expected_accepted_{m}" for m in DRAFT_LENGTHS),
)
"""Columns of the table, one row per source × pair × rule × value.

source, pair: where the rows come from. vocab: tokens. positions: rows behind the means. rule,
parameter, value: the setting ("", 0.0 for a rule without a parameter). Then means over positions:
acceptance; divergences of the emitted law h from the verifier q in nats, KL(h‖q), KL(q‖h), TV, χ²,
½Σ(√h−√q)², JS; max_ratio = max over tokens of h/q; entropies of h and q in nats;
frontier_acceptance = the most that any rule accepts on these positions at the same mean KL(h‖q);
frontier_gap = frontier_acceptance − acceptance. Infinite divergences stay inf. `*_se`: the standard
error of the mean, clustered by prompt where clusters are given; inf where the mean is, nan with
fewer than two clusters, and nothing else is ever nan. expected_accepted_m: accepted length of m
drafts (bonus excluded) if each were accepted with the mean acceptance independently of the others.
"""


def cluster_labels(clusters: Any, rows: int) -> list[Hashable]:
    """One label for each of `rows` rows: from a sequence, an array or a tensor; None: all differ.

    Raises ValueError for another number of labels, for what is masked or a mapping, and, naming
    the row, for a label that equals no other or cannot be compared, as nan and lists.
    """
    if clusters is None:
        # A row without a label is a cluster of its own: no object equals another.
        return [object() for _ in range(rows)]
    if isinstance(clusters, Mapping | str | np.ma.MaskedArray):
        raise ValueError(f"clusters must be a sequence of labels, got a {type(clusters).__name__}")
    # The labels of a tensor are objects of their own each, until they are plain numbers.
    plain = clusters.tolist() if hasattr(clusters, "tolist") else map(plain_number, clusters)
    labels = list(plain)
    if len(labels) != rows:
        raise ValueError(f"clusters must label each of the {rows} rows, got {len(labels)}")
    for row, label in enumerate(labels):
        if not isinstance(label, Hashable) or label != label:
            raise ValueError(f"clusters row {row} is {label!r}, which is no label")
    return labels


def measure_batch(pair: Any, rules: Sequence[Any]) -> dict[str, np.ndarray]:
    """Exact per-position results of rules on the R rows of a prepared pair: name → [S, R].

    S = len(rules); the names are MEASURES. Any array library goes in; numpy float64 comes out.
    """
    measured: dict[str, list[np.ndarray]] = {name: [] for name in MEASURES}
    output, emitted = None, {}
    for rule in rules:
        law = rule.law(pair)
        # Neighbouring settings often emit the same law: a cascade emits p or q itself.
        if output is None or not bool(pair.xp.all(law.output == output)):
            output, emitted = law.output, _measure_output(pair, law.output)
        for name, values in {**emitted, "acceptance": to_numpy(law.acceptance)}.items():
            measured[name].append(values)
    return {name: np.stack(values) for name, values in measured.items()}


def _measure_output(pair: Any, output: Any) -> dict[str, np.ndarray]:
    """What does not depend on how the law came about: all measures but the acceptance."""
    xp = pair.xp
    divergences = several_divergences(DIVERGENCE_OF.values(), output, pair.q, validate=False)
    measured = dict(zip(DIVERGENCE_OF, divergences)) | {
        "max_ratio": _max_ratio(xp, output, pair.q),
        "entropy_output": _entropy(xp, output),
        "entropy_verifier": pair.verifier_entropy,
    }
    return {name: to_numpy(values) for name, values in measured.items()}


class Tradeoff:
    """Accumulates the table of one source and pair over batches of positions.

    Memory: one number per setting, mean and cluster, and KL(h‖q) per setting and position (its
    bound on the corpus frontier needs all positions). Without clusters each row is its own.
    """

    def __init__(self, settings: Sequence[Setting], source: str, pair: str, vocab: int) -> None:
        self.settings = tuple(settings)
        self._rules = [setting.build() for setting in self.settings]
        self._keys = {"source": source, "pair": pair, "vocab": vocab}
        self._corpus = CorpusFrontier(divergence="kl")
        self._clusters: dict[Hashable, int] = {}
        self._cluster_of: list[np.ndarray] = []
        self._realised: list[np.ndarray] = []
        self._sums = np.zeros((len(MEASURES), len(self.settings), 0))

    def add(self, pair: Any, clusters: Sequence[Hashable] | None = None) -> None:
        """Measure every setting on the R rows of a prepared pair; `clusters` [R] labels its rows.

        The pair must be sorted (`Pair.prepare(..., sort=True)`). Raises ValueError where the number
        of labels is not that of the rows.
        """
        rows = int(pair.p.shape[0])
        labels = cluster_labels(clusters, rows)
        corpus = CorpusFrontier(self._corpus.kind)
        corpus.add(pair)
        self.take(self.measure(pair), corpus, labels)

    def measure(self, pair: Any) -> dict[str, np.ndarray]:
        """The results of every setting on the R rows of a prepared pair, [settings, R] by measure.

        Together with a CorpusFrontier of the rows this is all that `take` needs of them.
        """
        return measure_batch(pair, self._rules)

    def take(
        self,
        measured: Mapping[str, np.ndarray],
        corpus: CorpusFrontier,
        clusters: Sequence[Hashable],
    ) -> None:
        """Add T positions measured before: MEASURES [settings, T], their frontier, their labels.

        Raises ValueError where the three are not of the same positions.
        """
        shape = (len(self.settings), len(clusters))
        wrong = [name for name in MEASURES if measured[name].shape != shape]
        if wrong or corpus.positions != len(clusters):
            raise ValueError(f"the results are not those of {shape[0]} settings at {shape[1]} rows")
        where = self._indices(clusters)
        for sums, name in zip(self._sums, MEASURES):
            np.add.at(sums, (slice(None), where), measured[name])
        self._cluster_of.append(where)
        self._realised.append(measured["kl_output_verifier"])
        self._corpus.merge(corpus)

    def merge(self, other: "Tradeoff") -> None:
        """Add the positions of another accumulator, of a shard of the same trace for example.

        Equal labels are one cluster. Raises ValueError unless source, pair, vocabulary and settings
        are the same.
        """
        if (other._keys, other.settings) != (self._keys, self.settings):
            raise ValueError(f"cannot merge {other._keys} into {self._keys}, or settings differ")
        where = self._indices(list(other._clusters))
        self._sums[..., where] += other._sums
        self._cluster_of += [where[clusters] for clusters in other._cluster_of]
        self._realised += other._realised
        self._corpus.merge(other._corpus)

    def rows(self) -> pd.DataFrame:
        """The table so far, one row per setting. Raises ValueError where nothing was added."""
        sizes = self._sizes()
        bound = self._bound_sums(sizes.size)
        acceptance = self._sums[MEASURES.index("acceptance")]
        sums = [*self._sums, bound, bound - acceptance]
        table = pd.DataFrame([vars(setting) for setting in self.settings])
        for name, values in {**self._keys, "positions": int(sizes.sum())}.items():
            table[name] = values
        for name, values in zip(MEANS, sums):
            table[name], table[f"{name}_se"] = clustered_mean(values, sizes)
        for m in DRAFT_LENGTHS:
            table[f"expected_accepted_{m}"] = expected_accepted(table["acceptance"], m)
        return table[list(COLUMNS)]

    def frontier(self) -> pd.DataFrame:
        """The corpus frontier: level (mean KL in nats) and the best mean acceptance there."""
        self._sizes()
        level, acceptance = self._corpus.curve()
        curve = {"level": to_numpy(level), "acceptance": to_numpy(acceptance)}
        return pd.DataFrame({**self._keys, **curve})

    def _indices(self, labels: Sequence[Hashable]) -> np.ndarray:
        """Columns of the sums for clusters, new ones included."""
        known = self._clusters
        where = np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)
        grown = len(known) - self._sums.shape[-1]
        self._sums = np.pad(self._sums, [(0, 0), (0, 0), (0, grown)])
        return where

    def _sizes(self) -> np.ndarray:
        """Positions per cluster, [C]."""
        if not self._clusters:
            raise ValueError("no positions were added")
        return np.bincount(np.concatenate(self._cluster_of))

    def _bound_sums(self, clusters: int) -> np.ndarray:
        """Sums per cluster of the frontier's acceptance at each setting's realised KL, [S, C]."""
        where = np.concatenate(self._cluster_of)
        realised = np.concatenate(self._realised, axis=-1)
        bounds = (to_numpy(self._corpus.bound(row)) for row in realised)
        return np.stack([np.bincount(where, bound, clusters) for bound in bounds])


def _max_ratio(xp: Any, output: Any, verifier: Any) -> Any:
    """The largest output/verifier of each row; inf where a token of verifier mass 0 is emitted."""
    ratio = quotient(xp, output, verifier, 0.0)
    return xp.max(xp.where((verifier == 0) & (output > 0), xp.inf, ratio), axis=-1)


def _entropy(xp: Any, rows: Any) -> Any:
    """−Σ h log h in nats, with 0·log 0 = 0."""
    surprise = rows * xp.log(xp.where(rows > 0, rows, 1.0))
    return xp.maximum(-xp.sum(surprise, axis=-1), 0.0)  # rounding at a one-hot row

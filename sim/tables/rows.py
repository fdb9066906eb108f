"""Calibration on rows of one's own: arrays of draft and verifier probabilities, from anywhere."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from sim.tables.calibration import TOLERANCE, calibrate
from sim.tables.corpus import Corpus
from sim.tables.target import Target
from sim.tables.tradeoff import cluster_labels
from theory.arrays import check_distribution, check_same_place, coerce
from theory.pair import Pair

__all__ = ["calibrate_rows"]

_BATCH_ENTRIES = 2**16  # rows × tokens measured at once: larger temporaries leave the cache


def calibrate_rows(
    p: Any,
    q: Any,
    rules: Sequence[str],
    target: Target | str,
    *,
    clusters: Sequence[Hashable] | None = None,
    p_raw: Any = None,
    q_raw: Any = None,
    grid: Mapping[str, Sequence[float]] | None = None,
    tolerance: float = TOLERANCE,
) -> pd.DataFrame:
    """For each rule the laxest value of its parameter within a mean divergence, on rows p, q.

    Exact laws, no sampling; the search is that of `sim.tables.calibration.calibrate`.

    p, q         : draft and verifier distributions [R, V], float32 or float64, numpy or torch, on
                   one device.
    rules        : names in theory.RULES.
    target       : as in "kl=0.05": a mean divergence (kl, reverse_kl, tv, chi2, hellinger2, js) of
                   at most so many nats, or "acceptance=0.9", at least so much.
    clusters     : labels [R], for standard errors clustered by prompt; each row by itself if None.
    p_raw, q_raw : [R, V], before temperature and filters, for the cascades; p and q if None.
    grid         : the values that are tried first, by rule.
    tolerance    : how much of the target may be left, (target − realised)/target.

    Returns one row per rule, in the columns of sim.tables.tradeoff.COLUMNS (`parameter`, `value`,
    `acceptance`, divergences in nats, their standard errors) and of sim.tables.corpus.CALIBRATED
    (`best_acceptance` of any rule there, `status`: "met", "slack" where every value stays within,
    "missed" where none does). Raises ValueError where p or q are no rows of distributions, naming
    the row and its value, for labels of another number, and for what `calibrate` refuses.
    """
    target = _target(target) if isinstance(target, str) else target
    given = {"p": p, "q": q, "p_raw": p_raw, "q_raw": q_raw}
    names = tuple(name for name, rows in given.items() if rows is not None)
    arrays = _checked(names, coerce(*(given[name] for name in names)))
    count, vocab = arrays["p"].shape
    labels = cluster_labels(clusters, int(count))
    corpus = Corpus("own rows", "", int(vocab), list(_batches(arrays, labels)))
    choices = calibrate(
        lambda asked: corpus.points(asked, target.measure),
        rules,
        target,
        grid=grid,
        tolerance=tolerance,
    )
    return corpus.table(choices, target)


def _target(text: str) -> Target:
    """The target of a command line, whose errors here name the argument and no option."""
    try:
        return Target.parse(text)
    except ValueError as error:
        raise ValueError(str(error).replace("--target:", "target:")) from None


def _checked(names: Sequence[str], arrays: Sequence[Any]) -> dict[str, Any]:
    """The arrays by name, whole: a row that is wrong is named by its own number."""
    for name, rows in zip(names, arrays):
        if rows.ndim != 2 or rows.shape[0] == 0:
            shape = tuple(rows.shape)
            raise ValueError(f"{name} must be rows [R, V] with R ≥ 1, got the shape {shape}")
    check_same_place(tuple(names), tuple(arrays))
    for name, rows in zip(names, arrays):
        check_distribution(name, rows)
    return dict(zip(names, arrays))


def _batches(
    arrays: Mapping[str, Any], labels: Sequence[Hashable]
) -> Iterator[tuple[Pair, Sequence[Hashable]]]:
    """Prepared pairs of bounded size, with the labels of their rows."""
    count, vocab = arrays["p"].shape
    size = max(1, _BATCH_ENTRIES // int(vocab))
    for start in range(0, count, size):
        part = slice(start, start + size)
        rows = {name: array[part] for name, array in arrays.items()}
        yield Pair.prepare(rows.pop("p"), rows.pop("q"), **rows, validate=False), labels[part]

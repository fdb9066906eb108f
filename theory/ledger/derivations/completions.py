"""Whole rows that agree with a list of likeliest tokens: the rest is put somewhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from theory.ledger.derivations.common import Rows
from theory.partial import PartialRows

MORE = 1e-6  # the least rest of an example: 1 − Σ has few digits of a smaller one


def listed_pairs(
    rng: np.random.Generator, count: int, size: int, top: int
) -> tuple[PartialRows, list[tuple[Rows, Rows]]]:
    """Return lists of the ``top`` likeliest tokens, and whole rows that all have these lists."""
    logits = rng.gumbel(size=(count, size)) * rng.choice([1.0, 2.0, 4.0], size=(count, 1))
    noise = rng.normal(size=(count, size)) * rng.choice([0.1, 0.5, 1.5], size=(count, 1))
    p, q = (_softmax(values) for values in (logits + noise, logits))
    rest = np.minimum(*(1.0 - _top(rows, top)[1].sum(-1) for rows in (p, q)))
    p, q = p[rest > MORE], q[rest > MORE]
    wholes = [(p, q), *_others(rng, p, q, top)]
    return PartialRows.of(_top(p, top), _top(q, top), size), wholes


def _softmax(logits: Any) -> Any:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _top(rows: Rows, top: int) -> tuple[Any, Any]:
    tokens = np.argsort(-rows, axis=-1)[:, :top]
    return tokens, np.take_along_axis(rows, tokens, axis=-1)


def _others(rng: np.random.Generator, p: Rows, q: Rows, top: int) -> Iterator[tuple[Rows, Rows]]:
    """Yield rests that avoid each other, that lie on the same tokens, and some between."""
    size = p.shape[-1]
    up, down = np.arange(size), np.arange(size)[::-1]
    for orders in (
        (up, down),
        (up, up),
        (rng.permutation(size), up),
        (down, rng.permutation(size)),
    ):
        yield tuple(  # type: ignore[misc]
            np.stack([_filled(row, top, order) for row in rows])
            for rows, order in zip((p, q), orders)
        )
    yield _even(p, top), _even(q, top)


def _filled(row: Any, top: int, order: Any) -> Any:
    """Return the row with its rest on the first unlisted tokens of an order, as full as may be."""
    listed = np.argsort(-row)[:top]
    out = np.zeros_like(row)
    out[listed] = row[listed]
    cap, mass = row[listed[-1]], 1.0 - out.sum()
    free = order[~np.isin(order, listed)]
    # A token that ties with the last of the list counts as below it.
    out[free] = np.clip(mass - cap * (1.0 - 1e-7) * np.arange(len(free)), 0.0, cap * (1.0 - 1e-7))
    left = 1.0 - out.sum()
    if left > 0:
        out[free] += left * (cap - out[free]) / np.sum(cap - out[free])
    return out


def _even(rows: Rows, top: int) -> Rows:
    tokens, values = _top(rows, top)
    out = np.repeat(
        (1.0 - values.sum(-1, keepdims=True)) / (rows.shape[-1] - top), rows.shape[-1], 1
    )
    np.put_along_axis(out, tokens, values, axis=-1)
    return out

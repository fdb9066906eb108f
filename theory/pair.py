"""A batch of draft/verifier rows, prepared once for every rule and every parameter value on it.

Preparation validates the rows, flattens the batch, drops the tokens that neither distribution can
emit (after top-k a row has 20 tokens, not 150,000), and sorts what is left by the ratio p/q. All
laws are then computed in these *pair coordinates*; divergences do not depend on the order of the
tokens, so a sweep never leaves them, and :meth:`Pair.expand` goes back to the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from theory.arrays import (
    UNIT,
    Array,
    check_distributions,
    check_same_place,
    coerce,
    compact,
    device_of,
    has_negative_zero,
    is_lazy,
    kth_largest,
    namespace,
    ratio_of,
    scatter_rows,
    search_rows,
    take_rows,
)

WORTH_COMPACTING = 0.5  # compact when the longest support is below this share of the vocabulary


@dataclass(frozen=True, eq=False)
class Pair:
    """Draft rows p and verifier rows q, float64 ``[R, K]`` in pair coordinates.

    Build it with :meth:`prepare`. Padding columns have p = q = 0 and token V. ``p_raw`` and
    ``q_raw`` are the distributions before temperature and filters (equal to p and q unless given);
    their row maxima are taken over the whole vocabulary.
    """

    p: Array
    q: Array
    token: Array
    vocabulary: int
    batch: tuple[int, ...]
    dtype: Any
    is_sorted: bool
    p_raw: Array = field(repr=False)
    q_raw: Array = field(repr=False)
    raw_max: dict[str, Array] = field(repr=False)
    ratio: Array | None = field(default=None, repr=False)  # p/q in order, in units of UNIT
    _cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def prepare(
        cls,
        p: Array,
        q: Array,
        *,
        p_raw: Array | None = None,
        q_raw: Array | None = None,
        validate: bool = True,
        sort: bool = True,
        compress: bool = True,
    ) -> Pair:
        """Validate ``p, q [..., V]`` and bring them into pair coordinates.

        Parameters
        ----------
        p, q : array [..., V]
            Draft and verifier distributions, float32 or float64, equal shapes and devices.
        p_raw, q_raw : array [..., V], optional
            The distributions before temperature and filters, for the cascades' confidence tests.
        validate : bool
            False skips the checks (for rows that were checked before, and do not change: they may
            be kept without a copy).
        sort : bool
            Sort each row by p/q; needed by the candidate rules' laws and by the frontier.
        compress : bool
            Drop the tokens with p = q = 0 where that at least halves the rows.

        Raises
        ------
        ValueError
            Naming the argument, row and value of the first invalid entry, or the two shapes or
            devices that differ.
        """
        for name, rows in (("p", p), ("q", q)):
            if rows is None:
                raise ValueError(f"{name} is None; expected a distribution [..., V]")
        given = {"p": p, "q": q, "p_raw": p_raw, "q_raw": q_raw}
        names = tuple(n for n, a in given.items() if a is not None)
        arrays = coerce(*(given[n] for n in names), names=names)
        if validate:
            check_same_place(names, arrays)
            compress &= not check_distributions(names, arrays)  # without zeros there is no need
        # Rows that are sorted are copied by that, and the caller's stay as they are.
        own = (validate and not sort) or any(has_negative_zero(a) for a in arrays)
        return cls._arrange(dict(zip(names, arrays)), sort, compress, own)

    @classmethod
    def _arrange(cls, arrays: dict[str, Array], sort: bool, compress: bool, own: bool) -> Pair:
        p, q = arrays["p"], arrays["q"]
        xp = namespace(*arrays.values())
        *batch, vocabulary = p.shape
        dtype = xp.result_type(p, q)
        flat = {
            name: xp.reshape(_doubles(xp, a, own), (-1, vocabulary))
            if vocabulary and 0 not in batch
            else xp.zeros((0, vocabulary), dtype=xp.float64, device=device_of(p))
            for name, a in arrays.items()
        }
        raw_max = {n: xp.max(a, axis=-1) for n, a in flat.items() if n in ("p_raw", "q_raw")}
        flat, token = _compress(xp, flat, vocabulary) if compress else (flat, None)
        if sort:
            ratio = ratio_of(xp, flat["p"], flat["q"])
            order = xp.argsort(ratio, axis=-1, stable=False)
            ratio = take_rows(xp, ratio, order)
            token = order if token is None else take_rows(xp, token, order)
            flat = {name: take_rows(xp, a, order) for name, a in flat.items()}
        if token is None:
            columns = xp.arange(vocabulary, dtype=xp.int64, device=device_of(p))
            token = xp.broadcast_to(columns, flat["p"].shape)
        raw_p, raw_q = ("p_raw" if "p_raw" in flat else "p"), ("q_raw" if "q_raw" in flat else "q")
        return cls(
            flat["p"],
            flat["q"],
            token,
            vocabulary,
            tuple(batch),
            dtype,
            sort,
            flat[raw_p],
            flat[raw_q],
            raw_max,
            ratio if sort else None,
        )

    def cached(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """Return ``compute()``, computed once for these rows: what many rules and values share."""
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    def sorted_by_ratio(self) -> tuple[Pair, Callable[[Array], Array]]:
        """Return these rows sorted by p/q, and the way back for values ``[R, K]``."""
        xp, width = self.xp, self.p.shape[-1]
        order = xp.argsort(ratio_of(xp, self.p, self.q), axis=-1, stable=False)
        rows = {
            name: take_rows(xp, getattr(self, name), order)
            for name in ("p", "q", "token", "p_raw", "q_raw")
        }
        return (
            replace(self, is_sorted=True, _cache={}, **rows),
            lambda values: scatter_rows(xp, values, order, width),
        )

    @property
    def xp(self) -> Any:
        """The array namespace of the rows."""
        return namespace(self.q)

    def locate(self, tokens: Array) -> Array:
        """Return the coordinate of one token per row, ``tokens [R]``; each must be in its row."""
        if self._in_order:
            return tokens
        xp = self.xp
        return xp.argmax(xp.astype(self.token == tokens[:, None], xp.int8), axis=-1)

    @property
    def _in_order(self) -> bool:
        """Whether the coordinates are the tokens themselves."""
        return not self.is_sorted and self.token.shape[-1] == self.vocabulary

    def expand(self, values: Array) -> Array:
        """Return ``values [R, K]`` as ``[..., V]`` over the vocabulary, in the input's dtype."""
        xp = self.xp
        if not self._in_order:
            full = scatter_rows(xp, values, self.token, self.vocabulary + 1)[:, : self.vocabulary]
        else:  # what is handed out is never the pair's own memory
            full = xp.asarray(values, copy=values is self.p or values is self.q)
        return xp.astype(xp.reshape(full, (*self.batch, self.vocabulary)), self.dtype, copy=False)

    def restore(self, per_row: Array) -> Array:
        """Return ``per_row [R]`` in the shape of the batch ``[...]`` and the input's dtype."""
        return self.xp.astype(self.xp.reshape(per_row, self.batch), self.dtype, copy=False)

    @cached_property
    def p_raw_max(self) -> Array:
        """The largest draft probability of each row before temperature and filters."""
        return self._raw_max_of("p_raw", self.p)

    @cached_property
    def q_raw_max(self) -> Array:
        """The largest verifier probability of each row before temperature and filters."""
        return self._raw_max_of("q_raw", self.q)

    def _raw_max_of(self, name: str, rows: Array) -> Array:
        """Return the maxima that were taken before rows were compressed, or those of the rows."""
        return self.raw_max[name] if name in self.raw_max else self.xp.max(rows, axis=-1)

    @cached_property
    def total_variation(self) -> Array:
        """TV(p, q) = Σ(p − q)₊ per row."""
        return self.xp.sum(self.xp.maximum(self.p - self.q, 0.0), axis=-1)

    @cached_property
    def verifier_max(self) -> Array:
        """The largest verifier probability of each row."""
        return self.xp.max(self.q, axis=-1)

    @cached_property
    def verifier_mode(self) -> Array:
        """The coordinate of the most likely verifier token; the lowest token index wins ties."""
        xp = self.xp
        tied = self.q == self.verifier_max[:, None]
        return xp.argmin(xp.where(tied, self.token, self.vocabulary + 1), axis=-1)

    @cached_property
    def verifier_entropy(self) -> Array:
        """H(q) = −Σ q log q in nats, with 0·log 0 = 0."""
        xp = self.xp
        surprise = self.q * xp.log(xp.where(self.q > 0, self.q, 1.0))
        return xp.maximum(-xp.sum(surprise, axis=-1), 0.0)  # rounding at a one-hot row

    @cached_property
    def verifier_descending(self) -> Array:
        """The verifier probabilities of each row in descending order."""
        return self.xp.sort(self.q, axis=-1, descending=True)

    def verifier_rank_value(self, rank: int) -> Array:
        """Return the ``rank``-th largest verifier probability of each row (0 beyond the row)."""
        if rank > self.q.shape[-1]:
            return self.xp.zeros_like(self.verifier_max)
        if not self.is_sorted:  # a decoder's rows are asked once, a table's rows by many rules
            return self.cached(("rank", rank), lambda: kth_largest(self.xp, self.q, rank))
        return self.verifier_descending[:, rank - 1]

    @cached_property
    def receiver_span(self) -> int:
        """The length of the row prefix that holds every token with p < q (sorted rows)."""
        return _widest(self.xp, self.order.ratio < UNIT)

    @cached_property
    def donor_span(self) -> int:
        """The length of the row suffix that holds every token with p > q (sorted rows)."""
        return _widest(self.xp, self.order.ratio > UNIT)

    @cached_property
    def receivers(self) -> RatioOrder:
        """The order of the receiver side alone: enough for scales up to 1 (sorted rows)."""
        order, span = self.order, self.receiver_span
        return RatioOrder(*(rows[:, :span] for rows in (order.p, order.lifted, order.ratio)))

    @cached_property
    def order(self) -> RatioOrder:
        """The prefix sums along the sorted ratio; only for rows prepared with ``sort=True``."""
        if not self.is_sorted:
            raise ValueError("this pair was prepared with sort=False; its ratio order is unknown")
        if self.ratio is None:
            return RatioOrder.of(self.p, self.q)
        return RatioOrder(self.p, self.q / UNIT, self.ratio)


def _doubles(xp: Any, rows: Array, own: bool) -> Array:
    """Return rows in double precision; a copy of them, without −0.0, where it has to be ``own``."""
    rows = xp.astype(rows, xp.float64, copy=False)
    return rows + 0.0 if own else rows


def _compress(xp: Any, flat: dict[str, Array], vocabulary: int) -> tuple[dict[str, Array], Any]:
    """Keep the union support of p and q, packed to the left; token V marks padding."""
    p = flat["p"]
    if is_lazy(p) or p.shape[0] == 0 or bool(xp.all(p > 0)):
        return flat, None
    mask = (p > 0) | (flat["q"] > 0)
    longest = int(xp.max(xp.count_nonzero(mask, axis=-1)))
    if longest > WORTH_COMPACTING * vocabulary:
        return flat, None
    index, valid = compact(xp, mask)
    packed = {name: xp.where(valid, take_rows(xp, a, index), 0.0) for name, a in flat.items()}
    return packed, xp.where(valid, index, vocabulary)


def _widest(xp: Any, mask: Array) -> int:
    """Return the largest number of True entries in a row; the full width without values."""
    if is_lazy(mask) or mask.shape[0] == 0:
        return int(mask.shape[-1])
    return int(xp.max(xp.count_nonzero(mask, axis=-1)))


@dataclass(frozen=True, eq=False)
class RatioOrder:
    """Rows in ascending order of p/q, with the sums that every clipped law is made of.

    ``ratio`` is in units of ``UNIT`` and ``lifted`` is q/UNIT, so that scale·lifted is comparable
    with p for every ``scale`` in the same units. ``p_below[:, k]`` is Σ_{i<k} p_i and
    ``p_from[:, k]`` is Σ_{i≥k} p_i, k = 0 … K; likewise for lifted. A token with q = 0 < p has
    ratio inf and stands last.
    """

    p: Array
    lifted: Array
    ratio: Array

    @classmethod
    def of(cls, p: Array, q: Array) -> RatioOrder:
        """Collect the sums of rows that are sorted already."""
        xp = namespace(p, q)
        return cls(p, q / UNIT, ratio_of(xp, p, q))

    @cached_property
    def p_below(self) -> Array:
        """Prefix sums of p."""
        return running_sums(namespace(self.p), self.p)

    @cached_property
    def lifted_below(self) -> Array:
        """Prefix sums of q/UNIT."""
        return running_sums(namespace(self.p), self.lifted)

    @cached_property
    def p_from(self) -> Array:
        """Suffix sums of p, summed from the small end so that a thin tail keeps its digits."""
        return suffix_sums(namespace(self.p), self.p)

    @cached_property
    def lifted_from(self) -> Array:
        """Suffix sums of q/UNIT."""
        return suffix_sums(namespace(self.p), self.lifted)

    def recovered(self, scale: Array) -> Array:
        """Return F(c) = Σ_x (c·q_x − p_x)₊ at each c of ``scale [R, J]`` (in units of UNIT)."""
        xp = namespace(self.p)
        at = search_rows(xp, self.ratio, scale)
        return scale * take_rows(xp, self.lifted_below, at) - take_rows(xp, self.p_below, at)


def running_sums(xp: Any, values: Array) -> Array:
    """Return Σ_{i<k} values_i for k = 0 … K."""
    if isinstance(values, np.ndarray):  # summed where it is kept, without a copy
        sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
        np.cumsum(values, axis=-1, out=sums[..., 1:])
        return sums
    return xp.cumulative_sum(values, axis=-1, include_initial=True)


def suffix_sums(xp: Any, values: Array) -> Array:
    """Return Σ_{i≥k} values_i for k = 0 … K, summed from the far end."""
    return xp.flip(running_sums(xp, xp.flip(values, axis=-1)), axis=-1)

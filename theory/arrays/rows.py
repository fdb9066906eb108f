"""What the array API standard lacks: gather, search, compaction and scatter along rows."""

from __future__ import annotations

from typing import Any, Literal

import array_api_compat
import array_api_extra as xpx
import numpy as np

from theory.arrays.basis import Array, device_of, free_to_ask, is_lazy


def quotient(xp: Any, numerator: Array, denominator: Array, empty: float) -> Array:
    """Divide two non-negative arrays, with ``empty`` where the denominator is zero.

    An overflow is the honest limit inf and raises no warning.
    """
    zero = denominator == 0
    with np.errstate(over="ignore"):
        ratio = numerator / xp.where(zero, 1.0, denominator)
    return xp.where(zero, empty, ratio)


# Ratios p/q are kept in units of 2⁻⁶⁴: p/(q·2⁶⁴) is finite for every q > 0, subnormal ones too, and
# p = q has ratio UNIT exactly, because a power of two costs no rounding.
UNIT = 2.0**-64


def ratio_of(xp: Any, p: Array, q: Array) -> Array:
    """Return p/q in units of ``UNIT``, with 0/0 at UNIT (neither donor nor receiver), p/0 = inf."""
    with np.errstate(all="ignore"):
        ratio = p / (q / UNIT)
    empty = xp.isnan(ratio)
    if free_to_ask(ratio) and not bool(xp.any(empty)):
        return ratio
    return xp.where(empty, UNIT, ratio)


def normalised_or(xp: Any, residual: Array, fallback: Array) -> Array:
    """Return ``residual [..., V]`` divided by its sum, or ``fallback`` where it is empty.

    The rows are scaled by their largest entry first, so that a residual made of subnormal numbers
    is normalised as well as any other.
    """
    peak = xp.max(residual, axis=-1, keepdims=True)
    scaled = residual / xp.where(peak > 0, peak, 1.0)
    total = xp.sum(scaled, axis=-1, keepdims=True)
    if free_to_ask(peak) and bool(xp.all(peak > 0)):
        return scaled / total
    return xp.where(peak > 0, scaled / xp.where(peak > 0, total, 1.0), fallback)


def one_hot(xp: Any, index: Array, like: Array) -> Array:
    """Return rows of the shape of ``like [R, K]`` with 1 at ``index [R]`` and 0 elsewhere."""
    columns = xp.arange(like.shape[-1], dtype=index.dtype, device=device_of(like))
    return xp.astype(columns == index[:, None], like.dtype)


def take_rows(xp: Any, values: Array, index: Array) -> Array:
    """Gather ``values[r, index[r, j]]`` for ``values [R, K]`` and ``index [R, J]``."""
    rows, width = values.shape
    if rows == 1:  # one long row: a flat gather is several times faster than take_along_axis
        return xp.take(values[0, :], index[0, :], axis=0)[None, :]
    if rows == 0 or width == 0:
        return xp.zeros(index.shape, dtype=values.dtype, device=device_of(values))
    if array_api_compat.is_torch_namespace(xp):  # take_along_axis looks for negative indices first
        return values.gather(-1, index)
    return xp.take_along_axis(values, index, axis=-1)


def kth_largest(xp: Any, rows: Array, rank: int) -> Array:
    """Return the ``rank``-th largest entry ``[R]`` of each row, 1 ≤ rank ≤ K, without a sort."""
    if array_api_compat.is_numpy_namespace(xp):
        return np.partition(rows, rows.shape[-1] - rank, axis=-1)[:, -rank]
    if array_api_compat.is_torch_namespace(xp):
        return rows.topk(rank, dim=-1).values[:, -1]
    return xp.sort(rows, axis=-1, descending=True)[:, rank - 1]


def search_rows(
    xp: Any, ordered: Array, keys: Array, side: Literal["left", "right"] = "left"
) -> Array:
    """Search ``keys [R, J]`` in the ascending rows of ``ordered [R, K]``; int64 ``[R, J]``."""
    rows, count = keys.shape
    if rows == 0 or count == 0:
        return xp.zeros(keys.shape, dtype=xp.int64, device=device_of(keys))
    if array_api_compat.is_torch_namespace(xp):
        found = xp.searchsorted(ordered.contiguous(), keys.contiguous(), side=side)
        return xp.astype(found, xp.int64)
    if rows > 4 and count <= 64:  # a few keys in many rows: bisect all rows at once
        return xpx.searchsorted(ordered, keys, side=side, xp=xp)
    found = [xp.searchsorted(ordered[r, :], keys[r, :], side=side) for r in range(rows)]
    return xp.stack(found) if rows > 1 else found[0][None, :]


def compact(xp: Any, mask: Array) -> tuple[Array, Array]:
    """Return the columns of the True entries of ``mask [R, K]``, packed to the left.

    Gives ``index [R, M]`` and ``valid [R, M]``, M the largest count of a row; padding has index 0
    and valid False. Without values to count (``meta``) every column is kept.
    """
    rows, width = mask.shape
    device = device_of(mask)
    columns = xp.arange(width, dtype=xp.int64, device=device)
    if is_lazy(mask) or rows == 0 or width == 0:
        index = xp.broadcast_to(columns, (rows, width))
        return index, xp.astype(xp.ones_like(index), xp.bool)
    counts = xp.astype(xp.count_nonzero(mask, axis=-1), xp.int64)
    most = max(int(xp.max(counts)), 1)
    flat = xp.astype(xp.nonzero(xp.reshape(mask, (-1,)))[0], xp.int64)
    flat = xp.concat([flat, xp.zeros((1,), dtype=xp.int64, device=device)])
    starts = xp.cumulative_sum(counts) - counts
    slot = xp.arange(most, dtype=xp.int64, device=device)
    valid = slot < counts[:, None]
    picked = xp.take(flat, xp.reshape(xp.where(valid, starts[:, None] + slot, 0), (-1,)))
    index = xp.reshape(picked, (rows, most))
    return xp.where(valid, index % width, 0), valid


def put(xp: Any, target: Array, index: Array, values: Array) -> Array:
    """Set ``target[index] = values`` for 1-D arrays the caller owns, and return the result.

    The standard has no assignment at integer indices, only at boolean masks.
    """
    if array_api_compat.is_numpy_namespace(xp) or array_api_compat.is_torch_namespace(xp):
        target[index] = values
        return target
    columns = xp.arange(target.shape[0], dtype=index.dtype, device=device_of(target))
    slot = xp.clip(xp.searchsorted(index, columns), 0, index.shape[0] - 1)
    return xp.where(xp.take(index, slot) == columns, xp.take(values, slot), target)


def replace_columns(xp: Any, rows: Array, index: Array, values: Array) -> Array:
    """Return a copy of ``rows [R, K]`` with ``values [R, J]`` at ascending columns ``index``.

    The column K is a place for padding: what is put there is dropped.
    """
    count, width = rows.shape
    room = xp.zeros((count, 1), dtype=rows.dtype, device=device_of(rows))
    wide = xp.reshape(xp.concat([rows, room], axis=-1), (-1,))
    offset = xp.arange(count, dtype=xp.int64, device=device_of(rows))[:, None] * (width + 1)
    wide = put(xp, wide, xp.reshape(index + offset, (-1,)), xp.reshape(values, (-1,)))
    return xp.reshape(wide, (count, width + 1))[:, :width]


def scatter_rows(xp: Any, values: Array, index: Array, width: int) -> Array:
    """Put ``values [R, J]`` at distinct columns ``index [R, J]`` of zero rows ``[R, width]``.

    The standard has no indexed assignment; numpy and torch have it, any other namespace sorts the
    targets and looks each cell up.
    """
    rows = values.shape[0]
    device = device_of(values)
    offset = xp.arange(rows, dtype=xp.int64, device=device)[:, None] * width
    target = xp.reshape(index + offset, (-1,))
    flat = xp.reshape(values, (-1,))
    if array_api_compat.is_numpy_namespace(xp) or array_api_compat.is_torch_namespace(xp):
        out = xp.zeros((rows * width,), dtype=values.dtype, device=device)
        out[target] = flat
        return xp.reshape(out, (rows, width))
    order = xp.argsort(target)
    ordered = xp.take(target, order)
    cells = xp.arange(rows * width, dtype=xp.int64, device=device)
    slot = xp.clip(xp.searchsorted(ordered, cells), 0, max(int(ordered.shape[0]) - 1, 0))
    hit = xp.take(ordered, slot) == cells
    return xp.reshape(xp.where(hit, xp.take(flat, xp.take(order, slot)), 0.0), (rows, width))

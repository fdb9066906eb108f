"""Array namespaces, validation and the boundary conventions, in one place for every room.

Everything in ``theory`` is written over the Python array API standard, so that numpy arrays and
torch tensors on any device run through the same lines. This module holds what the standard lacks
(row-wise gather, search and compaction) and the checks that every public function makes once.

Dtype policy: inside rules, laws and frontiers all probabilities are float64; results come back in
the dtype of the input (float32 in, float32 out). Half precision is refused: a distribution that was
rounded after sampling is not the distribution that was sampled.

Boundary conventions, the same for all rules: 0/0 in a ratio is 1 (neither donor nor receiver), an
empty residual falls back to the verifier q, equal keys are resolved by the lowest token index or by
including every tied token, and a candidate is accepted iff u·p_n < b_n·p_n.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import array_api_compat
import array_api_compat.numpy
import array_api_extra as xpx
import numpy as np

Array = Any

# How far a row of each dtype may sum from 1 before it is refused.
# A float32 softmax over 150,000 tokens is off by 2e-5.
SUM_TOLERANCE = {"float32": 1e-4, "float64": 1e-7}


def namespace(*arrays: Array) -> Any:
    """Return the array API namespace that the arrays share."""
    if all(type(a) is np.ndarray for a in arrays):  # by far the most frequent question
        return array_api_compat.numpy
    return array_api_compat.array_namespace(*arrays)


def device_of(array: Array) -> Any:
    """Return the device that an array lives on."""
    return array_api_compat.device(array)


def coerce(*values: Any) -> tuple[Array, ...]:
    """Turn Python numbers and sequences into float64 arrays beside the arrays that are given.

    Arrays pass through; integers and booleans become float64; lists and numbers join the namespace
    and device of the first array among the values (numpy where there is none).
    """
    model = next((v for v in values if array_api_compat.is_array_api_obj(v)), np.zeros(()))
    xp, device = namespace(model), device_of(model)
    out = []
    for value in values:
        if not array_api_compat.is_array_api_obj(value):
            plain = np.asarray(value, dtype=np.float64).tolist()
            value = xp.asarray(plain, dtype=xp.float64, device=device)
        elif namespace(value) != xp:
            raise ValueError(
                f"arrays of one library are needed, got {type(model).__name__} and "
                f"{type(value).__module__}.{type(value).__name__}"
            )
        elif not xp.isdtype(value.dtype, "real floating"):
            value = xp.astype(value, xp.float64)
        out.append(value)
    return tuple(out)


def quiet() -> np.errstate:
    """Return the context in which limits (log 0, overflow to inf) are taken without a warning.

    Usable as a decorator. Branches that are not taken may pass through inf − inf here.
    """
    return np.errstate(all="ignore")


def dtype_name(array: Array) -> str:
    """Return the plain name of an array's dtype, for example ``"float32"``."""
    return str(array.dtype).rsplit(".", 1)[-1]


def is_lazy(array: Array) -> bool:
    """Say whether the array has a shape but no values (torch's ``meta`` device)."""
    return str(device_of(array)) == "meta"


def check_same_place(names: tuple[str, ...], arrays: tuple[Array, ...]) -> None:
    """Raise ValueError unless all arrays have one shape and live on one device."""
    devices = [str(device_of(a)) for a in arrays]
    if len(set(devices)) > 1:
        where = ", ".join(f"{n} is on {d}" for n, d in zip(names, devices))
        raise ValueError(f"all distributions must be on one device: {where}")
    shapes = [tuple(a.shape) for a in arrays]
    if len(set(shapes)) > 1:
        what = ", ".join(f"{n} has shape {s}" for n, s in zip(names, shapes))
        raise ValueError(f"all distributions must have one shape: {what}")


def _row_of(mask: Array) -> tuple[int, ...]:
    """Return the index of the first True entry of a boolean array."""
    xp = namespace(mask)
    flat = int(xp.argmax(xp.astype(xp.reshape(mask, (-1,)), xp.int64)))
    return tuple(int(i) for i in np.unravel_index(flat, tuple(mask.shape)))


def check_distribution(name: str, rows: Array) -> None:
    """Raise ValueError unless ``rows [..., V]`` holds probability distributions.

    Checks, in this order: a floating dtype of at least 32 bits, V ≥ 1, finite entries, no negative
    entry, and a row sum within ``SUM_TOLERANCE`` of 1. The message names the argument, the row, the
    token and the value; nothing is renormalised.
    """
    xp = namespace(rows)
    if dtype_name(rows) not in SUM_TOLERANCE:
        raise ValueError(
            f"{name} has dtype {dtype_name(rows)}; probabilities must be float32 or "
            "float64 (compute the softmax in float64 from the logits)"
        )
    if rows.ndim < 1 or rows.shape[-1] < 1:
        raise ValueError(
            f"{name} has shape {tuple(rows.shape)}; the last axis must hold V >= 1 tokens"
        )
    if is_lazy(rows) or math.prod(rows.shape) == 0:
        return
    total = xp.sum(rows, axis=-1, dtype=xp.float64)
    # One pass for the usual case: a finite sum of entries that are not negative.
    if bool(xp.all(xp.isfinite(total))) and bool(xp.all(rows >= 0)):
        tolerance = SUM_TOLERANCE[dtype_name(rows)]
        off = xp.abs(total - 1.0) > tolerance
        if bool(xp.any(off)):
            row = _row_of(off)
            raise ValueError(
                f"{name} row {_label(row)} sums to {float(total[row]):.9g}, not to 1 "
                f"within {tolerance:g}; nothing is renormalised silently"
            )
        return
    bad = ~(xp.isfinite(rows) & (rows >= 0))
    index = _row_of(bad)
    value, row, token = float(rows[index]), index[:-1], index[-1]
    kind = "negative" if value < 0 else "not finite"
    raise ValueError(
        f"{name} row {_label(row)} has the {kind} entry {value!r} at token "
        f"{token}; expected probabilities (logits must go through a softmax first)"
    )


def _label(row: tuple[int, ...]) -> str:
    return str(row[0]) if len(row) == 1 else str(row) if row else "0"


def check_scalar(
    name: str, value: Any, low: float, high: float, *, finite: bool = False, open_low: bool = False
) -> None:
    """Raise ValueError unless the number ``value`` lies in [low, high] (or (low, high])."""
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) and not isinstance(value, float):
        raise ValueError(f"{name} must be a number, got {value!r}")
    inside = low < number <= high if open_low else low <= number <= high
    if not inside or (finite and math.isinf(number)):
        left = "(" if open_low or math.isinf(low) else "["
        right = ")" if finite and math.isinf(high) else "]"
        raise ValueError(f"{name} must lie in {left}{low:g}, {high:g}{right}, got {value!r}")


def check_elementwise(name: str, values: Array, low: float, high: float) -> None:
    """Raise ValueError naming the first entry of ``values`` outside [low, high] (NaN included)."""
    xp = namespace(values)
    if is_lazy(values):
        return
    if math.prod(values.shape) == 0:
        return
    # The extremes decide, and a NaN is passed on by both.
    if bool((xp.min(values) >= low) & (xp.max(values) <= high)):
        return
    bad = ~((values >= low) & (values <= high))
    if bool(xp.any(bad)):
        index = _row_of(bad)
        where = f" at index {_label(index)}" if index else ""
        raise ValueError(
            f"{name} must lie in [{low:g}, {high:g}], got {float(values[index])!r}{where}"
        )


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
    if not is_lazy(ratio) and not bool(xp.any(empty)):
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
    if not is_lazy(peak) and bool(xp.all(peak > 0)):
        return scaled / total
    return xp.where(peak > 0, scaled / xp.where(peak > 0, total, 1.0), fallback)


def one_hot(xp: Any, index: Array, like: Array) -> Array:
    """Return rows of the shape of ``like [R, K]`` with 1 at ``index [R]`` and 0 elsewhere."""
    columns = xp.arange(like.shape[-1], dtype=index.dtype, device=device_of(like))
    return xp.astype(columns == index[:, None], like.dtype)


def has_negative_zero(rows: Array) -> bool:
    """Return whether an entry is −0.0 or may be: only rows of numpy are looked through."""
    return not isinstance(rows, np.ndarray) or bool(np.signbit(rows).any())


def to_numpy(array: Array) -> Any:
    """Return a numpy array of the values, from whatever namespace and device."""
    if array_api_compat.is_torch_array(array):
        return array.detach().cpu().numpy()
    if array_api_compat.is_numpy_array(array):
        return array
    host = namespace(array).__array_namespace_info__().default_device()
    return np.asarray(array_api_compat.to_device(array, host))


def take_rows(xp: Any, values: Array, index: Array) -> Array:
    """Gather ``values[r, index[r, j]]`` for ``values [R, K]`` and ``index [R, J]``."""
    rows, width = values.shape
    if rows == 1:  # one long row: a flat gather is several times faster than take_along_axis
        return xp.take(values[0, :], index[0, :], axis=0)[None, :]
    if rows == 0 or width == 0:
        return xp.zeros(index.shape, dtype=values.dtype, device=device_of(values))
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

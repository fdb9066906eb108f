"""What enters: numbers, sequences and arrays brought beside each other, and their checks."""

from __future__ import annotations

import math
from typing import Any

import array_api_compat
import numpy as np

from theory.arrays.basis import Array, device_of, dtype_name, is_lazy, namespace

# How far a row of each dtype may sum from 1 before it is refused.
# A float32 softmax over 150,000 tokens is off by 2e-5.
SUM_TOLERANCE = {"float32": 1e-4, "float64": 1e-7}


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

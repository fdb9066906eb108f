"""What enters: numbers, sequences and arrays brought beside each other, and their checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from numbers import Rational
from typing import Any

import array_api_compat
import numpy as np

from theory.arrays.basis import Array, device_of, dtype_name, is_lazy, namespace, to_numpy

# How far a row of each dtype may sum from 1 before it is refused.
# A float32 softmax over 150,000 tokens is off by 2e-5.
SUM_TOLERANCE = {"float32": 1e-4, "float64": 1e-7}


def plain_number(value: Any) -> Any:
    """Return a number of any kind as Python's own; anything else as it is.

    numpy scalars, arrays and tensors of no axis, fractions and decimals become int, float or bool,
    which stand beside rows of every library.
    """
    if type(value) in (int, float, bool, str) or isinstance(value, np.ma.MaskedArray):
        return value
    if array_api_compat.is_array_api_obj(value):
        if value.ndim > 0 or is_lazy(value):
            return value
        value = value.item() if hasattr(value, "item") else value.tolist()
    if type(value) in (int, float, bool):
        return value
    return float(value) if isinstance(value, Rational | Decimal | np.floating) else value


def refuse_unfit(name: str, value: Any) -> None:
    """Raise ValueError for what is no plain real array: masked, sparse, complex, text, objects.

    The numbers under a mask would count, and imaginary parts would be dropped. A truth value alone
    is no number; rows of them are (one-hots).
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"{name} is a masked array: what lies under the mask has no meaning here")
    if isinstance(value, list | tuple):
        for part in value:
            if type(part) is not bool:
                refuse_unfit(name, part)
    elif isinstance(value, str | bytes | complex):
        kind = "complex number" if isinstance(value, complex) else "text"
        raise ValueError(f"{name} holds the {kind} {value!r:.60}; real numbers are needed")
    elif isinstance(value, bool):
        raise ValueError(f"{name} must be a number, got {value!r}")
    elif array_api_compat.is_array_api_obj(value):
        _refuse_unfit_array(name, value)


def _refuse_unfit_array(name: str, value: Array) -> None:
    if not is_real(value):
        kind = f"complex ({dtype_name(value)})" if is_complex(value) else dtype_name(value)
        raise ValueError(f"{name} has the dtype {kind}; real numbers are needed")
    if str(getattr(value, "layout", "torch.strided")) != "torch.strided":
        raise ValueError(f"{name} has the layout {value.layout}; a dense array is needed")
    if value.ndim == 0 and namespace(value).isdtype(value.dtype, "bool"):
        raise ValueError(f"{name} must be a number, got {plain_number(value)!r}")


def is_complex(array: Array) -> bool:
    """Say whether the array holds complex numbers."""
    return bool(namespace(array).isdtype(array.dtype, "complex floating"))


def is_real(array: Array) -> bool:
    """Say whether the array holds real numbers, integers or truth values."""
    kinds = ("real floating", "integral", "bool")
    return bool(namespace(array).isdtype(array.dtype, kinds))


def coerce(*values: Any, names: Sequence[str] = ()) -> tuple[Array, ...]:
    """Turn Python numbers and sequences into float64 arrays beside the arrays that are given.

    Arrays pass through; integers and booleans become float64; lists and numbers of every kind,
    arrays of no axis included, join the namespace and device of the first array among the values
    (numpy where there is none). Masked and complex values are refused, by the ``names`` given.
    """
    names = [*names, *(f"argument {i}" for i in range(len(names), len(values)))]
    for name, value in zip(names, values):
        refuse_unfit(name, value)
    arrays = [v for v in values if array_api_compat.is_array_api_obj(v)]
    model = next((v for v in arrays if v.ndim > 0), arrays[0] if arrays else np.zeros(()))
    return tuple(_beside(model, name, value) for name, value in zip(names, values))


def _beside(model: Array, name: str, value: Any) -> Array:
    """Return the value as a floating array of the namespace of ``model``."""
    xp, device = namespace(model), device_of(model)
    if not _stands_beside(model, value):
        value = plain_number(value)
    if not array_api_compat.is_array_api_obj(value):
        numbers = _listed(name, value)
        return xp.asarray(numbers, dtype=xp.float64, device=device)
    if namespace(value) != xp:
        raise ValueError(
            f"arrays of one library are needed, got {type(model).__name__} and "
            f"{type(value).__module__}.{type(value).__name__}"
        )
    if type(value) is not np.ndarray and isinstance(value, np.ndarray):
        value = np.asarray(value)  # a matrix multiplies in another way
    return value if xp.isdtype(value.dtype, "real floating") else xp.astype(value, xp.float64)


def _stands_beside(model: Array, value: Any) -> bool:
    """Say whether the value is an array of the library and on the device of ``model``."""
    if not array_api_compat.is_array_api_obj(value):
        return False
    return bool(namespace(value) == namespace(model)) and device_of(value) == device_of(model)


def _listed(name: str, value: Any) -> Any:
    """Return a number or a sequence as Python's numbers."""
    try:
        return np.asarray(value, dtype=np.float64).tolist()
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must hold real numbers, got {value!r:.60}") from None


def one_per_row(name: str, values: Array, batch: tuple[int, ...]) -> Array:
    """Bring a number, or an array that goes beside the rows of a batch, to ``[R]``.

    Raises ValueError, naming the argument, where the shape does not broadcast to the batch.
    """
    xp = namespace(values)
    try:
        fits = np.broadcast_shapes(tuple(values.shape), batch) == batch
    except ValueError:
        fits = False
    if not fits:
        shape = tuple(values.shape)
        raise ValueError(f"{name} has shape {shape}; one number, or one a row {batch}, is needed")
    return xp.reshape(xp.broadcast_to(values, batch), (-1,))


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
    if is_lazy(rows) or math.prod(rows.shape) == 0 or bool(_are_distributions(rows)):
        return
    total, tolerance = xp.sum(rows, axis=-1, dtype=xp.float64), SUM_TOLERANCE[dtype_name(rows)]
    summed = xp.abs(total - 1.0) <= tolerance
    bad = ~(xp.isfinite(rows) & (rows >= 0))
    if not bool(xp.any(bad)):
        row = _row_of(~summed)
        raise ValueError(
            f"{name} row {_label(row)} sums to {float(total[row]):.9g}, not to 1 "
            f"within {tolerance:g}; nothing is renormalised silently"
        )
    index = _row_of(bad)
    value, row, token = float(rows[index]), index[:-1], index[-1]
    kind = "negative" if value < 0 else "not finite"
    raise ValueError(
        f"{name} row {_label(row)} has the {kind} entry {value!r} at token "
        f"{token}; expected probabilities (logits must go through a softmax first)"
    )


def check_distributions(names: tuple[str, ...], arrays: tuple[Array, ...]) -> bool | None:
    """Check several as `check_distribution` does, with one question to their device.

    Returns whether the first of them has no zero, which the same question answers; None where it
    was not asked.
    """
    if all(map(_can_be_summed, arrays)):
        xp = namespace(*arrays)
        asked = [_are_distributions(rows) for rows in arrays]
        *fine, positive = to_numpy(xp.stack([*asked, xp.all(arrays[0] > 0)])).tolist()
        if all(fine):
            return bool(positive)
    for name, rows in zip(names, arrays):
        check_distribution(name, rows)
    return None


def _can_be_summed(rows: Array) -> bool:
    """Whether there are rows, of a dtype that probabilities have."""
    there = rows.ndim > 0 and math.prod(rows.shape) > 0 and not is_lazy(rows)
    return there and dtype_name(rows) in SUM_TOLERANCE


def _are_distributions(rows: Array) -> Array:
    """Whether all rows are distributions, as an array of one bool; not empty."""
    xp = namespace(rows)
    total = xp.sum(rows, axis=-1, dtype=xp.float64)
    summed = xp.abs(total - 1.0) <= SUM_TOLERANCE[dtype_name(rows)]  # not with an inf or a NaN
    return xp.all(summed) & (xp.min(rows) >= 0)


def _label(row: tuple[int, ...]) -> str:
    return str(row[0]) if len(row) == 1 else str(row) if row else "0"


def check_scalar(
    name: str, value: Any, low: float, high: float, *, finite: bool = False, open_low: bool = False
) -> None:
    """Raise ValueError unless the number ``value`` lies in [low, high] (or (low, high])."""
    value = plain_number(value)
    if type(value) not in (int, float):
        raise ValueError(f"{name} must be a number, got {value!r}")
    number = _as_float(name, value)
    inside = low < number <= high if open_low else low <= number <= high
    if not inside or (finite and math.isinf(number)):
        left = "(" if open_low or math.isinf(low) else "["
        right = ")" if finite and math.isinf(high) else "]"
        raise ValueError(f"{name} must lie in {left}{low:g}, {high:g}{right}, got {value!r}")


def _as_float(name: str, value: float) -> float:
    """Return the number as a float; an integer of 400 digits is beyond them all."""
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be a number of float64, got one beyond its range") from None


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

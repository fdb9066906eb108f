"""Checks of arguments: each raises a ValueError of one line, with the argument and its value."""

import difflib
from collections.abc import Iterable
from math import isfinite, isinf

__all__ = ["require_between", "require_count", "unknown_name"]


def unknown_name(what: str, name: str, known: Iterable[str]) -> ValueError:
    """The ValueError for a `name` that is not `known`, with the nearest known one.

    `what` says what kind of name it is, for example "family".
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
    return ValueError(f"unknown {what} {name!r}; {hint}")


def require_between(
    argument: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    """Raise ValueError unless `value` is finite and low ≤ value ≤ high (low < value if open)."""
    # Chained comparisons are False for NaN, so NaN is refused too.
    inside = low < value <= high if open_low else low <= value <= high
    if not (inside and isfinite(value)):
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if isinf(high) else ']'}"
        raise ValueError(f"{argument} must lie in {interval}, got {value}")


def require_count(argument: str, value: int, low: int, where: str = "") -> None:
    """Raise ValueError unless `value` is an integer of at least `low`."""
    if not isfinite(value) or int(value) != value or value < low:
        raise ValueError(f"{argument} must be an integer of at least {low}{where}, got {value}")

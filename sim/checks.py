"""Checks of arguments: each raises a ValueError of one line, with the argument and its value."""

import difflib
import sys
from collections.abc import Hashable, Iterable
from decimal import Decimal
from math import isinf
from numbers import Real
from typing import Any, TypeVar

import numpy as np

__all__ = [
    "once",
    "read_number",
    "require_between",
    "require_count",
    "shorten",
    "shortest",
    "unknown_name",
]

_Item = TypeVar("_Item", bound=Hashable)
_MOST = 2**31 - 1
_LARGEST = sys.float_info.max


def once(argument: str, given: Iterable[_Item]) -> list[_Item]:
    """The things given, in their order; ValueError for one that is there twice."""
    seen: dict[_Item, None] = {}
    for item in given:
        if item in seen:
            raise ValueError(f"{argument}: {item} was given twice")
        seen[item] = None
    return list(seen)


def shortest(number: float) -> str:
    """The shortest text that stands for this very number: "0.6", "2", "0.60000012", "1e-308".

    Labels are made with it, so that two numbers never share one.
    """
    return str(number) if isinstance(number, int) else repr(float(number)).removesuffix(".0")


def read_number(where: str, text: str) -> float:
    """The number that a text stands for; ValueError for none, and for one that float64 lacks.

    A text of finite digits never becomes inf, nor one that is not zero 0.
    """
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{where}: expected a number, got {shorten(repr(text))}") from None
    if number == 0 or isinf(number):
        exact = Decimal(text.strip())
        if exact != number:
            raise ValueError(f"{where}: {shorten(text)} is beyond the numbers of float64")
    return number


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
    value = _plain_number(argument, value)
    # Chained comparisons are False for NaN, so NaN is refused too.
    inside = low < value <= high if open_low else low <= value <= high
    # An integer of 400 digits is no float either, and `isfinite` cannot be asked of it.
    if not (inside and abs(value) <= _LARGEST):
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if isinf(high) else ']'}"
        raise ValueError(f"{argument} must lie in {interval}, got {shorten(str(value))}")


def require_count(
    argument: str, value: float, low: int, where: str = "", *, high: int = _MOST
) -> None:
    """Raise ValueError unless `value` is an integer with low ≤ value ≤ high (2³¹ − 1)."""
    value = _plain_number(argument, value)
    # Compared first: what lies between is finite, and an integer of 400 digits is no float.
    if not low <= value or int(min(value, high)) != min(value, high):
        raise ValueError(
            f"{argument} must be an integer of at least {low}{where}, got {shorten(str(value))}"
        )
    if value > high:
        raise ValueError(f"{argument} must be at most {high}{where}, got {shorten(str(value))}")


def _plain_number(argument: str, value: Any) -> Any:
    """The number as Python's own: one of numpy's would bring the limits into its own range."""
    if isinstance(value, bool | str | bytes) or not isinstance(value, Real):
        raise ValueError(f"{argument} must be a number, got {shorten(repr(value))}")
    return value.item() if isinstance(value, np.generic) else value


def shorten(text: str, most: int = 40) -> str:
    """The text, or its beginning and its length where it is longer than `most`."""
    return text if len(text) <= most else f"{text[: most // 2]}… ({len(text)} characters)"

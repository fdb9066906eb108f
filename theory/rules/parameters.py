"""The parameters of rules: how they are kept and printed, and the checks that several share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from theory.arrays import check_scalar, plain_number
from theory.divergences.kinds import Divergence, resolve_divergence


def plain_parameter(value: Any) -> Any:
    """Return a parameter as a rule keeps it: Python's numbers, divergences by their names."""
    if isinstance(value, Divergence) and _is_known(value):
        return value.name
    return plain_number(value)


def _is_known(kind: Divergence) -> bool:
    try:
        return resolve_divergence(kind.name) == kind
    except ValueError:
        return False


def literal(value: Any) -> str:
    """Return the text that Python reads as this value, infinities included."""
    endless = isinstance(value, float) and not np.isfinite(value)
    return f"float({str(value)!r})" if endless else repr(value)


def whole_number(name: str, value: float) -> int:
    """Return a count of at least 1; ValueError for any other number."""
    check_scalar(name, value, 1, math.inf, finite=True)
    if int(value) != value:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def chosen_from(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return a name out of a few; ValueError for any other value."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value

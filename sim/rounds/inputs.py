"""Counts, tokens and rows as rounds read them: plain numpy arrays, checked and named."""

import numpy as np
from numpy.typing import ArrayLike

from theory.arrays import check_distribution, refuse_unfit

__all__ = ["checked_rows", "plain_array", "whole_numbers"]

_LARGEST = np.iinfo(np.int64).max


def plain_array(argument: str, values: ArrayLike) -> np.ndarray:
    """The values as a numpy array; ValueError for masked, complex and other unfit ones."""
    refuse_unfit(argument, values)
    array = np.asarray(values)
    refuse_unfit(argument, array)
    return array


def whole_numbers(argument: str, values: ArrayLike) -> np.ndarray:
    """Integers of any width as int64, in which sums and products do not overflow.

    Raises ValueError for what holds no integers, and for one beyond int64.
    """
    refuse_unfit(argument, values)
    array = np.asarray(values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{argument} must be integers, got {array.dtype}")
    if array.size and array.dtype == np.uint64 and array.max() > _LARGEST:
        raise ValueError(f"{argument} must be integers up to {_LARGEST}, got {array.max()}")
    return array.astype(np.int64, copy=False)


def checked_rows(argument: str, rows: ArrayLike) -> np.ndarray:
    """Distributions as a numpy array [..., V]; ValueError naming the argument, row and value."""
    array = plain_array(argument, rows)
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    check_distribution(argument, array)
    return array

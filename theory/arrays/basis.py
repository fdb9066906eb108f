"""The array namespace, device and dtype of arrays, whatever library they come from."""

from __future__ import annotations

from typing import Any

import array_api_compat
import array_api_compat.numpy
import numpy as np

Array = Any


def namespace(*arrays: Array) -> Any:
    """Return the array API namespace that the arrays share."""
    if all(type(a) is np.ndarray for a in arrays):  # by far the most frequent question
        return array_api_compat.numpy
    return array_api_compat.array_namespace(*arrays)


def device_of(array: Array) -> Any:
    """Return the device that an array lives on."""
    return array_api_compat.device(array)


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


HOST = ("cpu",)  # devices whose numbers the host has at once


def free_to_ask(array: Array) -> bool:
    """Say whether a question about the values costs no wait: they exist, and lie with the host."""
    return str(device_of(array)) in HOST


def to_numpy(array: Array) -> Any:
    """Return a numpy array of the values, from whatever namespace and device."""
    if array_api_compat.is_torch_array(array):
        return array.detach().cpu().numpy()
    if array_api_compat.is_numpy_array(array):
        return array
    host = namespace(array).__array_namespace_info__().default_device()
    return np.asarray(array_api_compat.to_device(array, host))


def has_negative_zero(rows: Array) -> bool:
    """Return whether an entry is −0.0 or may be: only rows of numpy are looked through."""
    return not isinstance(rows, np.ndarray) or bool(np.signbit(rows).any())


def settle_allocator() -> None:
    """Free one large block, after which glibc keeps freed memory instead of returning it.

    Its thresholds follow the largest block freed so far (up to 32 MiB). Without this every
    temporary of a megabyte is mapped and faulted in anew, which is a third of the time of a law on
    a long row. The block is never written to, and costs no memory.
    """
    np.empty(2**25 - 2**16, dtype=np.uint8)


settle_allocator()

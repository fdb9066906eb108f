"""Files with rows of a draft and a verifier: npz, npy, safetensors, torch and parquet.

A file holds `draft` and `verifier`, [N, V], and may hold `prompts` [N], labels that are numbers or
texts, and `contexts`, the token ids of each prompt's text. An npy file holds one array. Nothing in
a file is ever unpickled.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import safetensors.torch
import torch

from real_models.errors import UserError

__all__ = ["SUFFIXES", "read_arrays"]

_NAMES = ("draft", "verifier", "prompts", "contexts")


def read_arrays(files: Sequence[Path], draft: Path | None, verifier: Path | None) -> dict[str, Any]:
    """The arrays of all files by name: whole files, and one of a single array for each model.

    Raises UserError naming the file that cannot be read, holds something else, or repeats a name,
    and the name that is in none.
    """
    found: dict[str, Any] = {}
    singles = [(path, name) for path, name in ((draft, "draft"), (verifier, "verifier")) if path]
    for path, name in [*((path, None) for path in files), *singles]:
        for key, value in (_arrays(path) if name is None else {name: _single(path)}).items():
            if key not in _NAMES:
                raise UserError(f"{path}: unknown array {key!r}; known are {', '.join(_NAMES)}")
            if key in found:
                raise UserError(f"{path}: {key} is in another file, too")
            found[key] = value
    for name in ("draft", "verifier"):
        if name not in found:
            raise UserError(f"no file holds the rows of the {name}")
    if "contexts" in found:
        found["contexts"] = _ragged(found["contexts"])
    return found


def _arrays(path: Path) -> dict[str, Any]:
    """The arrays of a file by their names."""
    read = SUFFIXES.get(path.suffix.lower())
    if read is None:
        raise UserError(f"{path}: a name must end in one of {', '.join(SUFFIXES)}")
    try:
        return read(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # each library has errors of its own for a broken file
        told = " ".join(str(error).split())[:160]
        raise UserError(f"{path} cannot be read: {told}") from None


def _single(path: Path) -> Any:
    """The only array of a file, whatever it is called there."""
    arrays = _arrays(path)
    if len(arrays) != 1:
        raise UserError(f"{path} holds {len(arrays)} arrays ({', '.join(arrays)}), not one")
    return next(iter(arrays.values()))


def _npz(path: Path) -> dict[str, Any]:
    # numpy itself would leave a broken file open.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _npy(path: Path) -> dict[str, Any]:
    return {"rows": np.load(path, mmap_mode="r", allow_pickle=False)}


def _torch(path: Path) -> dict[str, Any]:
    found = torch.load(path, map_location="cpu", weights_only=True)
    return found if isinstance(found, dict) else {"rows": found}


def _parquet(path: Path) -> dict[str, Any]:
    """Columns: a list of numbers of a row's own, all of one length, or one value of it."""
    table = pyarrow.parquet.read_table(path)
    found = {}
    for name, column in zip(table.column_names, table.columns):
        values = column.combine_chunks()
        if not hasattr(values, "flatten") or not hasattr(column.type, "value_type"):
            found[name] = values.to_pylist()
            continue
        flat = values.flatten().to_numpy(zero_copy_only=False)
        width, left = divmod(len(flat), max(len(values), 1))
        if left or {len(row) for row in values} != {width}:
            raise ValueError(f"the rows of {name} have different lengths, or are missing")
        found[name] = flat.reshape(len(values), width)
    return found


def _ragged(contexts: Any) -> list[np.ndarray]:
    """The texts of prompts; in an array [prompts, length] the shorter ones end in −1."""
    rows = contexts.numpy() if isinstance(contexts, torch.Tensor) else contexts
    texts = []
    for row in rows:
        ids = np.asarray(row)
        used = np.flatnonzero(ids != -1)
        texts.append(ids[: int(used[-1]) + 1 if len(used) else 0])
    return texts


SUFFIXES: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".safetensors": safetensors.torch.load_file,
    ".pt": _torch,
    ".pth": _torch,
    ".parquet": _parquet,
}
"""Ending of a file's name → what reads its arrays."""

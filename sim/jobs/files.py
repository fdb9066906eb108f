"""Files that are either whole or absent, and the one way to write JSON."""

import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

__all__ = [
    "json_text",
    "make_folder",
    "require_no_file",
    "sha256_file",
    "sync_folder",
    "write_json",
    "write_whole",
]


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; NotADirectoryError names the file that is in the way."""
    require_no_file(folder)
    folder.mkdir(parents=True, exist_ok=True)


def require_no_file(folder: Path) -> None:
    """Raise NotADirectoryError where a file stands in the place of a folder, or of one above it.

    A name that is no text in UTF-8, which parquet cannot write to, is an OSError.
    """
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise OSError(f"{str(folder)!r} is no text in UTF-8; name another folder") from None
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if there.exists() and not there.is_dir():
        raise NotADirectoryError(f"{there} is a file; a folder is needed there")


def sha256_file(path: Path) -> str:
    """The sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, write: Callable[[BinaryIO], object], tag: str = "part") -> None:
    """Let `write` fill a temporary file, sync it, and rename it to `path`.

    A process killed at any moment leaves the old file or the new one, never part of one under
    that name. The temporary name is fixed, so that the next attempt takes up what a killed one
    left behind; processes that may write one path at the same time need different tags.

    A link is followed. Raises OSError where a folder, a device or a pipe is in the way: these must
    not be replaced by a file.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no plain file, and is not replaced by one")
    work = path.with_name(f".{path.name}.{tag}")
    try:
        with work.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable: a rename is only on disk once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def json_text(document: Any, *, indent: int | None = 2) -> str:
    """A document of plain values and numpy scalars as strict JSON, on one line without `indent`.

    JSON has no infinite numbers and no nan: they are null.
    """
    return json.dumps(_plain(document), indent=indent, ensure_ascii=False, allow_nan=False)


def write_json(path: Path, document: Any) -> None:
    """Write a document as JSON, as `json_text` does, whole or not at all."""
    text = json_text(document) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)

"""Files that are either whole or absent: digests, synced writes, renames into place."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from real_models.errors import UserError

__all__ = ["make_folder", "sha256_file", "sync_folder", "write_json", "write_whole"]


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; UserError where a file stands in its place, or in theirs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        taken = next(path for path in (folder, *folder.parents) if path.is_file())
        raise UserError(f"{taken} is a file; a folder is needed there") from None


def sha256_file(path: Path) -> str:
    """The sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, write: Callable[[BinaryIO], object], tag: str = "part") -> None:
    """Let `write` fill a temporary file, sync it, and rename it to `path`.

    A process killed at any moment leaves the old file or the new one, never part of one under
    that name. The temporary name is fixed, so that the next attempt takes up what a killed one
    left behind; processes that may write one path at the same time need different tags.
    """
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


def write_json(path: Path, document: Any) -> None:
    """Write a document of plain values as JSON that a diff can be read of, whole or not at all."""
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable: a rename is only on disk once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

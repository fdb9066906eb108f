"""One writer a folder: a lock that dies with its process, and a word on who holds it."""

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sim.jobs.files import make_folder, require_no_file, write_json

__all__ = ["FolderInUse", "owned", "require_free", "withdraw_manifest"]

MANIFEST = "manifest.json"


class FolderInUse(OSError):
    """Another process is writing to the folder; the message says which."""


@contextmanager
def owned(folder: Path, part: int = 0, command: str = "") -> Iterator[None]:
    """Own a folder, which is made where it is missing, while the block runs.

    The lock is the operating system's: it is gone with its process, however that ends. Several
    processes that write one result together, as the ranks of one recording do, each own a `part`.

    Raises FolderInUse, naming the holder, where another process owns it, and where it holds the
    results of another kind of command than `command`, which would stay beside the new manifest.
    """
    make_folder(folder)
    holder = _lock(folder, part).with_suffix(".json")
    with _acquired(folder, part):
        _require_kind(folder, command)
        write_json(holder, _myself())
        try:
            yield
        finally:
            holder.unlink(missing_ok=True)


def require_free(folder: Path, part: int = 0) -> None:
    """Raise FolderInUse where another process owns the folder now; nothing is made or kept.

    Before long preparations it tells at once what `owned` would tell after them; a file in the
    place of the folder is a NotADirectoryError.
    """
    require_no_file(folder)
    if _lock(folder, part).is_file():
        _acquired(folder, part).release()


def _require_kind(folder: Path, command: str) -> None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        there = str(manifest["command"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    if command and there.rpartition(".")[2] != command.rpartition(".")[2]:
        raise FolderInUse(f"{folder} holds the results of {there}; give another --out")


def withdraw_manifest(folder: Path) -> None:
    """Remove the manifest of results that are about to be replaced.

    A folder with a manifest is complete, so that the manifest goes first and comes last.
    """
    (folder / MANIFEST).unlink(missing_ok=True)


def _lock(folder: Path, part: int) -> Path:
    return folder / (f".lock-{part}" if part else ".lock")


def _acquired(folder: Path, part: int) -> Any:
    path = _lock(folder, part)
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        holder = _told(path.with_suffix(".json"))
        raise FolderInUse(f"{folder} is being written by {holder}") from None
    return lock


def _myself() -> dict[str, object]:
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"process": os.getpid(), "host": platform.node(), "since": since, "command": command}


def _told(holder: Path) -> str:
    """Who holds the lock, as far as it has said so yet."""
    try:
        facts = json.loads(holder.read_text(encoding="utf-8"))
        return "process {process} on {host} since {since} ({command})".format(**facts)
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"

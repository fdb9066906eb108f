"""Finished cells on disk: whole and sealed, or not there.

A cell is a folder of tables with a seal, `cell.json`, that names the cell and the digest of each
table. A cell counts as finished only where the seal is that of the cell and every table is as it
was written; an emptied, cut, altered or foreign folder is told apart from one that is not there.
"""

import hashlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd

from sim.jobs.files import sha256_file, write_json

__all__ = ["CellStore", "Frames"]

Frames = dict[str, pd.DataFrame]
_SEAL = "cell.json"


class CellStore:
    """The finished cells of one job in one folder, which the caller owns.

    Each cell is kept under its name and a digest of `stamp`, its name and its arguments, so that
    other arguments, or another version of the code, make another cell.
    """

    def __init__(self, folder: Path, stamp: str = "") -> None:
        self.folder, self._stamp = folder, stamp
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob("*.part"):  # of a run that was killed
            shutil.rmtree(unfinished, ignore_errors=True)

    def fault(self, name: str, arguments: tuple[Any, ...]) -> str | None:
        """Why a cell cannot be used: None where it is whole, "" where it is not there at all."""
        place = self._place(name, arguments)
        if not place.exists():
            return ""
        try:
            seal = json.loads((place / _SEAL).read_text(encoding="utf-8"))
            tables, key, sealed = dict(seal["tables"]), seal["cell"], seal["sha256"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return f"{place.name}/{_SEAL} is missing or cannot be read"
        if sealed != _seal(key, tables):
            return f"{place.name}/{_SEAL} is not as it was written"
        if key != place.name:
            return f"{place.name} holds another cell, {key}"
        for table, digest in tables.items():
            path = place / table
            if not path.is_file():
                return f"{place.name}/{table} is missing"
            if sha256_file(path) != digest:
                return f"{place.name}/{table} is not as it was written"
        return None

    def keep(self, name: str, arguments: tuple[Any, ...], frames: Frames) -> None:
        """Write the tables of a finished cell beside their place, then move them there at once."""
        place = self._place(name, arguments)
        draft = place.with_name(f"{place.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        try:
            draft.mkdir()
            tables = {f"{table}.parquet": _parquet(frame) for table, frame in frames.items()}
            for file, content in tables.items():
                (draft / file).write_bytes(content)
            digests = {file: hashlib.sha256(data).hexdigest() for file, data in tables.items()}
            seal = {"cell": place.name, "tables": digests, "sha256": _seal(place.name, digests)}
            write_json(draft / _SEAL, seal)
            _remove(place)  # a cell that was not whole
            os.replace(draft, place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def read(self, name: str, arguments: tuple[Any, ...]) -> Frames:
        """The tables of a cell without a fault."""
        place = self._place(name, arguments)
        seal = json.loads((place / _SEAL).read_text(encoding="utf-8"))
        return {Path(table).stem: pd.read_parquet(place / table) for table in seal["tables"]}

    def _place(self, name: str, arguments: tuple[Any, ...]) -> Path:
        text = repr((self._stamp, name, arguments))
        return self.folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _seal(cell: str, tables: dict[str, str]) -> str:
    """A digest over what the seal says: that no table is missing from its list."""
    return hashlib.sha256(json.dumps([cell, sorted(tables.items())]).encode()).hexdigest()


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()

"""Results that no person reads, kept as parquet: rows, and the facts that hold for all of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sim.jobs.files import json_text, write_whole

__all__ = ["read_facts", "read_rows", "write_rows"]

_FACTS = b"facts"
_PARAMETERS = pa.map_(pa.string(), pa.float64())  # every rule has its own


def write_rows(path: Path, rows: Sequence[dict[str, Any]], facts: dict[str, Any]) -> None:
    """Write rows and facts, whole or not at all.

    A row has plain values, lists, and the dict `parameters` of numbers; not every row needs every
    key. What the facts say goes as JSON into the metadata of the file.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    arrays = {
        name: pa.array(
            [list(value.items()) for value in values] if name == "parameters" else values,
            _PARAMETERS if name == "parameters" else None,
        )
        for name, values in columns.items()
    }
    told = {_FACTS: json_text(facts, indent=None).encode()}
    table = pa.table(arrays).replace_schema_metadata(told)
    write_whole(path, lambda file: pq.write_table(table, file, compression="zstd"))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows as they were written; a key without a value is left out."""
    rows = pq.read_table(path).to_pylist()
    return [
        {name: value for name, value in row.items() if value is not None}
        | {"parameters": dict(row["parameters"])}
        for row in rows
    ]


def read_facts(path: Path) -> dict[str, Any]:
    """What holds for all rows."""
    return json.loads(pq.read_schema(path).metadata[_FACTS])

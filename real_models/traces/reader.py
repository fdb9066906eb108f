"""Read a recorded trace: checked on opening, memory-mapped, in batches of bounded size.

    trace = open_trace("traces/smollm2-skip3")
    for prompt_id, domain, draft_logits, verifier_logits in trace.batches():
        p = settings.probabilities(draft_logits)
        q = settings.probabilities(verifier_logits)

See `format` for the files and `writer` for writing them. Where only the likeliest tokens of each
row are known, `Chunk.listed` reads what is, and there are no logits to hand out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from real_models.errors import UserError
from real_models.traces.format import (
    HEADER_FILE,
    STORED_DTYPES,
    UNKNOWN,
    ChunkEntry,
    TraceHeader,
    from_storage,
)
from real_models.traces.listing import Listed
from sim.jobs.files import sha256_file

__all__ = ["Chunk", "Trace", "TraceBatch", "open_trace", "read_index"]

MEMORY_LIMIT = 256 << 20
"""Default bytes for one batch, counted as the float64 logits of both models."""


class TraceBatch(NamedTuple):
    """Consecutive positions of one prompt. The logits are [batch, V] in the stored dtype."""

    prompt_id: str
    domain: str
    draft_logits: torch.Tensor
    verifier_logits: torch.Tensor


@dataclass(frozen=True)
class Chunk:
    """The recorded positions of one prompt; the arrays are mapped from disk when asked for."""

    folder: Path
    entry: ChunkEntry
    header: TraceHeader

    @property
    def positions(self) -> int:
        """The number of rows."""
        return self.entry.positions

    @cached_property
    def context(self) -> np.ndarray:
        """The token ids of the text, int64 [first + positions + 1]; UserError if it is unknown."""
        if self.header.contexts == UNKNOWN:
            raise UserError(f"{self.folder}: the texts of this trace were not recorded")
        return np.array(self._map("context"), dtype=np.int64)

    @property
    def next_tokens(self) -> np.ndarray:
        """The token that each row predicts, as it stands in the text; int64 [positions]."""
        return self.context[self.entry.first + 1 :]

    def logits(self, part: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Rows start … stop−1 of the logits of `draft` or `verifier`, [rows, V] in memory.

        Raises UserError where the trace lists the likeliest tokens only: see `listed`.
        """
        if self.header.listed is not None:
            raise UserError(
                f"{self.folder} lists the {self.header.listed} likeliest tokens of each row, and "
                "has no logits of the others"
            )
        return from_storage(self._map(part)[start:stop], self.header.dtype)

    def listed(self, part: str, start: int = 0, stop: int | None = None) -> Listed:
        """What is known of rows start … stop−1 of `draft` or `verifier`, in memory.

        Raises UserError where the trace has whole rows.
        """
        if self.header.listed is None:
            raise UserError(f"{self.folder} has whole rows, and no lists of the likeliest tokens")
        tokens, logprobs = self._map(f"{part}_tokens")[start:stop], self._map(part)[start:stop]
        return Listed(
            np.array(tokens, dtype=np.int64),
            np.array(logprobs, dtype=np.float64),
            self.header.vocabulary,
        )

    def check(self, verify: bool) -> None:
        """Open every file once and compare shape, dtype and (with `verify`) digest.

        Raises UserError naming the chunk and the file.
        """
        for part in self.header.parts:
            path = self.folder / self.entry.file_name(part)
            self._map(part)
            if verify and sha256_file(path) != self.entry.files.get(part):
                raise UserError(f"{self._name(part)} has been altered: its checksum differs")

    def _map(self, part: str) -> np.memmap:
        """The array of a part, mapped read-only; pickled objects are never loaded."""
        path = self.folder / self.entry.file_name(part)
        try:
            array = np.lib.format.open_memmap(path, mode="r")
        except (OSError, ValueError) as error:
            raise UserError(f"{self._name(part)} is missing or truncated: {error}") from None
        kind, shape = self._layout(part)
        if array.shape != shape or array.dtype != kind:
            found = f"{array.dtype} {list(array.shape)}"
            raise UserError(f"{self._name(part)} holds {found}, not {kind} {list(shape)}")
        return array

    def _layout(self, part: str) -> tuple[np.dtype, tuple[int, ...]]:
        """The dtype and shape that a part must have."""
        rows, listed = self.entry.positions, self.header.listed
        if part == "context":
            return np.dtype("<i4"), (self.entry.first + rows + 1,)
        if listed is None:
            return STORED_DTYPES[self.header.dtype][1], (rows, self.header.vocabulary)
        return np.dtype("<i4" if part.endswith("_tokens") else "<f8"), (rows, listed + 1)

    def _name(self, part: str) -> str:
        """The chunk and file for an error message."""
        return f"{self.folder}: chunk {self.entry.chunk} ({self.entry.file_name(part)})"


@dataclass(frozen=True)
class Trace:
    """An opened trace: its header and its chunks in the order of the prompts."""

    folder: Path
    header: TraceHeader
    chunks: tuple[Chunk, ...]

    @property
    def positions(self) -> int:
        """The number of positions in all chunks."""
        return sum(chunk.positions for chunk in self.chunks)

    @property
    def complete(self) -> bool:
        """Whether every prompt of the header has its chunk."""
        return len(self.chunks) == self.header.prompts

    def batch_size(self, memory_limit: int = MEMORY_LIMIT) -> int:
        """Positions per batch: the float64 logits of both models stay within `memory_limit`."""
        if memory_limit < 1:
            raise ValueError(f"memory_limit must be at least 1 byte, got {memory_limit}")
        return max(1, memory_limit // (2 * 8 * self.header.vocabulary))

    def batches(
        self, memory_limit: int = MEMORY_LIMIT, device: torch.device | str = "cpu"
    ) -> Iterator[TraceBatch]:
        """All positions in order, in batches that never span two prompts, on `device`.

        Within a prompt the rows follow each other; a batch holds at most `batch_size` of them
        and at least one.
        """
        step = self.batch_size(memory_limit)
        for chunk in self.chunks:
            for start in range(0, chunk.positions, step):
                draft, verifier = (
                    chunk.logits(part, start, start + step).to(device)
                    for part in ("draft", "verifier")
                )
                yield TraceBatch(chunk.entry.prompt_id, chunk.entry.domain, draft, verifier)


def open_trace(folder: Path | str, verify: bool = True) -> Trace:
    """Open a trace and check it: header, index, shape of every array and, with `verify`, digests.

    An unfinished trace opens with the chunks it has; `complete` tells.

    Raises UserError naming the file or chunk that is missing, truncated, altered or foreign.
    """
    folder = Path(folder)
    path = folder / HEADER_FILE
    if not path.is_file():
        raise UserError(f"{folder} is no trace: it has no {HEADER_FILE}")
    data = path.read_bytes()
    header = TraceHeader.from_bytes(data, path)
    entries = read_index(folder, data)
    chunks = tuple(Chunk(folder, entry, header) for entry in entries)
    for chunk in chunks:
        chunk.check(verify)
    return Trace(folder, header, chunks)


def read_index(folder: Path, header: bytes) -> list[ChunkEntry]:
    """The entries of all index files (one per process that recorded), by chunk number.

    Raises UserError naming file and line of one that is incomplete, altered or repeated.
    """
    entries: dict[int, ChunkEntry] = {}
    for path in sorted(folder.glob("chunks*.jsonl")):
        for number, line in enumerate(BytesIO(path.read_bytes()), start=1):  # by line feeds alone
            where = f"{path} line {number}"
            if not line.endswith(b"\n"):
                raise UserError(f"{where} is incomplete: record again to repair the trace")
            entry = ChunkEntry.from_line(line, header, where)
            if entry.chunk in entries:
                raise UserError(f"{where}: chunk {entry.chunk} is listed twice")
            entries[entry.chunk] = entry
    return [entries[number] for number in sorted(entries)]

"""Write a trace prompt by prompt, so that a kill at any moment loses no finished prompt.

The order is what makes it safe: the three files of a prompt are written under temporary names,
synced and renamed; only then is the prompt's line appended to the index, and synced. A prompt
without a line does not exist, whatever files it left behind, and is recorded again. Nothing in
the files depends on time, process or order, hence an interrupted and resumed trace is the same,
byte for byte, as one recorded at a stretch.
"""

import os
from pathlib import Path

import numpy as np
import torch

from real_models.errors import UserError
from real_models.traces.format import HEADER_FILE, PARTS, ChunkEntry, TraceHeader, to_storage
from real_models.traces.reader import read_index
from sim.jobs.files import make_folder, sha256_file, sync_folder, write_whole

__all__ = ["TraceWriter"]


class TraceWriter:
    """Creates the trace in `folder`, or continues it when it has the same header.

    shard : number of this process when several record one trace; each has an index of its own.

    Raises UserError saying what differs when the folder holds a trace with another header.
    """

    def __init__(self, folder: Path | str, header: TraceHeader, shard: int = 0) -> None:
        self.folder = Path(folder)
        self.header = header
        self._sealed = header.to_bytes()
        self._index = self.folder / (f"chunks-{shard}.jsonl" if shard else "chunks.jsonl")
        make_folder(self.folder)
        self._claim(shard)
        _drop_incomplete_line(self._index)
        self._finished = {e.chunk: e for e in read_index(self.folder, self._sealed)}

    @property
    def positions(self) -> int:
        """The number of positions recorded so far."""
        return sum(entry.positions for entry in self._finished.values())

    def finished(self, chunk: int) -> ChunkEntry | None:
        """The entry of a prompt that is recorded already, by its number; else None."""
        return self._finished.get(chunk)

    def append(
        self,
        chunk: int,
        prompt_id: str,
        domain: str,
        context: np.ndarray,
        draft_logits: torch.Tensor,
        verifier_logits: torch.Tensor,
        *,
        ended: bool = False,
        cut: dict[str, dict[str, float]] | None = None,
    ) -> ChunkEntry:
        """Store the positions of one prompt.

        context : token ids of the text. The logits are [positions, V], and row i predicts
        context[len(context) − positions + i]: the last row predicts the last token.

        Raises ValueError for shapes that do not fit or a prompt that is recorded already, and
        UserError naming the row for logits that cannot be stored.
        """
        if chunk in self._finished:
            raise ValueError(f"chunk {chunk} is recorded already")
        first = self._first(chunk, context, draft_logits, verifier_logits)
        arrays = {
            "draft": to_storage(draft_logits, self.header.dtype, f"{prompt_id}: draft logits"),
            "verifier": to_storage(
                verifier_logits, self.header.dtype, f"{prompt_id}: verifier logits"
            ),
            "context": np.asarray(context, dtype="<i4"),
        }
        positions = len(draft_logits)
        entry = ChunkEntry(chunk, prompt_id, domain, positions, first, ended, {}, cut or {})
        for part in PARTS:
            path = self.folder / entry.file_name(part)
            write_whole(
                path, lambda file, part=part: np.save(file, arrays[part], allow_pickle=False)
            )
            entry.files[part] = sha256_file(path)
        self._list(entry)
        return entry

    def _claim(self, shard: int) -> None:
        """Write the header, or make sure that the one that is there is the same.

        A header without any chunk, of a run that failed before its first, is replaced.
        """
        path, empty = self.folder / HEADER_FILE, not any(self.folder.glob("chunk*"))
        if path.is_file():
            found = TraceHeader.from_bytes(path.read_bytes(), path)
            different = found.differences(self.header)
            if different and not empty:
                raise UserError(f"{self.folder} holds another trace: {'; '.join(different)}")
            if not different:
                return
        elif not empty:
            raise UserError(f"{self.folder} holds chunks without a {HEADER_FILE}")
        write_whole(path, lambda file: file.write(self._sealed), tag=f"part{shard}")

    def _first(self, chunk: int, context, draft: torch.Tensor, verifier: torch.Tensor) -> int:
        """The index in the context of row 0's input, after a check of all shapes."""
        shape = (len(draft), self.header.vocabulary)
        if tuple(draft.shape) != shape or tuple(verifier.shape) != shape or not len(draft):
            raise ValueError(
                f"chunk {chunk}: logits must be [positions ≥ 1, {self.header.vocabulary}] alike, "
                f"got draft {list(draft.shape)} and verifier {list(verifier.shape)}"
            )
        first = len(context) - len(draft) - 1
        if first < 0:
            raise ValueError(
                f"chunk {chunk}: {len(draft)} rows need a context of {len(draft) + 1} tokens "
                f"or more, got {len(context)}"
            )
        return first

    def _list(self, entry: ChunkEntry) -> None:
        """Append the entry to the index in one write, and make it durable."""
        created = not self._index.exists()
        with self._index.open("ab", buffering=0) as file:
            file.write(entry.to_line(self._sealed))
            os.fsync(file.fileno())
        if created:
            sync_folder(self.folder)
        self._finished[entry.chunk] = entry


def _drop_incomplete_line(index: Path) -> None:
    """Cut off a last line without its end: the write was interrupted, the prompt is not done."""
    if not index.is_file():
        return
    data = index.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(index, len(whole))

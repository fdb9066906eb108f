"""Write a trace prompt by prompt, so that a kill at any moment loses no finished prompt.

The order is what makes it safe: the files of a prompt are written under temporary names,
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
from real_models.traces.format import (
    HEADER_FILE,
    UNKNOWN,
    ChunkEntry,
    TraceHeader,
    to_storage,
)
from real_models.traces.listing import Listed, check_listed
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
        context: np.ndarray | None,
        draft_logits: torch.Tensor,
        verifier_logits: torch.Tensor,
        *,
        ended: bool = False,
        cut: dict[str, dict[str, float]] | None = None,
        headless: bool = False,
    ) -> ChunkEntry:
        """Store the positions of one prompt.

        context  : token ids of the text, or None where the header's contexts are `unknown`. The
                   logits are [positions, V], and row i predicts context[len(context) − positions
                   + i]: the last row predicts the last token.
        headless : nothing is known of the text before the token that row 0 predicts, with which
                   the context begins.

        Raises ValueError for shapes that do not fit or a prompt that is recorded already, and
        UserError naming the row for logits that cannot be stored.
        """
        self._check_logits(chunk, draft_logits, verifier_logits)
        given = {"draft": draft_logits, "verifier": verifier_logits}
        arrays = {
            model: to_storage(logits, self.header.dtype, f"{prompt_id}: {model} logits")
            for model, logits in given.items()
        }
        first = self._first(chunk, context, len(draft_logits), headless)
        entry = ChunkEntry(chunk, prompt_id, domain, len(draft_logits), first, ended, {}, cut or {})
        return self._store(entry, arrays, context)

    def append_listed(
        self,
        chunk: int,
        prompt_id: str,
        domain: str,
        context: np.ndarray | None,
        draft: Listed,
        verifier: Listed,
        *,
        ended: bool = False,
        headless: bool = False,
    ) -> ChunkEntry:
        """Store the positions of one prompt, of which the likeliest tokens are known.

        The other arguments are those of `append`.

        Raises ValueError for shapes that do not fit or a prompt that is recorded already, and
        UserError naming text, row and value for rows that are no such list.
        """
        width, arrays = (self.header.listed or 0) + 1, {}
        for model, listed in (("draft", draft), ("verifier", verifier)):
            shape = (len(draft.tokens), width)
            if not shape == listed.tokens.shape == listed.logprobs.shape or not shape[0]:
                raise ValueError(
                    f"chunk {chunk}: {model} must be lists [positions ≥ 1, {width}] alike, got "
                    f"{list(listed.tokens.shape)} and {list(listed.logprobs.shape)}"
                )
            check_listed(listed, lambda row, m=model: f"text {prompt_id!r}, row {row}: the {m}")
            arrays[model] = listed.logprobs.astype("<f8")
            arrays[f"{model}_tokens"] = listed.tokens.astype("<i4")
        positions = len(draft.tokens)
        first = self._first(chunk, context, positions, headless)
        entry = ChunkEntry(chunk, prompt_id, domain, positions, first, ended, {})
        return self._store(entry, arrays, context)

    def _store(
        self, entry: ChunkEntry, arrays: dict[str, np.ndarray], context: np.ndarray | None
    ) -> ChunkEntry:
        """Write the files of a prompt, then its line."""
        if entry.chunk in self._finished:
            raise ValueError(f"chunk {entry.chunk} is recorded already")
        if context is not None:
            arrays["context"] = np.asarray(context, dtype="<i4")
        for part in self.header.parts:
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

    def _check_logits(self, chunk: int, draft: torch.Tensor, verifier: torch.Tensor) -> None:
        """Raise ValueError unless both are [positions, V] and the trace has whole rows."""
        shape = (len(draft), self.header.vocabulary)
        if self.header.listed is not None:
            raise ValueError(f"chunk {chunk}: the header lists {self.header.listed} tokens a row")
        if tuple(draft.shape) != shape or tuple(verifier.shape) != shape or not len(draft):
            raise ValueError(
                f"chunk {chunk}: logits must be [positions ≥ 1, {self.header.vocabulary}] alike, "
                f"got draft {list(draft.shape)} and verifier {list(verifier.shape)}"
            )

    def _first(self, chunk: int, context: np.ndarray | None, positions: int, headless: bool) -> int:
        """The index in the context of row 0's input; −1 where it is not in it."""
        if (context is None) != (self.header.contexts == UNKNOWN):
            raise ValueError(f"chunk {chunk}: the header's contexts are {self.header.contexts!r}")
        if context is None or (headless and len(context) == positions):
            return -1
        first = len(context) - positions - 1
        if first < 0 or headless:
            raise ValueError(
                f"chunk {chunk}: {positions} rows need a context of "
                f"{positions if headless else f'{positions + 1} tokens or more'}, "
                f"got {len(context)}"
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

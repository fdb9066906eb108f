"""What a recorded trace looks like on disk.

    DIR/header.json               what was recorded: models, tokenizer, settings, versions
    DIR/chunks.jsonl              one line per finished prompt, written after its files are safe
    DIR/chunk-00000.draft.npy     [positions, V] logits of the draft
    DIR/chunk-00000.verifier.npy  [positions, V] logits of the verifier, same positions
    DIR/chunk-00000.context.npy   [first + positions + 1] the token ids of the text
    DIR/manifest.json             wall-clock facts of the last run; no part of the record

Where only the likeliest tokens of each row are known (`listed` in the header, see `listing`):

    DIR/chunk-00000.draft.npy          [positions, K + 1] log-probabilities, float64
    DIR/chunk-00000.draft_tokens.npy   [positions, K + 1] the ids they belong to

Row i of a chunk predicts the token after its input: it was computed from `context[: first+i+1]`
and the token it predicts is `context[first+i+1]`. Logits are stored, not probabilities, so that
every temperature and filter can be applied later; a mask stays −∞. Where a text is known from the
token of row 0 on, `first` is −1; where it is not known at all (`contexts` is `unknown`), too, and
there is no file of it.

Each index line carries the digests of its files, and a digest of its own that covers the header
too, so that neither an altered file, nor an altered line, nor a line from another trace passes.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from real_models.errors import UserError
from sim.checks import shorten

__all__ = ["STORED_DTYPES", "UNKNOWN", "ChunkEntry", "TraceHeader", "from_storage", "to_storage"]

FORMAT = 1
HEADER_FILE = "header.json"
UNKNOWN = "unknown"
"""The contexts of rows whose texts nobody told."""

# numpy has no bfloat16: its bit patterns are kept as 16-bit integers.
STORED_DTYPES = {
    "float32": (torch.float32, np.dtype("<f4")),
    "float16": (torch.float16, np.dtype("<f2")),
    "bfloat16": (torch.bfloat16, np.dtype("<u2")),
    "float64": (torch.float64, np.dtype("<f8")),
}


@dataclass(frozen=True)
class TraceHeader:
    """Everything that decides the contents of a trace, and nothing that does not.

    contexts      : whose text the positions lie on: `verifier`, `draft`, `given` or `unknown`.
    sampling      : temperature, top_k, top_p with which that text was sampled; None if given.
    positions     : asked for per prompt; a text that ended early has fewer.
    prompts       : number of prompts; a trace with fewer chunks is not finished.
    vocabulary    : V, the columns stored; logit_widths are the models' own.
    compute_dtype : of the forward passes; dtype: of the stored logits.
    device        : type of the device; CPU and CUDA differ in the last digits.
    listed        : K, where of each row only the likeliest tokens are known, at most K of them;
                    None, and not written, where all V are.
    """

    pair: str
    verifier: str
    verifier_revision: str
    draft: str
    draft_revision: str
    tokenizer_hash: str
    contexts: str
    sampling: dict[str, float | int | None] | None
    seed: int
    positions: int
    prompts: int
    prompts_sha256: str
    vocabulary: int
    logit_widths: dict[str, int]
    end_tokens: list[int]
    compute_dtype: str = "float32"
    dtype: str = "float32"
    device: str = "cpu"
    versions: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT
    listed: int | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that each chunk has a file of."""
        models = ("draft", "verifier")
        lists = () if self.listed is None else tuple(f"{model}_tokens" for model in models)
        return (*models, *lists, *(() if self.contexts == UNKNOWN else ("context",)))

    def to_bytes(self) -> bytes:
        """The JSON document of header.json; equal headers give equal bytes."""
        values = asdict(self)
        if self.listed is None:
            del values["listed"]
        return (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: Path) -> Self:
        """The header in a document, or a UserError naming the file and what is wrong in it."""
        values = _json_object(data, str(where))
        if values.get("format") != FORMAT:
            raise UserError(
                f"{where}: format {shorten(repr(values.get('format')))} is not {FORMAT}"
            )
        names = fields_of(cls) - {"listed"}
        if values.keys() - {"listed"} != names:
            wrong = sorted((values.keys() - {"listed"}) ^ names)
            raise UserError(f"{where}: missing or unknown fields {wrong}")
        if not isinstance(values["dtype"], str) or values["dtype"] not in STORED_DTYPES:
            found = shorten(repr(values["dtype"]))
            raise UserError(f"{where}: dtype {found} is not one of {[*STORED_DTYPES]}")
        for name, least in (("vocabulary", 1), ("positions", 1), ("prompts", 0), ("listed", 1)):
            value = values.get(name, least)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
                found = shorten(repr(value))
                raise UserError(f"{where}: {name} must be an integer ≥ {least}, got {found}")
        return cls(**values)

    def differences(self, other: Self) -> list[str]:
        """What differs from another header, each as `field: this != other`."""
        ours, theirs = (json.loads(json.dumps(asdict(header))) for header in (self, other))
        return [f"{k}: {ours[k]!r} != {theirs[k]!r}" for k in ours if ours[k] != theirs[k]]


@dataclass(frozen=True)
class ChunkEntry:
    """One line of the index: one prompt and the files with its positions.

    first : index in the context of the input token of row 0.
    ended : whether the text stopped at an end token before all positions were reached.
    cut   : by model whose logits are wider than the vocabulary, the `largest` and `mean` share of
            its distributions on the columns that are cut off; not written where there is none.
    """

    chunk: int
    prompt_id: str
    domain: str
    positions: int
    first: int
    ended: bool
    files: dict[str, str]
    cut: dict[str, dict[str, float]] = field(default_factory=dict)

    def file_name(self, part: str) -> str:
        """The name of the file with the `part` of this chunk."""
        return f"chunk-{self.chunk:05d}.{part}.npy"

    def to_line(self, header: bytes) -> bytes:
        """The index line, newline included, sealed with a digest over header and line."""
        values = asdict(self)
        if not self.cut:
            del values["cut"]
        return (_canonical(values | {"sha256": _seal(header, values)}) + "\n").encode()

    @classmethod
    def from_line(cls, line: bytes, header: bytes, where: str) -> Self:
        """The entry of an index line, or a UserError naming the line and its fault."""
        values = _json_object(line, where)
        seal = values.pop("sha256", None)
        chunk = values.get("chunk")
        if seal != _seal(header, values):
            raise UserError(f"{where}: the entry of chunk {chunk} or the header has been altered")
        if not fields_of(cls) - {"cut"} <= values.keys() <= fields_of(cls):
            raise UserError(f"{where}: the entry of chunk {chunk} has missing or unknown fields")
        return cls(**values)


def fields_of(record: type) -> set[str]:
    """The names of a dataclass's fields."""
    return {entry.name for entry in fields(record)}


def to_storage(logits: torch.Tensor, dtype: str, what: str) -> np.ndarray:
    """Logits [positions, V] as the little-endian array that is stored.

    Raises UserError naming the row when a logit is NaN or +∞, a row has no finite logit, or a
    finite logit leaves the range of the stored dtype (65,504 for float16).
    """
    kind, storage = STORED_DTYPES[dtype]
    stored = logits.detach().to("cpu").to(kind)
    faults = {
        "a NaN": logits.isnan(),
        "a +inf": logits == torch.inf,
        f"a logit out of range for {dtype}": (stored.isinf() & logits.isfinite().cpu()),
        "no finite logit": (logits == -torch.inf).all(dim=-1, keepdim=True),
    }
    for fault, found in faults.items():
        if bool(found.any()):
            raise UserError(f"{what}: row {int(found.any(dim=-1).nonzero()[0, 0])} has {fault}")
    bits = stored.view(torch.uint16) if kind == torch.bfloat16 else stored
    return bits.numpy().astype(storage, copy=False)


def from_storage(array: np.ndarray, dtype: str) -> torch.Tensor:
    """A stored array as a tensor of the recorded dtype; always a copy in memory."""
    kind, storage = STORED_DTYPES[dtype]
    copied = torch.from_numpy(np.array(array, dtype=storage.newbyteorder("="), order="C"))
    return copied.view(kind)


def _canonical(values: dict[str, Any]) -> str:
    """The one spelling of a JSON object that digests are taken of."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def _seal(header: bytes, values: dict[str, Any]) -> str:
    """sha256 over the header's bytes and the canonical object."""
    return hashlib.sha256(header + _canonical(values).encode()).hexdigest()


def _json_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `data`, or a UserError naming where it should have been."""
    try:
        values = json.loads(data)
    except RecursionError:
        raise UserError(f"{where}: not a JSON object of this form (nested too deeply)") from None
    except ValueError as error:
        raise UserError(f"{where}: not a JSON object ({error})") from None
    if not isinstance(values, dict):
        raise UserError(f"{where}: not a JSON object")
    return values

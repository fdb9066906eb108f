"""A trace made of arrays: rows of a draft and a verifier that were computed elsewhere.

    from real_models.traces import write_trace
    write_trace("traces/mine", draft=p, verifier=q, kind="probabilities", prompts=labels)

Any positions may be in it, in any order, as long as row i of both arrays belongs to the same one.
"""

import hashlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from real_models.errors import UserError
from real_models.traces.format import STORED_DTYPES, UNKNOWN, TraceHeader
from real_models.traces.reader import Trace, open_trace
from real_models.traces.writer import TraceWriter
from sim.checks import shorten
from sim.jobs.files import json_text
from sim.tables.tradeoff import cluster_labels
from theory.arrays import SUM_TOLERANCE, refuse_unfit

__all__ = ["KINDS", "write_trace"]

KINDS = ("logits", "probabilities", "logprobs")
"""What the entries of rows may be."""
_SLAB = 1 << 24  # entries that are looked at in one go


class _Prompt(NamedTuple):
    """One prompt: its name, the numbers of its rows, and its text where that is known."""

    name: str
    rows: list[int]
    context: np.ndarray | None


def write_trace(
    folder: Path | str,
    *,
    draft: Any,
    verifier: Any,
    kind: str = "logits",
    prompts: Any = None,
    contexts: Sequence[Sequence[int]] | None = None,
    name: str = "arrays",
) -> Trace:
    """Write rows of a draft and a verifier as a trace that is measured like a recorded one.

    draft, verifier : [N, V], numpy or torch, floating. Row i of both predicts the same token.
    kind            : what the entries are, one of KINDS. Logits have any scale, and −∞ is a mask;
                      of probabilities, and of log-probabilities, each row must sum to 1 within
                      1e−7 (float64) or 1e−4 (float32). Probabilities are stored as log p in
                      float64, whose softmax gives them back to rounding; the others as they are.
    prompts         : labels [N]: rows of one label are clustered in every standard error. None
                      makes each row a cluster of its own.
    contexts        : token ids of the text of each prompt, prompts in the order in which their
                      labels first appear; its rows predict the last tokens of it. None: unknown.
    name            : what the tables call the pair.

    An interrupted call that is repeated goes on with the finished prompts. Raises UserError,
    before anything is written, for arrays that do not go together and naming array, row and value
    of the first row that is no distribution; and for a folder that holds another trace.
    """
    if kind not in KINDS:
        raise UserError(f"kind {kind!r} is not one of {', '.join(KINDS)}")
    arrays = _alike({"draft": draft, "verifier": verifier})
    digests = {model: _checked(model, rows, kind) for model, rows in arrays.items()}
    vocabulary = arrays["draft"].shape[1]
    texts = _prompts(prompts, contexts, *arrays["draft"].shape)
    told = [[text.name, text.rows, None if text.context is None else text.context.tolist()]
            for text in texts]  # fmt: skip
    header = TraceHeader(
        pair=name,
        verifier="verifier",
        verifier_revision=f"sha256:{digests['verifier']}",
        draft="draft",
        draft_revision=f"sha256:{digests['draft']}",
        tokenizer_hash="",
        contexts=UNKNOWN if contexts is None else "given",
        sampling=None,
        seed=0,
        positions=max(len(text.rows) for text in texts),
        prompts=len(texts),
        prompts_sha256=hashlib.sha256(json_text(told).encode()).hexdigest(),
        vocabulary=vocabulary,
        logit_widths=dict.fromkeys(("draft", "verifier"), vocabulary),
        end_tokens=[],
        dtype=_stored_dtype(arrays, kind),
        versions={n: importlib.metadata.version(n) for n in ("numpy", "torch")},
    )
    writer = TraceWriter(folder, header)
    for chunk, text in enumerate(texts):
        if writer.finished(chunk) is None:
            logits = [_logits(rows, text.rows, kind) for rows in arrays.values()]
            writer.append(chunk, text.name, "all", text.context, *logits)
    return open_trace(folder, verify=False)


def _alike(given: dict[str, Any]) -> dict[str, Any]:
    """The arrays, both [N ≥ 1, V] and of floating numbers; UserError names the one that is not."""
    for model, rows in given.items():
        try:
            refuse_unfit(model, rows)
        except ValueError as error:
            raise UserError(str(error)) from None
        shape = list(getattr(rows, "shape", ()))
        if len(shape) != 2 or 0 in shape:
            raise UserError(f"{model} must be [N ≥ 1, V ≥ 1], got the shape {shape}")
        if _dtype(rows) not in STORED_DTYPES:
            raise UserError(
                f"{model} must hold one of {', '.join(STORED_DTYPES)}, got {rows.dtype}"
            )
    shapes = [list(rows.shape) for rows in given.values()]
    if shapes[0] != shapes[1]:
        raise UserError(f"draft is {shapes[0]} and verifier {shapes[1]}; rows must go together")
    return given


def _checked(model: str, rows: Any, kind: str) -> str:
    """The digest of rows, or a UserError naming the first that is no distribution."""
    if kind != "logits" and _dtype(rows) not in SUM_TOLERANCE:
        raise UserError(f"{model}: {kind} must be float32 or float64, got {_dtype(rows)}")
    digest = hashlib.sha256(f"{kind} {_dtype(rows)} {list(rows.shape)}".encode())
    step = max(1, _SLAB // rows.shape[1])
    for start in range(0, len(rows), step):
        slab = _tensor(rows[start : start + step])
        digest.update(slab.contiguous().view(torch.uint8).numpy().tobytes())
        fault = _fault(slab.double(), kind, SUM_TOLERANCE.get(_dtype(rows), 0.0))
        if fault is not None:
            raise UserError(f"{model} row {start + fault[0]} {fault[1]}")
    return digest.hexdigest()


def _fault(rows: torch.Tensor, kind: str, tolerance: float) -> tuple[int, str] | None:
    """The first row that is no distribution, and why."""
    highest = rows.amax(dim=-1)  # nan where there is one
    total = rows.exp().sum(-1) if kind == "logprobs" else rows.sum(-1)
    wrong = ~highest.isfinite()
    if kind != "logits":
        wrong |= ~((total - 1.0).abs() <= tolerance)
    if kind == "probabilities":
        wrong |= rows.amin(dim=-1) < 0
    if not bool(wrong.any()):
        return None
    row = int(wrong.nonzero()[0, 0])
    if not bool(highest[row].isfinite()):
        return row, f"has the largest entry {float(highest[row])}"
    if kind == "probabilities" and float(rows[row].amin()) < 0:
        token = int(rows[row].argmin())
        return row, f"has the negative entry {float(rows[row, token])!r} at token {token}"
    return row, (
        f"sums to {float(total[row]):.9g}, not to 1 within {tolerance:g}; nothing is renormalised"
    )


def _prompts(prompts: Any, contexts: Any, count: int, vocabulary: int) -> list[_Prompt]:
    """The prompts in the order in which their labels first appear."""
    try:
        labels = range(count) if prompts is None else cluster_labels(prompts, count)
    except ValueError as error:
        raise UserError(str(error).replace("clusters", "prompts", 1)) from None
    rows: dict[Any, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    names = [f"row-{row:05d}" for row in labels] if prompts is None else [str(n) for n in rows]
    if len(set(names)) < len(names):
        raise UserError("prompts: two labels read alike; make them numbers, or texts, throughout")
    texts = list(_contexts(contexts, list(rows.values()), vocabulary))
    return [_Prompt(*known) for known in zip(names, rows.values(), texts)]


def _contexts(
    contexts: Any, groups: Sequence[list[int]], vocabulary: int
) -> Iterator[np.ndarray | None]:
    """The text of each prompt, or None; UserError names the prompt whose text is none."""
    if contexts is None:
        yield from [None] * len(groups)
        return
    if len(contexts) != len(groups):
        raise UserError(f"contexts must be of {len(groups)} prompts, got {len(contexts)}")
    for number, (given, rows) in enumerate(zip(contexts, groups)):
        ids = np.asarray(given)
        where = f"contexts: prompt {number}"
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise UserError(f"{where}: must be token ids, got {shorten(repr(given))}")
        outside = ids[(ids < 0) | (ids >= vocabulary)]
        if len(outside):
            raise UserError(f"{where}: token id {outside[0]} is outside the {vocabulary} columns")
        if len(ids) <= len(rows):
            raise UserError(f"{where}: {len(rows)} rows need {len(rows) + 1} tokens or more, "
                            f"got {len(ids)}")  # fmt: skip
        yield ids


def _logits(rows: Any, chosen: list[int], kind: str) -> torch.Tensor:
    """The chosen rows as logits in memory."""
    found = _tensor(rows[chosen])
    return found.double().log() if kind == "probabilities" else found


def _stored_dtype(arrays: dict[str, Any], kind: str) -> str:
    """The dtype that keeps the rows of both models as they are."""
    dtypes = {_dtype(rows) for rows in arrays.values()}
    return dtypes.pop() if kind != "probabilities" and len(dtypes) == 1 else "float64"


def _dtype(rows: Any) -> str:
    return getattr(rows.dtype, "name", str(rows.dtype)).removeprefix("torch.")


def _tensor(rows: Any) -> torch.Tensor:
    """Rows as a tensor on the CPU, in native byte order; those of a file are copied."""
    if isinstance(rows, torch.Tensor):
        return rows.detach().cpu()
    array = np.asarray(rows)
    return torch.from_numpy(
        array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable)
    )

"""A small trace of random logits, the same as lists, and what measuring it leaves in a folder."""

from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from real_models.traces.format import TraceHeader
from real_models.traces.listing import Listed
from real_models.traces.reader import open_trace
from real_models.traces.writer import TraceWriter

V = 24
TOP = 8
PROMPTS = [("a", "prose", 5), ("b", "code", 3), ("c", "prose", 6), ("d", "code", 1)]
LABELS = ["T=1", "T=0.6 top-p 0.95 top-k 20", "T=1 greedy-draft"]
TABLES = ("tradeoff", "frontier", "groups", "quantiles")
FEW = ["--rules", "sps", "cactus", "cascade_token_v1", "typical", "mentored"]
VALUES = ["--values", "0.3", "cactus=0.01,0.5"]
SMALL = [*FEW, *VALUES, "--settings", *LABELS, "--device", "cpu", "--jobs", "1"]


def record(folder, prompts=PROMPTS, seed=0, **changes):
    """A trace of random logits; one of them is a mask."""
    header = {
        "pair": "tiny",
        "verifier": "v",
        "verifier_revision": "1",
        "draft": "d",
        "draft_revision": "2",
        "tokenizer_hash": "00",
        "contexts": "given",
        "sampling": None,
        "seed": 0,
        "positions": 6,
        "prompts": len(PROMPTS),
        "prompts_sha256": "11",
        "vocabulary": V,
        "logit_widths": {"draft": V, "verifier": V},
        "end_tokens": [0],
    }
    writer = TraceWriter(folder, TraceHeader(**(header | changes)))
    width = writer.header.vocabulary
    for chunk, (name, domain, rows) in enumerate(prompts):
        if writer.finished(chunk) is None:
            random = torch.Generator().manual_seed(100 * seed + chunk)
            verifier = 2 * torch.randn(rows, width, generator=random)
            draft = verifier + torch.randn(rows, width, generator=random)
            draft[0, chunk] = -torch.inf
            writer.append(chunk, name, domain, np.arange(rows + 2), draft, verifier)
    return folder


def listed_of(logits, own, top=TOP):
    """What a server that lists `top` tokens tells of rows of logits, and of the text's own."""
    logprobs = logits.double().log_softmax(-1)
    likely = logprobs.topk(top, dim=-1)
    tokens = np.full((len(logits), top + 1), -1)
    values = np.full((len(logits), top + 1), -np.inf)
    tokens[:, :-1], values[:, :-1] = likely.indices, likely.values
    for row, token in enumerate(own):
        if token not in tokens[row]:
            tokens[row, -1], values[row, -1] = token, logprobs[row, token]
    return Listed(tokens, values, logits.shape[-1])


def listed_trace(source, folder, top=TOP):
    """The trace of whole rows, as lists of their likeliest tokens."""
    trace = open_trace(source)
    writer = TraceWriter(folder, replace(trace.header, listed=top))
    for chunk in trace.chunks:
        draft, verifier = (
            listed_of(chunk.logits(part), chunk.next_tokens, top) for part in ("draft", "verifier")
        )
        entry = chunk.entry
        writer.append_listed(
            entry.chunk, entry.prompt_id, entry.domain, chunk.context, draft, verifier
        )
    return folder


def tables(out):
    return {name: pd.read_parquet(out / f"{name}.parquet") for name in TABLES}


def table_bytes(out):
    return {name: (out / f"{name}.parquet").read_bytes() for name in TABLES}


def parts_of(out):
    """The finished parts, each with the time at which it was written."""
    folders = [path for path in (out / ".cells").iterdir() if path.is_dir()]
    return {path.name: path.stat().st_mtime_ns for path in folders if path.suffix != ".part"}

"""The parts of a measurement: one prompt of a trace under one sampling setting each.

A part is a pure function of recorded logits and settings; it is computed by `measure_part`, kept on
disk when finished, and never computed again by a run that is resumed.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch

from real_models.laws.distributions import SamplingSettings, native
from real_models.measuring.stored import frontier_to_frame
from real_models.traces.reader import Chunk, Trace
from sim.jobs.engine import Frames
from sim.tables.grid import Setting
from sim.tables.tradeoff import MEASURES, Tradeoff
from theory import CorpusFrontier, Pair

__all__ = [
    "Part",
    "Resources",
    "chunks_digest",
    "make_parts",
    "measure_part",
    "positions_of",
    "prepared_pairs",
    "trace_digest",
]

# float64 arrays alive at once, for a read batch [rows, V] (distributions before and after filters,
# and what the filters sort) and for a batch of rules [rows, tokens in the support].
_READ_ARRAYS = 24
_RULE_ARRAYS = 64
# Entries of a batch of rules on a CPU: smaller ones cost overhead per row, larger ones leave the
# cache. At V = 49,152 three rows at a time take a fifth less time than one, and than five.
_CACHE_ENTRIES = 150_000


@dataclass(frozen=True)
class Resources:
    """What to measure with.

    device       : as torch names it.
    memory_limit : bytes for the arrays of one batch, which holds at least one position.
    """

    device: str
    memory_limit: int


@dataclass(frozen=True)
class Part:
    """The positions of one prompt under one sampling setting.

    Its text names everything that decides the results and nothing else: parts of equal text are
    the same part, wherever the trace lies and however it is batched.
    """

    digest: str
    sampling: SamplingSettings
    kind: str  # of the device: CPU and CUDA differ in the last digits
    chunk: Chunk = field(repr=False)
    resources: Resources = field(repr=False)


def trace_digest(trace: Trace) -> str:
    """The digest that distinguishes one recording from another, whatever is finished of it."""
    return hashlib.sha256(trace.header.to_bytes()).hexdigest()


def chunks_digest(trace: Trace) -> str:
    """The digest of a recording with what is finished of it: header, and digests of all files."""
    header = trace.header.to_bytes()
    lines = (chunk.entry.to_line(header) for chunk in trace.chunks)
    return hashlib.sha256(b"".join(lines)).hexdigest()


def make_parts(
    trace: Trace,
    samplings: Sequence[SamplingSettings],
    settings: Sequence[Setting],
    resources: Resources,
) -> dict[str, tuple[Part, tuple[Setting, ...]]]:
    """All parts by name, prompt by prompt, each with the rules and values to measure."""
    header, kind = trace.header.to_bytes(), torch.device(resources.device).type
    parts = {}
    for chunk in trace.chunks:
        # The index line is sealed with the header and holds the digests of the chunk's files.
        digest = hashlib.sha256(chunk.entry.to_line(header)).hexdigest()
        for sampling in samplings:
            name = f"{chunk.entry.chunk:05d}-{sampling.label.replace(' ', '-')}"
            parts[name] = (Part(digest, sampling, kind, chunk, resources), tuple(settings))
    return parts


def measure_part(part: Part, settings: tuple[Setting, ...]) -> Frames:
    """Measure every setting at every position of a part, exactly.

    Three frames in the order of the positions: "positions" (sampling, prompt, domain, position: one
    row each), "measured" (MEASURES: one row per position and setting, settings in their order) and
    "frontier" (as in `frontier_to_frame`).
    """
    tradeoff = Tradeoff(settings, "", part.sampling.label, part.chunk.header.vocabulary)
    corpus, pieces = CorpusFrontier("kl"), []
    for pair in prepared_pairs(part):
        measured = tradeoff.measure(pair)
        # [measures, settings, R] → [R, settings, measures]
        pieces.append(np.stack([measured[name] for name in MEASURES]).transpose(2, 1, 0))
        corpus.add(pair)
    results = np.concatenate(pieces).reshape(-1, len(MEASURES))
    return {
        "positions": positions_of(part),
        "measured": pd.DataFrame(results, columns=list(MEASURES)),
        "frontier": frontier_to_frame(corpus),
    }


def positions_of(part: Part) -> pd.DataFrame:
    """Where each result of a part is from: sampling, prompt, domain, position."""
    entry = part.chunk.entry
    labels = {
        "sampling": part.sampling.label,
        "prompt": entry.prompt_id,
        "domain": entry.domain,
        "position": np.arange(entry.positions),
    }
    return pd.DataFrame(labels)


def prepared_pairs(part: Part) -> Iterator[Pair]:
    """The positions of a part in order, as prepared pairs of bounded size."""
    for rows in _rows(part):
        support = int(((rows["p"] > 0) | (rows["q"] > 0)).sum(-1).max())
        entries = part.resources.memory_limit // (8 * _RULE_ARRAYS)
        if part.kind == "cpu":
            entries = min(entries, _CACHE_ENTRIES)
        step = max(1, entries // support)
        for start in range(0, len(rows["p"]), step):
            batch = {name: native(whole[start : start + step]) for name, whole in rows.items()}
            yield Pair.prepare(**batch)


def _rows(part: Part) -> Iterator[Mapping[str, torch.Tensor]]:
    """Draft and verifier rows p, q [R, V] of a part; p_raw, q_raw where these are not the softmax.

    p is what the draft proposes from, which a greedy one does at its likeliest token. Of rows that
    list their likeliest tokens the setting must be one that the lists decide.
    """
    chunk, sampling, plain = part.chunk, part.sampling, SamplingSettings()
    proposes = {"draft": sampling.draft_probabilities, "verifier": sampling.probabilities}
    step = max(1, part.resources.memory_limit // (8 * chunk.header.vocabulary * _READ_ARRAYS))
    for start in range(0, chunk.positions, step):
        rows = {}
        for letter, model in (("p", "draft"), ("q", "verifier")):
            logits, raw = _logits(chunk, model, start, start + step)
            on = part.resources.device
            rows[letter] = proposes[model](logits.to(on), name=f"{model} logits")
            if sampling != plain:
                rows[f"{letter}_raw"] = plain.probabilities(raw.to(on), name=f"{model} logits")
        yield rows


def _logits(chunk: Chunk, model: str, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [rows, V] for the settings, and those for the distribution before filters."""
    if chunk.header.listed is None:
        logits = chunk.logits(model, start, stop)
        return logits, logits
    listed = chunk.listed(model, start, stop)
    return listed.logits_of_the_list(), listed.logits_of_an_even_rest()

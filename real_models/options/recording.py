"""What the command lines share that read a recorded trace: settings, sizes, the trace itself."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.models.logits import CutMass
from real_models.traces.format import ChunkEntry
from real_models.traces.reader import Trace, open_trace
from sim.jobs.manifest import Code

__all__ = [
    "CODE",
    "DEFAULT_SETTINGS",
    "open_recording",
    "parse_bytes",
    "parse_samplings",
    "recorded_cut",
]

CODE = Code(("theory", "sim", "real_models"), ("torch", "transformers"))
"""The code that what is made of a trace depends on."""
DEFAULT_SETTINGS = ("T=1", "T=0.6 top-p 0.95 top-k 20")
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def parse_bytes(text: str) -> int:
    """A number of bytes, like 268435456, 256MiB or 1.5GiB; UserError for anything else or 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    size = float(match[1]) * _UNITS.get(match[2].upper(), math.nan) if match else math.nan
    if not (1 <= size < math.inf):
        raise UserError(f"--memory-limit {text!r} is not a size like 512MiB or 2GiB")
    return int(size)


def parse_samplings(texts: Sequence[str]) -> tuple[SamplingSettings, ...]:
    """The settings of `--settings`; ValueError for one that is bad, or there twice."""
    samplings = tuple(SamplingSettings.parse(text) for text in texts)
    if len(set(samplings)) < len(samplings):
        raise UserError("--settings: a sampling setting was given twice")
    return samplings


def open_recording(folder: Path) -> Trace:
    """A trace with its digests checked; UserError where no prompt of it is finished."""
    trace = open_trace(folder)
    if not trace.chunks:
        raise UserError(f"{folder} holds no finished prompt yet")
    return trace


def recorded_cut(entries: Sequence[ChunkEntry]) -> dict[str, dict[str, float]]:
    """What was cut off the distributions of a model, over all prompts, where there is any."""
    whole = {"draft": CutMass(), "verifier": CutMass()}
    for entry in entries:
        for role, facts in entry.cut.items():
            count = entry.positions
            whole[role].add(CutMass(count, facts["mean"] * count, facts["largest"]))
    return {role: mass.facts() for role, mass in whole.items() if mass.positions}

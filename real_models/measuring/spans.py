"""Where a text is inside a span between two marker tokens: what a model thinks before it answers.

A position is inside where the tokens before it hold the whole begin marker and no end marker since.
The end marker itself is thus predicted inside, and the begin marker outside, as in an engine that
changes its acceptance when a marker has been accepted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from real_models.errors import UserError
from real_models.traces.reader import Trace
from sim.tables.grid import Setting

__all__ = ["OUTSIDE", "Span", "positions_inside", "require_strict", "span_text"]

OUTSIDE = "sps"
"""The rule that stands outside the span where a rule is told of inside it only."""


@dataclass(frozen=True)
class Span:
    """The token ids of the marker that begins it, and of the one that ends it."""

    begin: tuple[int, ...]
    end: tuple[int, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Two texts like `128798` or `44,17400,46`; UserError for anything else."""
        begin, end = map(_ids, texts)
        if begin == end:
            raise UserError(f"--span: both markers are {texts[0]!r}")
        return cls(begin, end)

    def inside(self, tokens: np.ndarray) -> np.ndarray:
        """Whether the token behind each of the first 0 … T tokens is inside, [T + 1]."""
        change = np.zeros(len(tokens) + 1, dtype=np.int8)
        for marker, sign in ((self.begin, 1), (self.end, -1)):
            change[_ends_of(tokens, marker)] = sign
        last = np.maximum.accumulate(np.where(change != 0, np.arange(change.size), 0))
        return change[last] > 0


def _ids(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", text.strip()):
        raise UserError(f"--span: {text!r} is not a token id, or several joined by commas")
    return tuple(int(part) for part in text.split(","))


def _ends_of(tokens: np.ndarray, marker: tuple[int, ...]) -> np.ndarray:
    """How many tokens there are at the end of each occurrence of a marker."""
    if len(tokens) < len(marker):
        return np.zeros(0, dtype=np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(marker))
    return np.flatnonzero((windows == marker).all(axis=-1)) + len(marker)


def positions_inside(trace: Trace, span: Span) -> dict[str, np.ndarray]:
    """By prompt, whether each of its positions is inside.

    Raises UserError where no position is, and where the texts of the trace are not known.
    """
    inside = {
        chunk.entry.prompt_id: span.inside(chunk.context)[chunk.entry.first + 1 : -1]
        for chunk in trace.chunks
    }
    if not any(flags.any() for flags in inside.values()):
        begin = ",".join(map(str, span.begin))
        raise UserError(f"--span: no position of {trace.folder} is behind the marker {begin}")
    return inside


def require_strict(settings: Sequence[Setting]) -> None:
    """Raise UserError where the rule that stands outside a span is not measured."""
    if Setting(OUTSIDE) not in settings:
        raise UserError(f"--span: add {OUTSIDE} to --rules: it stands outside the span")


def span_text(spans: pd.DataFrame) -> str:
    """The table of a span for a terminal: one block per sampling setting, one line per rule."""
    return "\n\n".join(_block(label, rows) for label, rows in spans.groupby("pair", sort=False))


def _block(label: str, rows: pd.DataFrame) -> str:
    counts = rows.drop_duplicates("group").set_index("group")["positions"]
    within, whole = counts["inside"], counts["inside only"]
    head = f"{label}: {within} of {whole} positions are inside the span; acceptance and KL, nats"
    groups = {"inside": "inside", "outside": "outside", "inside only": f"inside, {OUTSIDE} outside"}
    wide = {
        title: _told(rows[rows["group"] == group])
        for group, title in groups.items()
        if group in counts
    }
    table = pd.DataFrame(wide)
    return "\n".join([head, *(f"  {line.rstrip()}" for line in table.to_string().splitlines())])


def _told(rows: pd.DataFrame) -> pd.Series:
    """Acceptance and divergence of each setting by its name."""
    names = [
        rule if not parameter else f"{rule} {value:g}"
        for rule, parameter, value in zip(rows["rule"], rows["parameter"], rows["value"])
    ]
    cells = zip(rows["acceptance"], rows["kl_output_verifier"])
    return pd.Series([f"{accepted:.3f}  {kl + 0.0:.3f}" for accepted, kl in cells], index=names)

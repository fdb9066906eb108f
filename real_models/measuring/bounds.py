"""Bounds of every rule where a trace lists the likeliest tokens alone and all of them count.

At T = 1 without filters what the lists leave open stays open: acceptance and divergences come as
two numbers that hold for every way to spread the rest (`theory.partial_law`), and so does the
frontier, between that of the split and that of the merged rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from real_models.laws.distributions import SamplingSettings
from real_models.measuring.parts import Part, positions_of
from real_models.measuring.stored import frontier_to_frame
from real_models.measuring.tables import Results
from real_models.traces.listing import ROUNDING, Listed
from real_models.traces.reader import Trace
from sim.jobs.engine import Frames
from sim.tables.grid import Setting
from sim.tables.tradeoff import DIVERGENCE_OF, KEYS, MEASURES
from theory import CorpusFrontier, PartialRows, partial_law
from theory.divergences import resolve_divergence

__all__ = [
    "BOUNDED",
    "KINDS",
    "SIDES",
    "BoundedResults",
    "batches",
    "bound_part",
    "left_open",
    "partial_rows",
]

BOUNDED: tuple[str, ...] = ("acceptance", *DIVERGENCE_OF)
"""Measures that have bounds; a column each with `_lower` and `_upper`."""
SIDES = ("lower", "upper")
_ARRAYS = 256  # of [rows, listed tokens] that are alive at once: boxes come in pieces
_ROWS = 256  # more leave the cache
KINDS = {column: resolve_divergence(name) for column, name in DIVERGENCE_OF.items()}


def left_open(trace: Trace, samplings: Sequence[SamplingSettings]) -> list[SamplingSettings]:
    """The settings that a trace of lists bounds and does not decide: T = 1 without filters."""
    listed = trace.header.listed
    if listed is None or listed >= trace.header.vocabulary:
        return []
    return [sampling for sampling in samplings if sampling == SamplingSettings()]


def partial_rows(draft: Listed, verifier: Listed) -> PartialRows:
    """The lists of both models at the same positions, at temperature 1.

    What is not listed has at least ROUNDING: a softmax ends nowhere, whatever the list sums to.
    """
    lists = [(rows.tokens, np.exp(rows.logprobs)) for rows in (draft, verifier)]
    caps = np.exp(draft.least), np.exp(verifier.least)
    return PartialRows.of(*lists, draft.vocabulary, caps=caps, rounding=ROUNDING)


def bound_part(part: Part, settings: tuple[Setting, ...]) -> Frames:
    """Bound every setting at every position of a part.

    Frames in the order of the positions: "positions" as in `measure_part`; "lower" and "upper",
    MEASURES with one row per position and setting, of which those in BOUNDED mean something;
    "frontier lower" and "frontier upper", those of the split and of the merged rows.
    """
    pieces = []
    corpora = {name: CorpusFrontier("kl") for name in SIDES}
    for rows in batches(part):
        # [S, 2, measures, R] → [2, R, S, measures]
        bounds = np.stack([_bounds(setting, rows) for setting in settings])
        pieces.append(bounds.transpose(1, 3, 0, 2))
        for corpus, pair in zip(corpora.values(), (rows.split, rows.merged)):
            corpus.add(pair)
    frames = {f"frontier {name}": frontier_to_frame(corpus) for name, corpus in corpora.items()}
    for name, values in zip(SIDES, np.concatenate(pieces, axis=1)):
        frames[name] = pd.DataFrame(values.reshape(-1, len(MEASURES)), columns=list(MEASURES))
    return {"positions": positions_of(part), **frames}


def batches(part: Part) -> Iterator[PartialRows]:
    """The positions of a part in order, in batches of bounded size."""
    models = ("draft", "verifier")
    width = sum(part.chunk.listed(model, 0, 1).tokens.shape[-1] for model in models)
    step = max(1, min(part.resources.memory_limit // (8 * _ARRAYS * width), _ROWS))
    for start in range(0, part.chunk.positions, step):
        yield partial_rows(*(part.chunk.listed(model, start, start + step) for model in models))


def _bounds(setting: Setting, rows: PartialRows) -> np.ndarray:
    """The two bounds of a setting in every measure at every row, [2, measures, R]."""
    law = partial_law(setting.build(), rows)
    found = {"acceptance": law.acceptance}
    found |= {column: law.divergence(kind) for column, kind in KINDS.items()}
    nothing = np.zeros_like(law.acceptance.lower)
    return np.stack([
        [found[name][side] if name in found else nothing for name in MEASURES] for side in (0, 1)
    ])  # fmt: skip


@dataclass(frozen=True)
class BoundedResults:
    """All finished parts with bounds, joined: the frames of `bound_part` in one order."""

    frames: Frames
    settings: tuple[Setting, ...]
    source: str
    vocab: int

    def table(self) -> pd.DataFrame:
        """One row per setting: KEYS, then of each of BOUNDED the mean lower and upper bound.

        Each with the standard error `_se` of its own mean, clustered by prompt. Then
        `frontier_acceptance_lower` and `_upper`: the most that any rule accepts at the lower mean
        KL(h‖q) on the split rows, and at the upper one on the merged rows.
        """
        sides = [self._side(name).table() for name in SIDES]
        table = sides[0][list(KEYS)].copy()
        for name in (*BOUNDED, "frontier_acceptance"):
            for side, rows in zip(SIDES, sides):
                table[f"{name}_{side}"] = rows[name]
                table[f"{name}_{side}_se"] = rows[f"{name}_se"]
        return table

    def frontier(self) -> pd.DataFrame:
        """The corpus frontiers of the split and of the merged rows, told apart by `bound`."""
        return pd.concat(
            [self._side(name).frontier().assign(bound=name) for name in SIDES], ignore_index=True
        )

    def _side(self, name: str) -> Results:
        """One side of the bounds as if it had been measured."""
        frames = {
            "positions": self.frames["positions"],
            "measured": self.frames[name],
            "frontier": self.frames[f"frontier {name}"],
        }
        return Results(frames, self.settings, self.source, self.vocab)

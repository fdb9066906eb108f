"""Are blocks, candidates and schedules worth it? Tokens of a round at equal divergence of the text.

    python -m benchmarks.rounds            # about ten minutes on one core, after recording

Exact expectations along recorded texts of the verifier (see `paths`): three pairs, two
sampling settings, drafts of 4 and 8 tokens, one, two and four candidates at each place, token by
token and in blocks, and five ways to spend the same divergence: the frontier's clip with one level,
one multiplier or a schedule of multipliers for the places of a round, and the rules `lenience` and
`cactus`. Each way is brought to the same KL per emitted token. Record the texts of a pair with

    python -m real_models.record --pair smollm2-skip3 --out traces/texts-T1/smollm2-skip3 \\
        --prompts real_models/prompts/openings.jsonl
    python -m real_models.record --pair smollm2-skip3 --out traces/texts-truncated/smollm2-skip3 \\
        --prompts real_models/prompts/openings.jsonl --temperature 0.6 --top-p 0.95 --top-k 20
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from benchmarks.equal import PAIRS, SETTINGS
from benchmarks.recorded import read_facts, read_rows, write_rows
from benchmarks.rounds.paths import (
    MULTIPLIERS,
    Drawn,
    Kernel,
    Totals,
    VerifierText,
    rounds,
    scaled_rounds,
    schedule,
)
from real_models.laws.distributions import SamplingSettings
from real_models.measuring.parts import trace_digest
from real_models.traces.reader import Chunk, Trace, open_trace
from sim.commandline import Parser, execute
from sim.jobs.manifest import versions
from sim.jobs.progress import track

__all__ = ["CANDIDATES", "DRAFTS", "FOLDERS", "RESULTS", "TARGETS", "gain", "load_rounds", "main"]

RESULTS = Path(__file__).resolve().parents[1] / "results/rounds.parquet"
FOLDERS = dict(zip(SETTINGS, ("texts-T1", "texts-truncated")))
CANDIDATES = (1, 2, 4)
DRAFTS = (4, 8)
TARGETS = (0.0, 0.02, 0.05, 0.1)
"""KL per emitted token, in nats; 0 is strict sampling."""
RULE_VALUES = {
    "lenience": tuple(np.geomspace(1.0, 0.03, 16)),
    "cactus": (0.0, *np.geomspace(1e-4, 2.0, 16)),
}
SPENDING = ("multiplier", "level", *RULE_VALUES)
LEVELS = np.append(0.0, np.geomspace(0.002, 1.0, 24))
_BASES = MULTIPLIERS[1:45]  # of schedules, whose first places have more
_SCALED = MULTIPLIERS[::3]

Curves = list[Totals]  # one a text


def load_rounds() -> pd.DataFrame:
    """The recorded rows: one per pair, settings, drafts, candidates, way and target."""
    return pd.DataFrame(read_rows(RESULTS))


def gain(way: pd.Series, over: pd.Series) -> tuple[float, float]:
    """By how much `way` has more tokens a round than `over`, and its standard error.

    The error is a jackknife over the texts, which both have in common.
    """
    without = np.array(way["without"]) / np.array(over["without"])
    spread = np.sqrt((len(without) - 1) * np.var(without))
    return float(way["tokens"] / over["tokens"] - 1.0), float(spread)


def measured(trace: Trace, settings: str) -> Iterator[dict[str, Any]]:
    """The rows of one pair at one sampling setting."""
    sampling = SamplingSettings.parse(settings)
    told = f"{trace.header.pair}, {settings}"
    for candidates in CANDIDATES:
        texts = [
            _Text.of(VerifierText.of(p, q, tokens, candidates))
            for tokens, p, q in _texts(track(trace.chunks, told, "text"), sampling)
        ]
        for drafts in DRAFTS:
            long = [text for text in texts if len(text.drawn.u) >= drafts]
            starts = np.array([len(text.drawn.u) - drafts + 1 for text in long])
            for way, curves in _ways(texts, long, drafts):
                for target, tokens, without in _at_targets(curves, starts):
                    yield {
                        "draft": trace.header.pair,
                        "settings": settings,
                        "drafts": drafts,
                        "candidates": candidates,
                        "verification": way[0],
                        "spending": way[1],
                        "target": target,
                        "tokens": tokens,
                        "without": without,
                        "texts": len(long),
                        "rounds": int(starts.sum()),
                        "parameters": {},
                    }


@dataclass(frozen=True)
class _Text:
    """One text without its rows: each way of spending at all its values, and scaled blocks."""

    drawn: Drawn
    kernels: dict[str, Kernel]
    scaled: dict[int, Totals]

    @classmethod
    def of(cls, text: VerifierText) -> Self:
        kernels = {"multiplier": text.by_multiplier(MULTIPLIERS), "level": text.by_level(LEVELS)}
        kernels |= {rule: text.by_rule(rule, values) for rule, values in RULE_VALUES.items()}
        long = (drafts for drafts in DRAFTS if drafts <= len(text.index))
        return cls(text.drawn, kernels, {m: scaled_rounds(text, _SCALED, m) for m in long})


def _texts(chunks: Iterable[Chunk], sampling: SamplingSettings) -> Iterator[tuple[Any, Any, Any]]:
    """Tokens [T] and rows p, q [T, V] of each recorded text."""
    for chunk in chunks:
        p, q = (
            sampling.probabilities(chunk.logits(model), name=f"{model} logits").numpy()
            for model in ("draft", "verifier")
        )
        if len(p):
            yield np.asarray(chunk.next_tokens), p, q


def _ways(
    texts: Sequence[_Text], long: Sequence[_Text], drafts: int
) -> Iterator[tuple[tuple[str, str], Curves]]:
    """(verification, spending) and the totals of each text that is long enough, for every way."""
    shared = [text.kernels["multiplier"] for text in texts]
    means = Kernel(*(np.concatenate(parts) for parts in zip(*shared)))
    strict = np.zeros(drafts, dtype=int)
    places = np.stack([strict, *(schedule(means, base, drafts) for base in _BASES)], axis=-1)
    for verification, spending in product(("token", "block"), (*SPENDING, "schedule")):
        kernel, chosen = ("multiplier", places) if spending == "schedule" else (spending, None)
        yield (
            (verification, spending),
            [rounds(t.drawn, t.kernels[kernel], drafts, verification, chosen) for t in long],
        )
    yield ("block", "scaled"), [text.scaled[drafts] for text in long]


def _at_targets(curves: Curves, starts: np.ndarray) -> Iterator[tuple[float, float, list[float]]]:
    """Tokens a round at each target that the way reaches, and without each of the texts."""
    tokens = np.array([text.tokens for text in curves])
    nats = np.array([text.nats for text in curves])
    sums = tokens.sum(axis=0), nats.sum(axis=0), starts.sum()
    for target in TARGETS:
        found = _interpolated(*sums, target)
        if np.isnan(found):
            continue
        without = [
            _interpolated(sums[0] - t, sums[1] - n, sums[2] - count, target)
            for t, n, count in zip(tokens, nats, starts)
        ]
        yield target, found, without


def _interpolated(tokens: np.ndarray, nats: np.ndarray, starts: int, target: float) -> float:
    """Tokens a round where the KL per token is `target`: linear in its root, as curves start."""
    spent = np.sqrt(np.maximum(nats / tokens, 0.0))
    order = np.argsort(spent)
    return float(np.interp(np.sqrt(target), spent[order], tokens[order] / starts, right=np.nan))


def main(arguments: list[str] | None = None) -> int:
    """Measure each pair at each setting, and write its rows; returns the exit status."""
    return execute(_parser, _work, arguments)


def _parser() -> Parser:
    parser = Parser("benchmarks.rounds", description=__doc__)
    parser.add_argument("--traces", type=Path, default=Path("traces"), help="recorded texts")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), help="sampling settings")
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), help="names of the pairs")
    return parser


def _work(options: argparse.Namespace) -> int:
    for settings, pair in product(options.settings, options.pairs):
        trace = open_trace(options.traces / FOLDERS[settings] / pair)
        _keep(list(measured(trace, settings)), trace_digest(trace))
    return 0


def _keep(rows: list[dict[str, Any]], digest: str) -> None:
    """Put the rows of one pair and setting into the table, in the order of the study."""
    there = RESULTS.is_file()
    place = (rows[0]["draft"], rows[0]["settings"])
    traces = read_facts(RESULTS)["traces"] if there else {}
    known = read_rows(RESULTS) if there else []
    others = [row for row in known if (row["draft"], row["settings"]) != place]
    order = {key: n for n, key in enumerate((p, s) for p in PAIRS for s in SETTINGS)}
    kept = sorted([*others, *rows], key=lambda row: order[row["draft"], row["settings"]])
    facts = {
        "versions": versions("torch", "transformers"),
        "traces": dict(sorted((traces | {", ".join(place): digest}).items())),
    }
    write_rows(RESULTS, kept, facts)

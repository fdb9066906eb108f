"""Values that one set of prompts gave, decoded on another: what they spend and bring there.

    python -m benchmarks.rounds.held_out      # about half an hour on two cores, after recording

`sim.tables.budget` finds the level, the multiplier and the schedule that spend `LEVEL` nats per
emitted token on the recorded calibration prompts; the forty prompts of openings.jsonl are decoded
with them, token by token, in blocks, by the scaled clip and with two candidates. Record with

    python -m real_models.record --pair smollm2-skip3 --out traces/calibration/smollm2-skip3 \\
        --prompts real_models/prompts/calibration.jsonl
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.equal import SETTINGS
from benchmarks.recorded import read_rows, write_rows
from real_models.decoding.loop import decode
from real_models.decoding.metrics import summary
from real_models.decoding.verifying.placed_rules import PlacedRules
from real_models.laws.distributions import SamplingSettings
from real_models.measuring.corpus import trace_corpus
from real_models.measuring.parts import Resources, trace_digest
from real_models.models.pair import load_pair
from real_models.prompts import DEFAULT_PROMPTS, read_prompts
from real_models.traces.reader import Trace, open_trace
from sim.commandline import Parser, execute
from sim.jobs.manifest import versions
from sim.jobs.progress import track
from sim.tables.budget import spend

__all__ = ["LEVEL", "RESULTS", "held_out_table", "load_held_out", "main"]

RESULTS = Path(__file__).resolve().parents[1] / "results/held_out.parquet"
PROMPTS = DEFAULT_PROMPTS.with_name("openings.jsonl")
PAIR, LEVEL, DRAFTS, NEW_TOKENS = "smollm2-skip3", 0.05, 5, 48
KEPT = ("tokens_per_round", "accepted_length_se", "kl_per_token", "kl_per_token_se", "rounds")


@dataclass(frozen=True)
class Way:
    """How to spend, verify and draft; `spending` is a key of the values that were found."""

    spending: str
    verification: str = "token"
    candidates: int = 1


WAYS = (
    *(Way("strict"), Way("strict", "block"), Way("strict", candidates=2)),
    *(Way("level"), Way("multiplier"), Way("schedule")),
    *(Way("multiplier", "block"), Way("multiplier", "scaled"), Way("schedule", "block")),
    Way("multiplier", candidates=2),
)


def load_held_out() -> pd.DataFrame:
    """The recorded rows, one per setting and way."""
    return pd.DataFrame(read_rows(RESULTS))


def held_out_table() -> str:
    """The table of docs/rounds.md."""
    head = ("settings", "spending", "verified", "K", "tokens a round", "KL a token")
    lines = [head, ("---",) * len(head)]
    for _, row in load_held_out().iterrows():
        tokens = f"{row['tokens_per_round']:.2f} ± {row['accepted_length_se']:.2f}"
        nats = f"{row['kl_per_token']:.4f} ± {row['kl_per_token_se']:.4f}"
        lines.append((row["settings"].split()[0], row["spending"], row["verification"],
            str(row["candidates"]), tokens, nats))  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def found_rules(trace: Trace, sampling: SamplingSettings) -> dict[str, PlacedRules]:
    """What to decode with, by the way of spending, from the calibration prompts."""
    corpus = trace_corpus(trace, sampling, Resources("cpu", 1 << 30), keep=8 << 30)
    ways = spend(corpus, ["frontier", "frontier_corpus"], LEVEL, DRAFTS)
    return {"strict": PlacedRules.make("sps", {})} | {
        name: PlacedRules.make(way.rule, {way.parameter: list(way.values)})
        for name, way in zip(("level", "multiplier", "schedule"), ways)
    }


def rows(trace: Trace) -> Iterator[dict[str, Any]]:
    """The figures of every way at both settings."""
    pair, prompts = load_pair(PAIR), read_prompts(PROMPTS)[0]
    for settings in SETTINGS:
        sampling = SamplingSettings.parse(settings)
        rules = found_rules(trace, sampling)
        for way in track(WAYS, settings, "way"):
            figures = summary(
                decode(
                    pair,
                    prompts,
                    rules[way.spending],
                    draft_tokens=DRAFTS,
                    new_tokens=NEW_TOKENS,
                    settings=sampling,
                    batch_size=8,
                    compare=False,
                    verification=way.verification,
                    candidates=way.candidates,
                )
            )
            kept = {name: figures[name] for name in KEPT}
            yield {"settings": settings, **asdict(way), **kept, "parameters": {}}


def main(arguments: list[str] | None = None) -> int:
    """Calibrate, decode, and write the rows; returns the exit status."""
    return execute(_parser, _work, arguments)


def _parser() -> Parser:
    parser = Parser("benchmarks.rounds.held_out", description=__doc__)
    parser.add_argument(
        "--trace", type=Path, default=Path("traces/calibration") / PAIR, help="of the calibration"
    )
    return parser


def _work(options: argparse.Namespace) -> int:
    trace = open_trace(options.trace)
    facts = {"versions": versions("torch", "transformers"), "trace": trace_digest(trace)}
    write_rows(RESULTS, list(rows(trace)), facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())

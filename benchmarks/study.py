"""Which rule should one decode with? Every figure of docs/study.md comes from here.

    python -m benchmarks.study            # three hours on two cores; goes on where it stopped

Three parts. *Quality*: each rule on three layer-skip pairs, two sampling settings and three draft
lengths, ten prompts side by side: accepted length, exact divergence per token, the verifier's
surprise. *Time*: one text after another, as a user would wait for it, against the verifier alone in
turn. *Equal*: every rule at the value of its parameter that `benchmarks.equal` found to bring it as
far from the verifier as the others, half as many tokens. Each cell is kept in `results/study`; the
table goes to `benchmarks/results/study.parquet`, where cells that were not run again stay.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Self

import pandas as pd
import torch

from benchmarks.equal import CALIBRATED, PAIRS, SETTINGS
from benchmarks.recorded import read_rows, write_rows
from real_models.decoding.drafters import parse_lookup
from real_models.decoding.loop import decode, model_drafter, prompt_lookup
from real_models.decoding.metrics import summary
from real_models.laws.distributions import SamplingSettings
from real_models.models.pair import ModelPair, load_pair
from real_models.prompts import DEFAULT_PROMPTS, Prompt, read_prompts
from sim.commandline import Parser, execute
from sim.jobs.engine import Frames, run_cells
from sim.jobs.files import json_text
from sim.jobs.folder_lock import owned
from sim.jobs.manifest import versions
from theory import make_rule

__all__ = ["CELLS", "Cell", "main", "run_cell"]

RESULTS = Path(__file__).with_name("results") / "study.parquet"
EDITING = DEFAULT_PROMPTS.with_name("editing.jsonl")
LENGTHS = (5, 10, 20)
RULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sps", {}),
    ("typical", {}),
    ("cactus", {"delta": 0.1}),
    ("cactus", {"delta": 0.75}),
    ("frontier", {"level": 0.1}),
)
LOWER_BUDGET = (("delta", 0.1),)


PARTS = ("quality", "time", "equal")


@dataclass(frozen=True)
class Cell:
    """One run. `draft` is the name of a pair or `lookup:n`; part is one of PARTS."""

    part: str
    draft: str
    prompts: str
    settings: str
    rule: str
    parameters: tuple[tuple[str, Any], ...]
    draft_tokens: int
    new_tokens: int
    batch_size: int

    @classmethod
    def of(cls, figures: dict[str, Any]) -> Self:
        """The cell whose figures these are."""
        known = {field.name: figures[field.name] for field in fields(cls)}
        return cls(**known | {"parameters": tuple(figures["parameters"].items())})

    @property
    def name(self) -> str:
        """A file name that says everything."""
        rule = "-".join([self.rule, *(f"{n}{v}" for n, v in self.parameters)])
        words = [self.part, self.draft, self.prompts, self.settings, rule, f"m{self.draft_tokens}"]
        return "_".join(words).replace(" ", "-").replace(":", "")


def _cells() -> Iterator[Cell]:
    for draft, settings, m, (rule, parameters) in product(PAIRS, SETTINGS, LENGTHS, RULES):
        chosen = tuple(parameters.items())
        if chosen == LOWER_BUDGET and m > min(LENGTHS):
            continue  # the point between strict and lax, for the costs at the shortest drafts
        yield Cell("quality", draft, "default", settings, rule, chosen, m, 48, 10)
    strict, lossy = RULES[0], RULES[3]
    truncated = SETTINGS[1]
    for settings, m, (rule, parameters) in (
        *product(("T=0",), (5, 10), (strict,)),
        *product(("T=1",), (10,), (strict, lossy, RULES[1])),
        *product((truncated,), (5, 10), (strict, lossy, RULES[1])),
    ):
        chosen = tuple(parameters.items())
        yield Cell("time", "lookup:3", "editing", settings, rule, chosen, m, 64, 1)
    for draft, (rule, parameters) in product(("smollm2-skip3", "smollm2-skip8"), (strict, lossy)):
        yield Cell("time", draft, "editing", truncated, rule, tuple(parameters.items()), 3, 64, 1)
    yield from _equal_cells()


def _equal_cells() -> Iterator[Cell]:
    """Every calibrated rule of every pair and setting, the longest drafts first."""
    rows = read_rows(CALIBRATED)
    for m, settings, row in product(reversed(LENGTHS), reversed(SETTINGS), rows):
        if row["settings"] == settings:
            chosen = tuple(row["parameters"].items())
            yield Cell("equal", row["draft"], "default", settings, row["rule"], chosen, m, 24, 10)


CELLS = tuple(_cells())


def run_cell(cell: Cell) -> dict[str, Any]:
    """Decode the prompts of a cell and return its figures."""
    longest = parse_lookup(cell.draft)
    found = decode(
        _pair("smollm2-skip3" if longest else cell.draft),
        _prompts(cell.prompts),
        make_rule(cell.rule, **dict(cell.parameters)),
        draft_tokens=cell.draft_tokens,
        new_tokens=cell.new_tokens,
        settings=SamplingSettings.parse(cell.settings),
        drafter=prompt_lookup(longest) if longest else model_drafter,
        batch_size=cell.batch_size,
        compare=cell.part == "time",
    )
    figures = summary(found)
    if cell.part != "time":
        # Texts side by side share their time: what a single one takes is for the other part.
        for name in ("seconds", "seconds_per_token", "rule_over_verify"):
            del figures[name]
    return {**figures, **asdict(cell), "parameters": dict(cell.parameters)}


@cache
def _pair(name: str) -> ModelPair:
    return load_pair(name)


@cache
def _prompts(name: str) -> list[Prompt]:
    return read_prompts({"default": None, "editing": EDITING}[name])[0]


def main(arguments: list[str] | None = None) -> int:
    """Run what is not there yet, and write the table; returns the exit status."""
    return execute(_parser, _work, arguments)


def _parser() -> Parser:
    parser = Parser("benchmarks.study", description=__doc__)
    parser.add_argument("--cells", type=Path, default=Path("results/study"), help="finished cells")
    parser.add_argument("--part", choices=PARTS, help="one part only")
    parser.add_argument("--missing", action="store_true", help="only cells that the table lacks")
    parser.add_argument("--threads", type=int, help="of the forward passes (default: PyTorch's)")
    return parser


def _work(options: argparse.Namespace) -> int:
    if options.threads:
        torch.set_num_threads(options.threads)
    have = _recorded() if options.missing else {}
    chosen = {
        cell.name: (cell,)
        for cell in CELLS
        if options.part in (None, cell.part) and cell.name not in have
    }
    with owned(options.cells):
        # Decoding is not run again for every change of the code: the table says which it was.
        frames = run_cells(_figures, chosen, options.cells, resume=True, label="study")
        _collect(frames)
    return 0


def _figures(cell: Cell) -> Frames:
    text = json_text(run_cell(cell), indent=None)
    return {"figures": pd.DataFrame({"cell": [cell.name], "figures": [text]})}


def _collect(frames: Frames) -> None:
    """One table of all finished cells, in the order of CELLS; recorded ones stay in it."""
    finished = _recorded()
    if "figures" in frames:
        fresh = frames["figures"]
        finished |= {cell: json.loads(text) for cell, text in zip(fresh["cell"], fresh["figures"])}
    cells = [
        finished[cell.name] | {"parameters": dict(cell.parameters)}
        for cell in CELLS
        if cell.name in finished
    ]
    facts = {
        "device": f"CPU, {torch.get_num_threads()} threads",
        "versions": versions("torch", "transformers"),
    }
    write_rows(RESULTS, cells, facts)
    print(f"{RESULTS}: {len(cells)} of {len(CELLS)} cells")


def _recorded() -> dict[str, dict[str, Any]]:
    """The cells of the table that is there, by name."""
    cells = read_rows(RESULTS) if RESULTS.is_file() else []
    return {Cell.of(cell).name: cell for cell in cells}


if __name__ == "__main__":
    sys.exit(main())

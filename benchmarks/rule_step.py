"""What the rule's step of a decoding round takes beside the verifier's pass, for every rule.

    python -m benchmarks.rule_step     # fifteen minutes on two cores; the table of docs/study.md

One text after another, SmolLM2 without three of its layers as draft, every rule at the middle of
its default values. Short drafts at T = 1 are the hardest case: the verifier's pass is short, and no
token is filtered out. Nothing else should run beside it.
"""

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from real_models.decoding.loop import decode
from real_models.laws.distributions import SamplingSettings
from real_models.models.pair import ModelPair, load_pair
from real_models.options.recording import DEFAULT_SETTINGS
from real_models.prompts import read_prompts
from sim.commandline import Parser, execute
from sim.jobs.files import write_json
from sim.jobs.manifest import versions
from sim.jobs.progress import track
from sim.tables.grid import DEFAULT_GRID, Setting
from theory import RULES

__all__ = ["main", "measure_step", "middle_setting", "step_table"]

RESULTS = Path(__file__).with_name("results") / "rule_step.json"
PAIR = "smollm2-skip3"
SETTINGS = DEFAULT_SETTINGS
LENGTHS = (5, 20)
# What also runs with the longer drafts.
LONG_DRAFTS = ("sps", "lenience", "cactus", "mentored", "frontier")
PROMPTS, NEW_TOKENS = 3, 32


def middle_setting(name: str) -> Setting:
    """A rule at the middle of the values that a sweep tries."""
    values = DEFAULT_GRID[name]
    return Setting(name, RULES[name].parameter or "", values[len(values) // 2])


def measure_step(
    pair: ModelPair, setting: Setting, sampling: str, draft_tokens: int
) -> dict[str, Any]:
    """Milliseconds per round of the rule's step and of the verifier's pass, and their ratio."""
    found = decode(
        pair,
        read_prompts(None)[0][:PROMPTS],
        setting.build(),
        draft_tokens=draft_tokens,
        new_tokens=NEW_TOKENS,
        settings=SamplingSettings.parse(sampling),
        compare=False,
        measure=False,
    )
    rounds = sum(len(text.accepted) for text in found.texts)
    return {
        "rule": setting.rule,
        "parameter": setting.parameter,
        "value": setting.value,
        "settings": sampling,
        "draft_tokens": draft_tokens,
        "rounds": rounds,
        "rule_ms": 1000 * found.seconds["rule"] / rounds,
        "verify_ms": 1000 * found.seconds["verify"] / rounds,
        "rule_over_verify": found.seconds["rule"] / found.seconds["verify"],
    }


def step_table(path: Path = RESULTS) -> pd.DataFrame:
    """The recorded ratios in per cent: rules as rows, draft length and setting as columns.

    A rule that was not measured yet has no row.
    """
    steps = pd.DataFrame(json.loads(path.read_text(encoding="utf-8"))["steps"])
    steps["percent"] = 100 * steps["rule_over_verify"]
    wide = steps.pivot(index="rule", columns=["draft_tokens", "settings"], values="percent")
    measured = [rule for rule in RULES if rule in wide.index]
    return wide.reindex(index=measured, columns=list(product(LENGTHS, SETTINGS)))


def main(arguments: list[str] | None = None) -> int:
    """Measure every rule and write the figures; returns the exit status."""
    return execute(_parser, _work, arguments)


def _parser() -> Parser:
    parser = Parser("benchmarks.rule_step", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file of the figures")
    parser.add_argument(
        "--rules", nargs="+", choices=RULES, help="measure these again, keep others"
    )
    return parser


def _work(options: argparse.Namespace) -> int:
    runs = [
        (name, sampling, count)
        for count, sampling, name in product(LENGTHS, SETTINGS, RULES)
        if count == LENGTHS[0] or name in LONG_DRAFTS
    ]
    kept = _kept(options.out, options.rules) if options.rules else {}
    open_ = [run for run in runs if run not in kept]
    pair = load_pair(PAIR)
    measure_step(pair, middle_setting("sps"), *runs[0][1:])  # to warm up
    for run in track(open_, "rule step", "run"):
        kept[run] = measure_step(pair, middle_setting(run[0]), *run[1:])
    document = {
        "device": f"CPU, {torch.get_num_threads()} threads",
        "versions": versions("torch", "transformers", "numpy"),
        "pair": PAIR,
        "steps": [kept[run] for run in runs],
    }
    write_json(options.out, document)
    print(f"{options.out}: {len(open_)} of {len(runs)} runs measured")
    return 0


def _kept(path: Path, rules: list[str]) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The recorded steps of all other rules."""
    steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
    named = {(step["rule"], step["settings"], step["draft_tokens"]): step for step in steps}
    return {run: step for run, step in named.items() if run[0] not in rules}


if __name__ == "__main__":
    sys.exit(main())

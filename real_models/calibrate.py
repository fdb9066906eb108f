"""Which value of a rule's parameter gives a wanted divergence or acceptance on a recorded trace.

    python -m real_models.calibrate traces/smollm2-skip3 --rule cactus --target kl=0.05

Exact laws at every recorded position, no sampling; standard errors are clustered by prompt. A rule
asks for fifteen to thirty values; at T = 1 each takes about a second on 640 positions of 49,152
tokens, under top-k a hundredth of that.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from real_models.laws.distributions import SamplingSettings
from real_models.measuring.corpus import trace_corpus
from real_models.measuring.parts import Resources
from real_models.models.loading import resolve_device
from real_models.options.recording import (
    DEFAULT_SETTINGS,
    open_recording,
    parse_bytes,
    parse_samplings,
)
from real_models.traces.reader import Trace
from sim.calibrate import Wanted, add_options, calibrated, tell, wanted
from sim.commandline import Parser, run_command
from sim.tables.tradeoff import DIVERGENCE_OF
from theory import RULES

__all__ = ["main"]

_EXAMPLE = """examples:
  python -m real_models.calibrate traces/smollm2-skip3 --rule cactus frontier --target kl=0.05
  python -m real_models.calibrate traces/smollm2-skip3 --rule lenience --target acceptance=0.8 \\
      --settings "T=0.6 top-p 0.95 top-k 20" --json

measures: acceptance, {measures}
rules: {rules}
"""


@dataclass(frozen=True)
class Plan:
    """What a command line asks for, checked. `keep`: bytes that prepared rows may take."""

    trace: Trace
    samplings: tuple[SamplingSettings, ...]
    asked: Wanted
    resources: Resources
    keep: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status: 0, 2 for bad arguments, 130 if interrupted."""
    return run_command(_parser(), _plan, _work, arguments)


def _parser() -> Parser:
    example = _EXAMPLE.format(measures=", ".join(DIVERGENCE_OF), rules=", ".join(RULES))
    parser = Parser(
        "real_models.calibrate",
        usage="python -m real_models.calibrate TRACE [options]",  # --settings would take TRACE in
        description=__doc__,
        epilog=example,
    )
    add = parser.add_argument
    add("trace", type=Path, metavar="TRACE", help="folder written by real_models.record")
    add_options(parser)
    add("--settings", nargs="+", default=list(DEFAULT_SETTINGS), metavar="SETTING",
        help="temperature and filters of both models "
        f"(default: {' and '.join(map(repr, DEFAULT_SETTINGS))})")  # fmt: skip
    add("--device", default="auto", help="auto, cpu, cuda or cuda:i (default auto)")
    add("--memory-limit", metavar="SIZE", default="8GiB",
        help="for prepared rows that are kept between two values; where all of them would take "
        "more, each value prepares them anew (default: 8GiB)")  # fmt: skip
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    """Check every argument and the whole trace, its digests included."""
    asked = wanted(options)
    samplings = parse_samplings(options.settings)
    keep = parse_bytes(options.memory_limit)
    device = resolve_device(options.device)
    trace = open_recording(options.trace)
    return Plan(trace, samplings, asked, Resources(str(device), min(keep, 1 << 30)), keep)


def _work(options: argparse.Namespace, plan: Plan) -> None:
    if not plan.trace.complete:
        asked = plan.trace.header.prompts
        print(f"The trace is not finished: {asked} prompts were asked for.", file=sys.stderr)
    samplings = tqdm(plan.samplings, desc="calibrate", disable=None)
    corpora = (
        trace_corpus(plan.trace, sampling, plan.resources, keep=plan.keep) for sampling in samplings
    )
    tell(calibrated(corpora, plan.asked), plan.asked.target, options.json)


if __name__ == "__main__":
    sys.exit(main())

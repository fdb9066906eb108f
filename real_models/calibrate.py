"""Which value of a rule's parameter gives a wanted divergence or acceptance on a recorded trace.

    python -m real_models.calibrate traces/smollm2-skip3 --rules cactus --target kl=0.05

Exact laws at every recorded position, no sampling; standard errors are clustered by prompt. A rule
asks for fifteen to thirty values; at T = 1 each takes about a second on 640 positions of 49,152
tokens, under top-k a hundredth of that.

Where a trace lists the likeliest tokens alone, and T = 1 leaves the rest open, a rule has two
values: the laxest that keeps the target whatever the rest holds, and one beyond which it is surely
missed.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from real_models.laws.distributions import SamplingSettings
from real_models.measuring.bounds import left_open
from real_models.measuring.calibrated_bounds import BoundedCorpus, calibrate_bounds
from real_models.measuring.corpus import trace_corpus
from real_models.measuring.parts import Resources, chunks_digest, make_parts
from real_models.models.loading import resolve_device
from real_models.options.recording import (
    CODE,
    DEFAULT_SETTINGS,
    open_recording,
    parse_bytes,
    parse_samplings,
)
from real_models.traces.decided import decided_rules, require_decided
from real_models.traces.reader import Trace
from sim.calibrate import Wanted, add_options, calibrate_corpus, run_calibration, wanted
from sim.commandline import Parser, run_command
from sim.jobs.engine import Frames
from sim.jobs.manifest import make_manifest
from sim.tables.corpus import Corpus
from sim.tables.tradeoff import DIVERGENCE_OF
from theory import RULES

__all__ = ["main"]

_EXAMPLE = """examples:
  python -m real_models.calibrate traces/smollm2-skip3 --rules cactus frontier --target kl=0.05
  python -m real_models.calibrate traces/smollm2-skip3 --rules lenience --target acceptance=0.8 \\
      --settings "T=0.6 top-p 0.95 top-k 20" --json

measures: acceptance, {measures}
rules: {rules}
"""


@dataclass(frozen=True)
class Plan:
    """What a command line asks for, checked. `keep`: bytes that prepared rows may take."""

    trace: Trace
    asked: tuple[tuple[SamplingSettings, Wanted], ...]
    resources: Resources
    keep: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status: 0, 2 for bad arguments, 130 if interrupted."""
    return run_command(_parser, _plan, _work, arguments)


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
    unsettled = left_open(trace, samplings)
    settled = [sampling for sampling in samplings if sampling not in unsettled]
    require_decided(trace, settled)
    exact = replace(asked, rules=decided_rules(trace, asked.rules)) if settled else asked
    each = [(sampling, asked if sampling in unsettled else exact) for sampling in samplings]
    return Plan(trace, tuple(each), Resources(str(device), min(keep, 1 << 30)), keep)


def _work(options: argparse.Namespace, plan: Plan) -> None:
    if not plan.trace.complete:
        asked = plan.trace.header.prompts
        print(f"The trace is not finished: {asked} prompts were asked for.", file=sys.stderr)
    cells = {
        f"{index:02d}-{one.rules[0]}": (_recording(plan, sampling), one)
        for index, (sampling, asked) in enumerate(plan.asked)
        for one in asked.by_rule()
    }
    kept = ("imports", "rules", "target", "values", "tolerance", "settings")
    arguments = {"trace": str(options.trace), **{name: getattr(options, name) for name in kept}}

    def manifest(seconds: float) -> dict[str, Any]:
        return make_manifest("real_models.calibrate", arguments, seconds, CODE)

    run_calibration(options, _calibrate_recording, cells, plan.asked[0][1].target, manifest, CODE)


@dataclass(frozen=True)
class _Recording:
    """The positions of a trace under one sampling setting.

    Its text names what decides the results: the finished chunks, the setting, the kind of device.
    """

    digest: str
    sampling: SamplingSettings
    kind: str
    plan: Plan = field(repr=False, compare=False)


def _recording(plan: Plan, sampling: SamplingSettings) -> _Recording:
    kind = resolve_device(plan.resources.device).type
    return _Recording(chunks_digest(plan.trace), sampling, kind, plan)


def _calibrate_recording(recording: _Recording, asked: Wanted) -> Frames:
    if left_open(recording.plan.trace, [recording.sampling]):
        return calibrate_bounds(
            _bounded(recording),
            asked.rules,
            asked.target,
            grid=asked.grid,
            tolerance=asked.tolerance,
        )
    return calibrate_corpus(_corpus(recording), asked)


@lru_cache(maxsize=1)
def _bounded(recording: _Recording) -> BoundedCorpus:
    """The listed rows of a recording; kept for the next rule."""
    plan = recording.plan
    parts = make_parts(plan.trace, (recording.sampling,), (), plan.resources)
    return BoundedCorpus.of([part for part, _ in parts.values()])


@lru_cache(maxsize=1)
def _corpus(recording: _Recording) -> Corpus:
    """The rows of a recording; kept for the next rule."""
    plan = recording.plan
    return trace_corpus(plan.trace, recording.sampling, plan.resources, keep=plan.keep)


if __name__ == "__main__":
    sys.exit(main())

"""What a budget of a text buys on a recorded trace: the values that spend so much KL per token.

    python -m real_models.budget traces/smollm2-skip3 --kl-per-token 0.05 --draft-tokens 5

A round emits what it accepts of its drafts and one token more, and pays for each place that it
visits. For each rule the value is found whose rounds spend the budget per emitted token, and for
`frontier_corpus` a schedule too, one multiplier for each place of a draft. All means are exact, but
places are taken to meet recorded positions at random: what `real_models.decode` realises may
differ, and is told there.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from real_models.laws.distributions import SamplingSettings
from real_models.measuring.bounds import left_open
from real_models.measuring.corpus import trace_corpus
from real_models.measuring.parts import Resources
from real_models.models.loading import resolve_device
from real_models.options.recording import (
    DEFAULT_SETTINGS,
    open_recording,
    parse_bytes,
    parse_samplings,
)
from real_models.traces.decided import decided_rules, require_decided
from real_models.traces.reader import Trace
from sim.checks import require_between, require_count
from sim.commandline import Parser, parse_rules, run_command
from sim.jobs.files import json_text
from sim.report.calibrated import aligned
from sim.tables.budget import Spending, spend
from sim.tables.calibration import MET, MISSED, SLACK
from sim.tables.corpus import Corpus
from theory import RULES

__all__ = ["main"]

_EXAMPLE = """examples:
  python -m real_models.budget traces/smollm2-skip3 --kl-per-token 0.05 --draft-tokens 5
  python -m real_models.budget traces/smollm2-skip3 --rules cactus lenience --settings T=1 --json

rules: {rules}
"""
_RULES = ("sps", "frontier", "frontier_corpus")
_SHOWN = 8  # values of a schedule in the table; the last line has all
_NEAR = 0.98  # of the budget: a value that spends less is said to
_HEAD = ("rule", "value", "acceptance", "nats a place", "nats a token", "tokens a round", "")


class Plan(NamedTuple):
    """What a command line asks for, checked."""

    trace: Trace
    samplings: tuple[SamplingSettings, ...]
    rules: list[str]
    resources: Resources
    keep: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status: 0, 2 for bad arguments, 130 if interrupted."""
    return run_command(_parser, _plan, _work, arguments, interrupted="nothing is kept")


def _parser() -> Parser:
    parser = Parser(
        "real_models.budget",
        usage="python -m real_models.budget TRACE [options]",  # --rules would take TRACE in
        description=__doc__,
        epilog=_EXAMPLE.format(rules=", ".join(RULES)),
    )
    add = parser.add_argument
    add("trace", type=Path, metavar="TRACE", help="folder written by real_models.record")
    add("--kl-per-token", type=float, default=0.05, metavar="NATS",
        help="KL(output‖q) per emitted token, bonus tokens included (default: 0.05)")  # fmt: skip
    add("--draft-tokens", type=int, default=5, help="drafts of a round (default: 5)")
    add("--rules", "--rule", nargs="+", default=list(_RULES),
        help=f"rules beside the schedule (default: {' '.join(_RULES)})")  # fmt: skip
    add("--settings", nargs="+", default=list(DEFAULT_SETTINGS), metavar="SETTING",
        help="temperature and filters of both models "
        f"(default: {' and '.join(map(repr, DEFAULT_SETTINGS))})")  # fmt: skip
    add("--device", default="auto", help="auto, cpu, cuda or cuda:i (default auto)")
    add("--memory-limit", metavar="SIZE", default="8GiB",
        help="for prepared rows that are kept between two values (default: 8GiB)")  # fmt: skip
    add("--json", action="store_true", help="print one JSON document and nothing else")
    return parser


def _work(options: argparse.Namespace, plan: Plan) -> None:
    found = []
    for sampling in plan.samplings:
        corpus = trace_corpus(plan.trace, sampling, plan.resources, keep=plan.keep)
        ways = spend(corpus, plan.rules, options.kl_per_token, options.draft_tokens)
        found.append((corpus, ways))
        if not options.json:
            print("\n".join(_told(corpus, ways, options)), flush=True)
    if options.json:
        print(json_text(_document(found, options)))


def _plan(options: argparse.Namespace) -> Plan:
    """Check every argument and the whole trace, its digests included."""
    require_between("--kl-per-token", options.kl_per_token, 0.0, 1e3, open_low=True)
    require_count("--draft-tokens", options.draft_tokens, 1, high=1000)
    rules, samplings = parse_rules(options.rules), parse_samplings(options.settings)
    keep, device = parse_bytes(options.memory_limit), resolve_device(options.device)
    trace = open_recording(options.trace)
    for sampling in left_open(trace, samplings):
        raise ValueError(
            f"--settings: {sampling.label!r} is left open by a trace of lists, and a budget needs "
            "exact means; bounds are told by real_models.calibrate"
        )
    require_decided(trace, samplings)
    rules = decided_rules(trace, rules)
    return Plan(trace, samplings, rules, Resources(str(device), min(keep, 1 << 30)), keep)


def _told(corpus: Corpus, ways: Sequence[Spending], options: argparse.Namespace) -> list[str]:
    """One corpus as a person reads it."""
    count, drafts = corpus.frontier("kl").positions, options.draft_tokens
    lines = [_HEAD, *(_line(way, options.kl_per_token) for way in ways)]
    return [
        f"{corpus.source} ({corpus.pair}), {corpus.vocab:,} tokens, {count:,} positions: "
        f"{options.kl_per_token:g} nats per emitted token, {drafts} drafts a round",
        *aligned(lines),
        f"  decode with the schedule: {_options(ways[-1])} --draft-tokens {drafts}",
    ]


def _line(way: Spending, level: float) -> tuple[str, ...]:
    """One way; acceptance and nats of the first and the last place where they differ."""
    means, said = way.means, {SLACK: "cannot spend more", MISSED: "spends more at any value"}
    if means.cost_per_token < _NEAR * level:  # a step of the rule's, or a budget beyond all
        said[MET] = "no value comes nearer"
    return (
        way.rule,
        f"{way.parameter}={_values(way, _SHOWN)}" if way.parameter else "–",
        _ends(means.accepted, 4),
        _ends(means.spent, 4),
        f"{means.cost_per_token:.5f}",
        f"{means.tokens:.3f}",
        said.get(way.status, "") if way.parameter else "",
    )


def _ends(values: Sequence[float], digits: int) -> str:
    ends = (values[0],) if math.isclose(values[0], values[-1]) else (values[0], values[-1])
    return " … ".join(f"{value:.{digits}f}" for value in ends)


def _values(way: Spending, most: int | None = None) -> str:
    shown = ",".join(f"{value:.5g}" for value in way.values[:most])
    return shown + (",…" if len(way.values) > len(way.values[:most]) else "")


def _options(way: Spending) -> str:
    return f"--rule {way.rule} --{way.parameter.replace('_', '-')} {_values(way)}"


def _document(
    found: Sequence[tuple[Corpus, Sequence[Spending]]], options: argparse.Namespace
) -> dict[str, Any]:
    return {
        "kl_per_token": options.kl_per_token,
        "draft_tokens": options.draft_tokens,
        "found": [
            {
                "pair": corpus.source,
                "settings": corpus.pair,
                "positions": corpus.frontier("kl").positions,
                "ways": [_record(way) for way in ways],
            }
            for corpus, ways in found
        ],
    }


def _record(way: Spending) -> dict[str, Any]:
    return {
        "rule": way.rule,
        "parameter": way.parameter,
        "values": list(way.values),
        "acceptance": list(way.means.accepted),
        "kl": list(way.means.spent),
        "kl_per_token": way.means.cost_per_token,
        "tokens_per_round": way.means.tokens,
        "status": way.status,
    }


if __name__ == "__main__":
    sys.exit(main())

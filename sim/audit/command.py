"""Whether a sampler emits the law of a rule, or stays within a budget of the verifier.

    python -m sim.audit --sampler mine.py:verify --rule cactus --value 0.1

A sampler is a function (p, q, drafted, generator) -> (accepted, tokens) on batches; docs/audits.md.
"""

import argparse
import inspect
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sim.audit.evidence.budget import BALLS
from sim.audit.hostile import Blocks, hostile_pairs, read_pairs
from sim.audit.picture import audit_picture
from sim.audit.report import Report
from sim.audit.run import audit, audit_budget
from sim.audit.samplers.calling import BACKENDS, DTYPES, Sampler
from sim.audit.samplers.faults import faulty_samplers
from sim.audit.samplers.named import named_sampler
from sim.checks import once, require_between, require_count, unknown_name
from sim.commandline import Mistake, Parser, execute
from sim.extensions import check_rule
from sim.jobs.files import json_text, write_json, write_whole
from sim.jobs.folder_lock import owned, withdraw_manifest
from sim.jobs.manifest import make_manifest
from theory import RULES, Rule, make_rule
from theory.blocks import VERIFICATIONS

__all__ = ["main"]

_EXAMPLE = """examples:
  python -m sim.audit --sampler mine.py:verify --rule sps
  python -m sim.audit --sampler mine.py:verify --rule typical --parameters epsilon=0.1 alpha=0.3 \\
      --backend torch --dtype float32 --samples 20000
  python -m sim.audit --sampler mine.py:verify --budget kl=0.05
  python -m sim.audit --sampler fault:recovery_from_q --rule sps     # a stand-in: is rejected
  python -m sim.audit --sampler reference --rule cactus --value 0.1  # a right one: passes

The exit status is 1 where the claim is rejected, 0 where nothing speaks against it.

rules: {rules}
stand-ins: {faults}
"""


class Plan(NamedTuple):
    """What a command line asks for, checked."""

    sampler: Sampler
    rule: Rule | None
    budget: tuple[str, float] | None
    pairs: Blocks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0 passed, 1 rejected, 2 for bad arguments, 130 if interrupted."""
    return execute(_parser, _body, arguments, interrupted="nothing is written before the end")


def _parser() -> Parser:
    example = _EXAMPLE.format(rules=", ".join(RULES), faults=", ".join(faulty_samplers()))
    parser = Parser("sim.audit", description=__doc__, epilog=example)
    add = parser.add_argument
    add("--sampler", required=True, metavar="MODULE_OR_FILE:FUNCTION",
        help="the sampler; or reference, a right one, or fault:NAME, a stand-in")  # fmt: skip
    add("--rule", help="the rule that it claims")
    add("--value", type=float, help="of the rule's parameter")
    add("--parameters", nargs="+", default=[], metavar="NAME=VALUE", help="of the rule")
    add("--verification", default="token", choices=VERIFICATIONS, help="default: token")
    add("--budget", metavar="DIVERGENCE=NATS",
        help=f"audit against a budget instead, of {' or '.join(BALLS)}")  # fmt: skip
    add("--pairs", default="hostile", help="hostile (default), or an .npz file with p [N, m, V] "
        "and q [N, m+1, V]")  # fmt: skip
    add("--vocab", type=int, default=24, help="tokens of the hostile pairs (default: 24)")
    add("--draft-tokens", type=int, default=3, help="drafts of a hostile block (default: 3)")
    add("--samples", type=int, default=100_000, help="rounds (default: 100000)")
    add("--batch", type=int, default=8192, help="the most rounds in one call (default: 8192)")
    add("--level", type=float, default=0.01,
        help="the probability at most of rejecting a right sampler (default: 0.01)")  # fmt: skip
    add("--rounding", type=float, default=1e-6,
        help="relative difference of probabilities that is none (default: 1e-6)")  # fmt: skip
    add("--backend", default="numpy", choices=BACKENDS, help="default: numpy")
    add("--dtype", default="float64", choices=DTYPES, help="of the rows; default: float64")
    add("--device", default="cpu", help="of torch's rows (default: cpu)")
    add("--seed", type=int, default=0, help="of drafts and sampler (default: 0)")
    add("--out", type=Path, default=Path("results/audit"), help="folder for the results")
    add("--json", action="store_true", help="print one JSON document and nothing else")
    return parser


def _body(options: argparse.Namespace) -> int:
    started = time.perf_counter()
    try:
        # A sampler may print; what is told of it may be read by a machine.
        with redirect_stdout(sys.stderr):
            plan = _plan(options)
        with owned(options.out, command="sim.audit"):
            with redirect_stdout(sys.stderr):
                report = _audited(options, plan)
            report.question = replace(report.question, command=_repeated(options))
            files = _write(options, report, time.perf_counter() - started)
    except ValueError as error:  # of the audit's own checks as well
        raise Mistake(error) from error
    if options.json:
        print(json_text(report.document() | {"files": files}))
    else:
        print("\n".join([*report.lines(), "written:", *(f"  {path}" for path in files.values())]))
    return int(report.rejected)


# --- what is asked -------------------------------------------------------------------------------


def _plan(options: argparse.Namespace) -> Plan:
    if (options.rule is None) == (options.budget is None):
        raise ValueError("one of --rule and --budget is needed")
    require_count("--samples", options.samples, 1)
    require_between("--level", options.level, 0, 0.5, open_low=True)
    budget = None if options.budget is None else _budget(options.budget)
    require_between("--rounding", options.rounding, 0, 0.1)
    require_count("--batch", options.batch, 1)
    require_count("--seed", options.seed, 0, high=2**64 - 1)
    rule = None if options.rule is None else _rule(options)
    sampler = named_sampler(options.sampler, rule, options.verification)
    return Plan(sampler, rule, budget, _pairs(options))


def _rule(options: argparse.Namespace) -> Rule:
    if options.rule not in RULES:
        raise unknown_name("rule", options.rule, RULES)
    pairs = [_parameter(text) for text in options.parameters]
    once("--parameters", [name for name, _ in pairs])
    given = dict(pairs)
    if options.value is not None:
        name = RULES[options.rule].parameter
        if name is None:
            raise ValueError(f"--value: the rule {options.rule!r} has no parameter")
        if name in given:
            raise ValueError(f"--value: {name} is given by --parameters as well")
        signature = inspect.signature(RULES[options.rule]).parameters
        whole = "int" in str(signature[name].annotation) and options.value.is_integer()
        given[name] = int(options.value) if whole else options.value
    rule = make_rule(options.rule, **given)
    check_rule(rule)
    return rule


def _parameter(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found:
        raise ValueError(f"--parameters: expected NAME=VALUE, got {text!r}")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


def _budget(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in BALLS:
        raise unknown_name("divergence of --budget", name, BALLS)
    try:
        return name, float(value)
    except ValueError:
        raise ValueError(f"--budget {text!r}: expected a number of nats, got {value!r}") from None


def _pairs(options: argparse.Namespace) -> Blocks:
    if options.pairs != "hostile":
        return read_pairs(Path(options.pairs))
    return hostile_pairs(options.vocab, options.draft_tokens)


# --- the audit, and what it leaves ---------------------------------------------------------------


def _audited(options: argparse.Namespace, plan: Plan) -> Report:
    names = ("samples", "level", "seed", "backend", "dtype", "device", "batch")
    given = {name: getattr(options, name) for name in names} | {"pairs": plan.pairs}
    if plan.budget is not None:
        return audit_budget(plan.sampler, *plan.budget, **given)
    more = {"verification": options.verification, "rounding": options.rounding}
    return audit(plan.sampler, plan.rule, **more, **given)


def _repeated(options: argparse.Namespace) -> str:
    """The command that asks again, with the number of samples left open."""
    usual, words = _parser(), []
    for name, value in vars(options).items():
        if name in ("out", "json", "samples") or value == usual.get_default(name):
            continue
        option = "--import" if name == "imports" else f"--{name.replace('_', '-')}"
        if name == "imports":
            words += [word for path in value for word in (option, path)]
        else:
            words += [option, *map(str, value if isinstance(value, list) else [value])]
    told = shlex.join(words).replace("{", "{{").replace("}", "}}")
    return f"{usual.prog} {told} --samples {{samples}}"


def _write(options: argparse.Namespace, report: Report, seconds: float) -> dict[str, str]:
    """audit.json, cells.parquet, audit.png, and the manifest that comes last."""
    out = options.out
    withdraw_manifest(out)
    files = {name: out / name for name in ("audit.json", "cells.parquet", "audit.png")}
    write_json(files["audit.json"], report.document())
    if report.history.broken:
        for name in ("cells.parquet", "audit.png"):
            files.pop(name).unlink(missing_ok=True)
    else:
        write_whole(files["cells.parquet"], report.cells.to_parquet)
        figure = audit_picture(report)
        write_whole(files["audit.png"], lambda file: figure.savefig(file, format="png", dpi=110))
    kept = {key: value for key, value in vars(options).items() if key not in ("out", "json")}
    manifest = make_manifest("sim.audit", kept, seconds)
    files["manifest.json"] = out / "manifest.json"
    write_json(files["manifest.json"], manifest)
    return {name: str(path) for name, path in files.items()}

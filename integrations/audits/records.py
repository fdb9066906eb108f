"""Audits by name: told as they come, and kept as JSON, of which docs/audits.md is made."""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sim.audit import audit
from sim.audit.samplers.calling import Sampler
from sim.jobs.files import make_folder, write_json
from theory import Rule

__all__ = ["RESULTS", "Case", "parser", "run", "write"]

RESULTS = Path(__file__).resolve().parents[1] / "results"
"""What was found, one file for each command."""

_KEPT = ("claim", "rejected", "verdict", "samples", "alarm_at", "diagnosis", "power")


class Case(NamedTuple):
    """A sampler, the rule it claims, and options of `sim.audit.audit`."""

    name: str
    sampler: Sampler
    rule: Rule
    options: Mapping[str, Any]


def run(cases: Iterable[Case], path: Path, versions: Mapping[str, str]) -> int:
    """Audit each case, tell its verdict, and write all of them to a file; the exit status is 0."""
    found = []
    for case in cases:
        report = audit(case.sampler, case.rule, **case.options)
        print(f"{case.name}: {report.verdict}", *report.diagnosis, sep="\n  ", flush=True)
        document = report.document()
        found.append({"sampler": case.name, **{name: document[name] for name in _KEPT}})
    write(path, {"versions": dict(versions), "audits": found})
    return 0


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write what was found."""
    make_folder(path.parent)
    write_json(path, dict(document))


def parser(description: str) -> argparse.ArgumentParser:
    """The options of every command here."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--results", type=Path, default=RESULTS, help="folder for what was found")
    made.add_argument("--pair", type=Path, default=Path("build/vllm-pair"), help="exported pair")
    made.add_argument("--samples", type=int, default=100_000, help="rounds of each audit")
    return made

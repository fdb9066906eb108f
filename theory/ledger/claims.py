"""The ledger of claims, run and printed: ``python -m theory.validate``."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import theory
from theory.ledger.verdicts import Claim, Outcome, load_claims
from theory.terminal.documents import has_marks, put_between
from theory.terminal.interruption import imports_end
from theory.terminal.printing import printing

SEED = 20_260_407


def run_claim(claim: Claim) -> Outcome:
    """Carry out the derivation and the check of one claim, reproducibly."""
    start = time.perf_counter()
    steps = tuple(claim.derive())
    seed = np.random.SeedSequence([SEED, sum(map(ord, str(claim.number)))])
    check = claim.check(np.random.default_rng(seed))
    return Outcome(claim, steps, check, time.perf_counter() - start)


def choose(claims: Sequence[Claim], wanted: Sequence[str]) -> list[Claim]:
    """Return the claims with these numbers or names, all of them for an empty list.

    Raises
    ------
    ValueError
        For a number or name that is not in the ledger.
    """
    if not wanted:
        return list(claims)
    known = {str(c.number): c for c in claims} | {c.name: c for c in claims}
    for word in wanted:
        if word not in known:
            close = difflib.get_close_matches(word, list(known), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"no claim {word!r} in the ledger{hint}")
    return [known[word] for word in dict.fromkeys(wanted)]


def as_record(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as plain data for JSON and for the tables of the documentation."""
    claim, check = outcome.claim, outcome.check
    return {
        "number": claim.number,
        "name": claim.name,
        "statement": claim.statement,
        "source": claim.source,
        "verdict": outcome.verdict,
        "expected": claim.expected,
        "in_order": outcome.in_order,
        "instead": claim.instead,
        "notebook": claim.notebook,
        "derivation": [asdict(step) for step in outcome.steps],
        "check": _plain(asdict(check)),
        "seconds": round(outcome.seconds, 3),
    }


def _plain(value: Any) -> Any:
    """Turn numpy scalars and arrays inside a structure into plain Python."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def ledger_table(records: Sequence[dict[str, Any]]) -> str:
    """Return the ledger as a short Markdown table: number, claim, verdict, evidence."""
    lines = [
        "| # | claim | verdict | derived in | checked at | largest deviation |",
        "|---|---|---|---|---|---|",
    ]
    for r in records:
        check = r["check"]
        lines.append(
            f"| {r['number']} | {r['name']} | {r['verdict']} | "
            f"{len(r['derivation'])} steps | {check['points']:,} points | "
            f"{check['largest_deviation']:.1e} |"
        )
    return "\n".join(lines)


def ledger_page(records: Sequence[dict[str, Any]]) -> str:
    """Return the ledger in full: statement, source, what is true instead, every step, the check."""
    parts = []
    for r in records:
        check = r["check"]
        lines = [
            f"## {r['number']}. {r['name']}: {r['verdict']}",
            r["statement"],
            f"*Source: {r['source']}. Notebook {r['notebook']}.*",
        ]
        if r["instead"]:
            word = "True instead" if r["verdict"] == "refuted" else "Sharper"
            lines.append(f"**{word}:** {r['instead']}")
        lines.append(
            "\n".join(f"- {step['statement']} ({step['how']})" for step in r["derivation"])
        )
        lines.append(
            f"Checked by {check['method']}: {check['points']:,} points, largest deviation "
            f"{check['largest_deviation']:.1e}."
        )
        parts.append("\n\n".join(lines))
    return "\n\n".join(parts)


def update_document(document: Path, records: Sequence[dict[str, Any]]) -> None:
    """Rewrite the ledger, short or in full, between the two markers of a Markdown document.

    Raises
    ------
    ValueError
        If the document has neither pair of markers.
    """
    text = document.read_text(encoding="utf-8")
    for name, render in (("ledger", ledger_table), ("ledger in full", ledger_page)):
        if has_marks(text, name):
            document.write_text(put_between(text, name, render(records)), encoding="utf-8")
            return
    raise ValueError(f"{document} lacks the markers <!-- ledger --> … <!-- end of ledger -->")


def _line(outcome: Outcome) -> str:
    claim, check = outcome.claim, outcome.check
    mark = "" if outcome.in_order else f"   EXPECTED {claim.expected}"
    held = sum(step.holds for step in outcome.steps)
    return (
        f"{claim.number!s:>3}  {claim.name:<36}{outcome.verdict:<10}"
        f"{held}/{len(outcome.steps)} steps  {check.points:>9,} points  "
        f"deviation {check.largest_deviation:8.1e}  {outcome.seconds:6.1f} s{mark}"
    )


def main(arguments: Sequence[str] | None = None, program: str = "python -m theory.validate") -> int:
    """Run the ledger or some of its claims; exit status 0 iff every verdict is the expected one.

    1 also where the ledger could not be printed, 2 for a mistake of the user, 130 where it was
    interrupted. ``program`` is how the command was called.
    """
    with printing() as output:
        parser = _parser(program)
        try:
            imports_end()
            options = parser.parse_args(arguments)
            status = _run(parser, options)
        except OSError as error:
            return _complain(parser, str(error), 2)
        except KeyboardInterrupt:
            return _complain(parser, "interrupted", 130)
        output.flush()
        if output.error is None:
            return status
        if not isinstance(output.error, BrokenPipeError):
            told = "the work is done and its files are written, but not all could be printed"
            _complain(parser, f"{told}: {output.error}", 1)
        return status or 1


def _complain(parser: argparse.ArgumentParser, told: str, status: int) -> int:
    """Print one line on standard error, and return the exit status."""
    print(f"{parser.prog}: error: {told}", file=sys.stderr)
    return status


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Choose, run, print and publish; the exit status."""
    try:
        chosen = choose(load_claims(), options.claims)
    except ValueError as error:
        return _complain(parser, str(error), 2)
    talk = sys.stderr if options.json == "-" else sys.stdout
    outcomes = []
    for claim in chosen:
        outcomes.append(run_claim(claim))
        print(_line(outcomes[-1]), file=talk, flush=True)
    try:
        _publish([as_record(outcome) for outcome in outcomes], options.json, options.document)
    except ValueError as error:
        return _complain(parser, str(error), 2)
    return 0 if all(outcome.in_order for outcome in outcomes) else 1


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print the message on one line of standard error, and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def _parser(program: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program,
        description="Derive and check the ledger of claims.",
        epilog=f"example: {program} 11 13 --json ledger.json",
    )
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help="numbers or names; default all")
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the ledger as JSON (- for stdout, and nothing else there)",
    )
    parser.add_argument(
        "--document",
        metavar="FILE",
        type=Path,
        nargs="+",
        default=[],
        help="rewrite the ledger in Markdown files, between its markers",
    )
    version = f"speculative-lab {theory.__version__}"
    parser.add_argument("--version", action="version", version=version)
    return parser


def _publish(records: list[dict[str, Any]], target: str | None, documents: list[Path]) -> None:
    """Write the ledger as JSON to a file or standard output, and into Markdown documents."""
    text = json.dumps({"claims": records}, indent=2, ensure_ascii=False)
    if target == "-":
        print(text)
    elif target:
        Path(target).write_text(text + "\n", encoding="utf-8")
    for document in documents:
        update_document(document, records)

"""How many rounds an audit needs to find each stand-in of a fault, and what it says of it.

    python -m benchmarks.stand_ins --document docs/audits.md      # three minutes on two cores

Seven seeds each at level 0.01; the words are those of the first seed after 10,000 rounds.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from sim import audit
from sim.commandline import Parser, execute
from sim.jobs.files import write_whole
from theory.terminal.documents import put_between

__all__ = ["main", "stand_in_table"]

_SEEDS, _ROUNDS, _TOLD = 7, 3_000, 10_000
_WIDE = 300  # rounds over a vocabulary of 20,000
_TELLING = ("it looks as if ", "independence: ", "at u = 0 ", "impossible ", "acceptance: ")
_HEAD = "| stand-in | claim | rounds until it is found | what the audit says |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and put it into a document between its marks; returns the exit status."""
    return execute(_parser, _work, arguments, interrupted="nothing is written before the end")


def _parser() -> Parser:
    parser = Parser("benchmarks.stand_ins", description=__doc__)
    parser.add_argument("--document", type=Path, help="page with the marks <!-- stand-ins -->")
    return parser


def _work(options: argparse.Namespace) -> int:
    page = options.document and options.document.read_text(encoding="utf-8")
    table = stand_in_table()
    print(table)
    if page:
        made = put_between(page, "stand-ins", table)
        write_whole(options.document, lambda file: file.write(made.encode()))
    return 0


def stand_in_table() -> str:
    """The table in Markdown, a row for each stand-in of `audit.faulty_samplers`."""
    rows = [_row(fault) for fault in audit.faulty_samplers().values()]
    return "\n".join([_HEAD, "| --- | --- | --- | --- |", *rows])


def _row(fault: audit.FaultySampler) -> str:
    seeds = range(1 if fault.rare else _SEEDS)
    rounds = 100_000 if fault.rare else _WIDE if fault.wide else _ROUNDS
    found = [_audited(fault, rounds, seed).alarm_at for seed in seeds]
    told = _audited(fault, _WIDE if fault.wide else _TOLD, 0).diagnosis
    when = "not found in 100,000" if None in found else (
        f"{int(statistics.median(found)):,} (at most {max(found):,})")  # fmt: skip
    claim = f"`{fault.rule!r}`" + " by block" * (fault.verification == "block")
    return f"| `{fault.name}`: {fault.fault} | {claim} | {when} | {_words(told)} |"


def _audited(fault: audit.FaultySampler, rounds: int, seed: int) -> audit.ClaimReport:
    pairs = audit.hostile_pairs(vocab=fault.wide) if fault.wide else None
    return audit.audit(
        fault.sampler, fault.rule, verification=fault.verification,
        pairs=pairs, samples=rounds, seed=seed,
    )  # fmt: skip


def _words(told: Sequence[str]) -> str:
    """The line that says most, without the block where it was seen first."""
    lines = (line for start in _TELLING for line in told if line.startswith(start))
    line = next(lines, told[0]).removeprefix("it looks as if ")
    return line.partition(" (block")[0].partition("; most in")[0].replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())

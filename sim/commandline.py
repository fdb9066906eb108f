"""What the command lines share: one line and exit status 2 for a user's mistake, no traceback."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from sim.checks import unknown_name
from sim.pairs.families import Family, make_family
from sim.tables.grid import Setting, settings
from theory import RULES

__all__ = [
    "Parser",
    "complain",
    "parse_families",
    "parse_rules",
    "parse_settings",
    "parse_values",
    "run_command",
]


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line, and a help that keeps the lines of its examples."""

    def __init__(self, module: str, **settings: str | None) -> None:
        super().__init__(
            prog=f"python -m {module}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,  # type: ignore[arg-type]
        )

    def error(self, message: str) -> NoReturn:
        """Print the message on one line of standard error, and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def run_command(
    parser: Parser,
    plan: Callable[[argparse.Namespace], Any],
    work: Callable[[argparse.Namespace, Any], None],
    arguments: Sequence[str] | None = None,
) -> int:
    """Parse, plan and work; the exit status is 0, 2 for a mistake of the user, 130 if interrupted.

    `plan` checks every argument before any work: its ValueErrors are the user's. A ValueError in
    `work` is a defect, and keeps its traceback; a file that cannot be used is the user's again.
    """
    options = parser.parse_args(arguments)
    try:
        planned = plan(options)
    except (ValueError, OSError) as error:
        return complain(parser, error, 2)
    try:
        work(options, planned)
        sys.stdout.flush()
    except OSError as error:
        return complain(parser, error, 2)
    except KeyboardInterrupt:
        return complain(parser, "interrupted; --resume continues with the finished cells", 130)
    return 0


def complain(parser: Parser, error: Exception | str, status: int) -> int:
    """Print a mistake or an interruption on one line of standard error; return the exit status."""
    if isinstance(error, BrokenPipeError):
        # Who reads the output has seen enough, as `| head` has. Python flushes it once more at its
        # end, into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
    return status


def parse_families(texts: Sequence[str]) -> list[Family]:
    """Families from "zipf,gaussian" or "zipf:exponent=1.2,noise=0.5"; ValueError for bad text."""
    families = []
    for text in _separated(texts):
        name, _, tail = text.partition(":")
        parameters = {}
        for part in filter(None, tail.split(",")):
            key, found, value = part.partition("=")
            if not found:
                raise ValueError(f"--pairs {text!r}: expected PARAMETER=VALUE, got {part!r}")
            parameters[key] = _number(f"--pairs {text!r}", value)
        families.append(make_family(name, **parameters))
    if len(set(families)) < len(families):
        raise ValueError("--pairs: a family was given twice with the same parameters")
    return families


def parse_rules(texts: Sequence[str]) -> list[str]:
    """Rule names, separated by spaces or commas. Raises ValueError for an unknown one."""
    rules = list(dict.fromkeys(_separated(texts)))
    for rule in rules:
        if rule not in RULES:
            raise unknown_name("rule", rule, RULES)
    return rules


def parse_values(texts: Sequence[str], rules: Sequence[str]) -> dict[str, list[float]]:
    """Values by rule from "0.1,0.5" (every rule) and "cactus=0.1,0.5" (that rule, which wins)."""
    common: list[float] = []
    own: dict[str, list[float]] = {}
    for text in texts:
        rule, found, values = text.rpartition("=")
        numbers = [_number(f"--values {text!r}", value) for value in values.split(",")]
        (own.setdefault(rule, []) if found else common).extend(numbers)
    return {**(dict.fromkeys(rules, common) if common else {}), **own}


def parse_settings(rules: Sequence[str], values: Sequence[str]) -> tuple[Setting, ...]:
    """The settings that --rules and --values ask for; ValueError names the option and the rule."""
    chosen = parse_rules(rules)
    own = parse_values(values, chosen)
    try:
        return settings(chosen, own)
    except ValueError as error:
        raise ValueError(f"--values: {error}") from None


def _separated(texts: Sequence[str]) -> Iterator[str]:
    """Names separated by spaces or commas; a name with parameters keeps its commas."""
    for text in texts:
        yield from [text] if ":" in text else filter(None, text.split(","))


def _number(where: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{where}: expected a number, got {text!r}") from None

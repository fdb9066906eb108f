"""What the command lines share: one line and exit status 2 for a user's mistake, no traceback."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn

import theory
from sim.checks import once, read_number, shorten, unknown_name
from sim.extensions import load
from sim.jobs.processes import interruptible
from sim.jobs.progress import plain_lines
from sim.pairs.families import Family, make_family
from sim.tables.grid import Setting, settings
from theory import RULES
from theory.terminal.interruption import imports_end
from theory.terminal.printing import Output, printing

__all__ = [
    "CALLED",
    "Mistake",
    "Parser",
    "check_jobs",
    "complain",
    "execute",
    "parse_families",
    "parse_rules",
    "parse_settings",
    "parse_values",
    "run_command",
]

CALLED: ContextVar[str | None] = ContextVar("how the command was called", default=None)
"""The command as it was typed, where that is not `python -m` and its module."""
_UNPRINTED = 1
_MOST_JOBS = 1024


class Mistake(ValueError):
    """What a user asked for cannot be done; its text is one line that says why."""


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line, and a help that keeps the lines of its examples.

    Texts that name the command as `python -m MODULE` name it as it was called. Every command has
    `--import` and `--version`.
    """

    def __init__(self, module: str, **settings: str | None) -> None:
        plain = f"python -m {module}"
        called = CALLED.get() or plain
        told = {key: text and text.replace(plain, called) for key, text in settings.items()}
        super().__init__(
            prog=called,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **told,  # type: ignore[arg-type]
        )
        self.register("type", Path, _path)
        self.register("type", float, _number)
        _add_import(self)
        self.add_argument(
            "--version", action="version", version=f"speculative-lab {theory.__version__}"
        )

    def error(self, message: str) -> NoReturn:
        """Print the message on one line of standard error, and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


def run_command(
    build: Callable[[], Parser],
    plan: Callable[[argparse.Namespace], Any],
    work: Callable[[argparse.Namespace, Any], None],
    arguments: Sequence[str] | None = None,
    **ends: str,
) -> int:
    """Import, parse, plan and work; returns the exit status of `execute`.

    `plan` checks every argument before any work: its ValueErrors are the user's. A ValueError in
    `work` is a defect, and keeps its traceback; a file that cannot be used is the user's again.
    `ends` go to `execute`.
    """

    def body(options: argparse.Namespace) -> int:
        try:
            planned = plan(options)
        except ValueError as error:
            raise Mistake(error) from error
        work(options, planned)
        return 0

    return execute(build, body, arguments, **ends)


def execute(
    build: Callable[[], Parser],
    body: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None = None,
    *,
    mistakes: tuple[type[Exception], ...] = (Mistake,),
    interrupted: str = "--resume continues with the finished cells",
) -> int:
    """Run the body on the parsed arguments, and turn its end into an exit status.

    That of the body where it returns; 1 where all is done but could not be printed; 2, with one
    line, for the user's `mistakes`, a file that cannot be used, and too little memory; 130 for an
    interruption by the keyboard, 128 + n for one by the signal n. A defect keeps its traceback.
    """
    with printing() as output:
        parser = build()
        try:
            imports_end()
            with interruptible(), plain_lines():
                parser = _extended(parser, build, arguments)
                status = body(parser.parse_args(arguments))
        except (*mistakes, OSError, MemoryError) as error:
            return complain(parser, error, 2)
        except KeyboardInterrupt as end:
            return complain(parser, f"interrupted; {interrupted}", getattr(end, "status", 130))
        except SystemExit as end:  # a help text, or arguments that cannot be parsed
            if end.code or _printed(parser, output, 0) == 0:
                raise
            return _UNPRINTED
        return _printed(parser, output, status)


def complain(parser: Parser, error: BaseException | str, status: int) -> int:
    """Print a mistake or an interruption on one line of standard error; return the exit status."""
    print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
    return status


def _path(text: str) -> Path:
    """A path; an empty text, which Path takes for the current folder, names none."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"expected a name, got {text!r}")
    return Path(text)


def _number(text: str) -> float:
    try:
        return read_number("number", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--import", dest="imports", action="append", default=[],
        metavar="MODULE_OR_FILE",
        help="Python code with rules of your own, imported first, also by worker processes; "
        "more than once for more")  # fmt: skip


def _extended(
    parser: Parser, build: Callable[[], Parser], arguments: Sequence[str] | None
) -> Parser:
    """Do the imports that are asked for; the parser of a command that knows what they bring."""
    early = argparse.ArgumentParser(add_help=False)
    early.error = parser.error  # type: ignore[method-assign]
    _add_import(early)
    asked = early.parse_known_args(arguments)[0].imports
    for text in asked:
        try:
            load(text)
        except ValueError as error:
            parser.error(str(error))
    return build() if asked else parser


def _printed(parser: Parser, output: Output, status: int) -> int:
    """The status, or that of results that could not be printed."""
    output.flush()
    if output.error is None:
        return status
    if not isinstance(output.error, BrokenPipeError):  # else the reader has seen enough, as `head`
        told = "the work is done and its files are written, but not all could be printed"
        complain(parser, f"{told}: {output.error}", _UNPRINTED)
    return status or _UNPRINTED


def check_jobs(jobs: int) -> None:
    """Raise ValueError unless so many processes can be, or −1 stands for all cores."""
    if jobs == 0 or not -_MOST_JOBS <= jobs <= _MOST_JOBS:
        told = f"1 to {_MOST_JOBS}, or -1 for all cores"
        raise ValueError(f"--jobs must be {told}, got {shorten(str(jobs))}")


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
            if key in parameters:
                raise ValueError(f"--pairs {text!r}: {key} was given twice")
            parameters[key] = read_number(f"--pairs {shorten(text)!r}", value)
        families.append(make_family(name, **parameters))
    return once("--pairs", families)


def parse_rules(texts: Sequence[str]) -> list[str]:
    """Rule names, separated by spaces or commas; ValueError for one unknown, or given twice."""
    rules = once("--rules", _separated(texts))
    for rule in rules:
        if rule not in RULES:
            raise unknown_name("rule", rule, RULES)
    return rules


def parse_values(texts: Sequence[str], rules: Sequence[str]) -> dict[str, list[float]]:
    """Values by rule from "0.1,0.5" (every rule) and "cactus=0.1,0.5" (that rule, which wins).

    Raises ValueError for a text that is no number, and for a value given twice for one rule.
    """
    common: list[float] = []
    own: dict[str, list[float]] = {}
    for text in texts:
        rule, found, values = text.rpartition("=")
        numbers = [read_number(f"--values {shorten(text)!r}", value) for value in values.split(",")]
        (own.setdefault(rule, []) if found else common).extend(numbers)
    for numbers in (common, *own.values()):
        once("--values", numbers)
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

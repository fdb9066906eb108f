"""The one command `speculative-lab`, with the command lines of the laboratory below it.

Each is imported when it is asked for: the help is there at once, and the commands of `sim` and
`theory` work where torch is not installed.
"""

import argparse
import difflib
import importlib
import sys
from collections.abc import Sequence

__all__ = ["main"]

PROGRAM = "speculative-lab"
COMMANDS: dict[str, tuple[str, str]] = {
    "sweep": ("sim.sweep", "acceptance against divergence, every rule on synthetic pairs"),
    "calibrate": ("sim.calibrate", "the parameter value that gives a wanted divergence"),
    "audit": ("sim.audit", "whether a sampler emits what it claims"),
    "chain": ("sim.chain", "whole sequences: rules, blocks and the best, on Markov pairs"),
    "validate": ("theory.validate", "derive and check the ledger of claims"),
    "record": ("real_models.record", "store the logits of a pair of models along texts"),
    "ingest": ("real_models.ingest", "make such a store of arrays, or of what two servers tell"),
    "measure": ("real_models.measure", "acceptance against divergence on a recorded trace"),
    "budget": ("real_models.budget", "the values that spend a divergence per token of a text"),
    "decode": ("real_models.decode", "write texts with any rule, and what it was worth"),
    "distill": ("real_models.distill", "train a small draft of a verifier"),
    "search-layers": ("real_models.search_layers", "find layers that a draft can do without"),
}
"""What can be typed → the module that it stands for, and what it does."""
_TRACES = "real_models.calibrate"
_EPILOG = """
calibrate takes the folder of a recorded trace first, and without one works on synthetic pairs.
speculative-lab COMMAND --help tells the options of a command; calibrate TRACE --help those on a
trace. Each is also `python -m MODULE`, for example python -m sim.sweep.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands; returns its exit status, 2 where it cannot be imported."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options = parser.parse_args(given[:1])
    name, rest = options.command, given[1:]
    if name is None:
        parser.error(f"which command? known: {', '.join(COMMANDS)}")
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(COMMANDS)}"
        parser.error(f"unknown command {name!r}; {hint}")
    try:
        return _run(name, rest)
    except ModuleNotFoundError as error:  # a model library that was never installed
        parser.error(str(error))


def _run(name: str, rest: list[str]) -> int:
    called = f"{PROGRAM} {name}"
    if name == "validate":
        return importlib.import_module("theory.ledger.claims").main(rest, called)
    on_trace = name == "calibrate" and rest[:1] and not rest[0].startswith("-")
    module = importlib.import_module(_TRACES if on_trace else COMMANDS[name][0])
    token = importlib.import_module("sim.commandline").CALLED.set(called)
    try:
        return module.main(rest)
    finally:
        token.var.reset(token)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        """Print one line, and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


class _Version(argparse.Action):
    def __call__(self, parser, *given):
        """Print the version, which is known to the package that takes time to import."""
        print(f"{PROGRAM} {importlib.import_module('theory').__version__}")
        parser.exit()


def _parser() -> _Parser:
    commands = "\n".join(f"  {name:<14} {told}" for name, (_, told) in COMMANDS.items())
    parser = _Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} COMMAND [options]",
        description=f"A laboratory for lossy speculative sampling.\n\ncommands:\n{commands}",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version")
    return parser


if __name__ == "__main__":
    sys.exit(main())

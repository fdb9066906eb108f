"""A command that stands still in the middle of its work, so that a second one can be tried."""

import subprocess
import sys
from contextlib import contextmanager

_HERE = "the command stands still"
_WAITING = f"""
import importlib, sys

command, place, name, *arguments = sys.argv[1:]
module = importlib.import_module(place)
plain = getattr(module, name)

def waiting(*given, **more):
    print({_HERE!r}, file=sys.stderr, flush=True)
    sys.stdin.readline()
    return plain(*given, **more)

setattr(module, name, waiting)
sys.exit(importlib.import_module(command).main(arguments))
"""


@contextmanager
def paused(command, function, *arguments):
    """A process of a command that waits where it calls `function`, "module.name", until a line.

    `process.communicate("\\n" * n)` lets it go on, n times.
    """
    place, _, name = function.rpartition(".")
    called = [sys.executable, "-c", _WAITING, command, place, name, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(called, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            before = []
            for line in process.stderr:
                if line == f"{_HERE}\n":
                    break
                before.append(line)
            else:
                raise AssertionError("".join(before))
            yield process
        finally:
            process.kill()

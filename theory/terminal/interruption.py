"""An interruption while a command line of the laboratory still imports: one line, status 130.

A traceback through numpy's imports says nothing to who pressed Ctrl-C. Programs that only use the
laboratory as a library are left alone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

__all__ = ["imports_end", "starting_command"]

_PACKAGES = ("theory", "sim", "real_models", "benchmarks")
_SCRIPT = "speculative-lab"
_SCRIPTS = (_SCRIPT, f"{_SCRIPT}.exe", "speculative_lab.py")


def starting_command() -> str | None:
    """How a command of the laboratory that is being started was called; None for other programs."""
    if os.path.basename(sys.argv[0] if sys.argv else "") in _SCRIPTS:
        return _SCRIPT
    # While `python -m` looks for its module, and imports the packages above it, argv begins so.
    if sys.argv[:1] != ["-m"] or "-m" not in sys.orig_argv:
        return None
    module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    return f"python -m {module}" if module.partition(".")[0] in _PACKAGES else None


def _watch() -> None:
    command = starting_command()
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if command is None or not usual or threading.current_thread() is not threading.main_thread():
        return

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, f"{command}: error: interrupted\n".encode())
        os._exit(128 + number)

    signal.signal(signal.SIGINT, end)


def imports_end() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again: from here on the command line handles it."""
    if getattr(signal.getsignal(signal.SIGINT), "__module__", None) == __name__:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_watch()

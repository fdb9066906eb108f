"""How processes end: workers with their parent, and a job at a signal as at the keyboard."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Ended", "end_with_parent", "interruptible"]

_LOOKS_APART = 0.5  # seconds between two looks at the parent
_watched: set[int] = set()


class Ended(KeyboardInterrupt):
    """A signal asked the job to end; `status` is the exit status that tells of it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `Ended` in the block at SIGTERM and SIGHUP, as KeyboardInterrupt is at SIGINT.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored. Outside the main thread,
    where no handler can be set, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [n for n in _ending_signals() if signal.getsignal(n) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def end_with_parent(parent: int) -> None:
    """In a worker, end the process as soon as `parent` is no longer its parent.

    A parent that is killed cannot tell its workers, which would wait for work, and hold its pipes
    open, for minutes. In the parent itself nothing happens.
    """
    if os.getpid() == parent or parent in _watched:
        return
    _watched.add(parent)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOKS_APART)
    os._exit(1)


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended(number)


def _ending_signals() -> list[int]:
    # Windows has no SIGHUP.
    return [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

"""Progress of long work: a bar on a terminal, plain lines with the time left elsewhere."""

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self, TypeVar

from tqdm import tqdm

__all__ = ["Progress", "plain_lines", "track"]

EVERY = 10.0
"""Seconds between two plain lines."""
Item = TypeVar("Item")
_plain: ContextVar[bool] = ContextVar("plain progress lines", default=False)


@contextmanager
def plain_lines() -> Iterator[None]:
    """Tell progress in the block where there is no terminal, too: what a command line wants.

    A function that is called from a notebook or a script stays silent there.
    """
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


class Progress:
    """Tells on standard error how much of `total` is done, as a context.

    On a terminal it is tqdm's bar. Elsewhere, in a log file or a pipe, and within `plain_lines`,
    one line says that work starts and one every ten seconds how far it is, even while a single
    step takes longer.
    """

    def __init__(self, total: int, label: str, unit: str = "step", done: int = 0) -> None:
        self.total, self.label, self.unit, self.done = total, label, unit, done
        self._kept, self._started = done, time.monotonic()
        self._over = threading.Event()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = tqdm(total=self.total, initial=self.done, desc=self.label, unit=self.unit)
        elif self.total and _plain.get():
            kept = f", {self._kept} of them kept from before" if self._kept else ""
            self._say(f"{self._counted(self.total)}{kept}")
            threading.Thread(target=self._repeat, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._bar is not None:
            self._bar.close()

    def update(self, count: int = 1) -> None:
        """Note that `count` more steps are done."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)

    def line(self) -> str:
        """How far the work is and how long the rest will take, from the steps done so far."""
        elapsed, fresh = time.monotonic() - self._started, self.done - self._kept
        left = elapsed / max(fresh, 1) * (self.total - self.done)
        known = f"about {_duration(left)} left" if fresh else "time left not known yet"
        return f"{self.done} of {self._counted(self.total)}, {_duration(elapsed)} so far, {known}"

    def _repeat(self) -> None:
        while not self._over.wait(EVERY):
            self._say(self.line())

    def _say(self, text: str) -> None:
        print(f"{self.label}: {text}", file=sys.stderr, flush=True)

    def _counted(self, count: int) -> str:
        return f"{count} {self.unit}{'' if count == 1 else 's'}"


def track(items: Iterable[Item], label: str, unit: str = "step") -> Iterator[Item]:
    """The items, one after the other, with their progress told."""
    items = list(items)
    with Progress(len(items), label, unit) as progress:
        for item in items:
            yield item
            progress.update()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"

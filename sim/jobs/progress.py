"""Progress of long work: a bar on a terminal, plain lines with the time left elsewhere."""

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self, TypeVar

from tqdm import tqdm

__all__ = ["Progress", "announce", "plain_lines", "track"]

EVERY = 10.0
"""Seconds between two plain lines."""
Item = TypeVar("Item")
_SILENCE = 1.5  # seconds before the first line: the user should see one within two
_announced: "Announcement | None" = None
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
        end_announcement()
        _plain.reset(token)


class Announcement:
    """Says that a command is being prepared, where that takes longer than a moment.

    PyTorch and a model take seconds to load, on a busy machine minutes. A line comes after
    `_SILENCE` seconds and every ten seconds, until the work itself tells of its progress.
    """

    def __init__(self, label: str, text: str) -> None:
        self._label, self._text, self._over = label, text, threading.Event()
        self._started = time.monotonic()
        threading.Thread(target=self._repeat, daemon=True).start()

    def end(self) -> None:
        """Say no more."""
        self._over.set()

    def _repeat(self) -> None:
        wait = _SILENCE
        while not self._over.wait(wait):
            spent = f", {_duration(time.monotonic() - self._started)} so far"
            more = spent if wait == EVERY else ""
            print(f"{self._label}: {self._text}{more}", file=sys.stderr, flush=True)
            wait = EVERY


def announce(label: str, text: str) -> None:
    """Start the announcement of the command that this process is for."""
    global _announced
    _announced = Announcement(label, text)


def end_announcement() -> None:
    """End it, where there is one: the work has begun to tell of itself, or is over."""
    if _announced is not None:
        _announced.end()


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
        end_announcement()
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
        ending = "es" if self.unit.endswith("ch") else "s"
        return f"{count} {self.unit}{'' if count == 1 else ending}"


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

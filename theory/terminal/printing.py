"""Standard output that no sign and no full disk can break: the work goes on, the end says so."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Output", "escape_unprintable", "printing"]


def escape_unprintable() -> None:
    r"""Print signs that the terminal's encoding lacks as \u2264, which is right in JSON too."""
    codecs.register_error("speculative-lab", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="speculative-lab")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    # Half a surrogate pair is no sign of its own; "surrogatepass" also takes lone halves.
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)), error.end


class Output:
    """A stream that remembers the first error of writing, and lets the work go on after it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.error: OSError | None = None if stream else OSError("standard output is closed")

    def write(self, text: str) -> int:
        """Write the text, unless writing has failed before."""
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, unless writing has failed before."""
        self._try(lambda: self._stream.flush())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _try(self, action: Callable[[], object]) -> None:
        if self.error is not None:
            return
        try:
            action()
        except OSError as error:
            self.error = error
            # Python flushes the stream once more at its end: into nothing.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextmanager
def printing() -> Iterator[Output]:
    """Replace standard output by an `Output` for the block, and flush it at its end."""
    escape_unprintable()
    before, output = sys.stdout, Output(sys.stdout)
    sys.stdout = output
    try:
        yield output
        output.flush()
    finally:
        sys.stdout = before

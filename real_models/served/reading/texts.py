"""What one server told of one text, whatever the form it told it in."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sim.checks import shorten

__all__ = ["Fault", "Key", "Row", "ServedText", "among", "entry_of", "key_of_text", "make_row"]

Key = int | str
"""A token: its id, or its text where the server does not tell ids."""

# Servers write −9999, or the lowest number of single precision, for what cannot come.
_LOWEST = -9999.0
_REPLACEMENT = "\ufffd"
_NAMED = 100
_SAME = 1e-4


class Fault(Exception):
    """What is wrong in a response, at a position of its text or at none."""

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason)
        self.position = position


class Row(NamedTuple):
    """The known tokens at one position.

    keys, logprobs : the likeliest, in descending order; ids are an array, texts a list.
    token          : the one that stands in the text; outside: its log-probability where it is none
                     of the likeliest, else None.
    names          : texts of the first hundred tokens and of the own one, as far as told.
    """

    keys: np.ndarray | list[str]
    logprobs: np.ndarray
    token: Key
    outside: float | None
    names: dict[Key, str]

    def narrowed(self, width: int) -> "Row":
        """The row with `width` likeliest tokens, where the one beyond is the text's own."""
        if len(self.keys) != width + 1 or self.keys[-1] != self.token:
            return self
        keys, logprobs = self.keys[:-1], self.logprobs[:-1]
        return Row(keys, logprobs, self.token, float(self.logprobs[-1]), self.names)


@dataclass(frozen=True)
class ServedText:
    """One text: its tokens, and a row for each of its last ones.

    tokens : in order; None for a first one that is not told.
    given  : how many of them the server was given; the others it generated.
    model  : what the server calls itself.
    """

    tokens: tuple[Key | None, ...]
    given: int
    rows: tuple[Row, ...]
    model: str = ""

    @property
    def first(self) -> int:
        """The position of the first token that a row predicts."""
        return len(self.tokens) - len(self.rows)


def entry_of(value: object, key: Key, position: int) -> float:
    """A log-probability, −∞ for what servers write in its place; Fault for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise Fault(f"the log-probability of {key!r} is {shorten(repr(value))}", position)
    if value > 0.001:
        raise Fault(f"the log-probability of {key!r} is {value}, above 0", position)
    return -math.inf if value <= _LOWEST else float(value)


def key_of_text(text: object, position: int) -> Key:
    """The key of a token that is told by its text; "token_id:335" is the id 335.

    Raises Fault for a text that stands for several tokens: bytes that are no text by themselves
    all read alike, and so do tokens without a text.
    """
    if not isinstance(text, str):
        raise Fault(f"a token is {shorten(repr(text))}, which is no text", position)
    head, colon, number = text.partition("token_id:")
    if colon and not head and number.isascii() and number.isdigit() and len(number) < 10:
        return int(number)
    if not text or _REPLACEMENT in text:
        raise Fault(
            f"the token text {text!r} can stand for several tokens; ask the server for token ids",
            position,
        )
    return text


def make_row(
    listed: Iterable[tuple[Key, float]],
    own: tuple[Key, float],
    names: dict[Key, Any],
    position: int,
) -> Row:
    """A row of the likeliest tokens, in any order, and the text's own token.

    Raises Fault for a token that is listed twice, and where the own one has two values.
    """
    pairs = sorted(listed, key=lambda pair: -pair[1])
    keys, values = [key for key, _ in pairs], np.array([value for _, value in pairs])
    if not pairs:
        raise Fault("no token is listed", position)
    if len({type(key) for key in (*keys, own[0])}) > 1:
        raise Fault("some tokens are told by ids and some by their texts", position)
    if len(set(keys)) < len(keys):
        (twice, _), *_ = Counter(keys).most_common(1)
        raise Fault(f"the token {twice!r} is listed twice", position)
    told = [*keys[:_NAMED], own[0]]
    texts = {key: names[key] for key in told if isinstance(names.get(key), str)}
    outside = None if among(own, dict(pairs), position) else own[1]
    found = np.array(keys) if isinstance(keys[0], int) else keys
    return Row(found, values, own[0], outside, texts)


def among(own: tuple[Key, float], known: dict[Key, float], position: int) -> bool:
    """Whether the text's own token is one of the likeliest; Fault where its two values differ."""
    key, value = own
    if key in known and abs(known[key] - value) > _SAME * max(1.0, abs(value)):
        raise Fault(
            f"the text's own token {key!r} has the log-probability {value}, and {known[key]} among "
            "the likeliest",
            position,
        )
    return key in known

"""Chat completions: each generated token with its text, its bytes, and from llama.cpp its id."""

import math
from collections.abc import Mapping
from typing import Any

from real_models.served.reading.checking import list_in, mapping_in, model_of, token_id
from real_models.served.reading.texts import Fault, Key, ServedText, entry_of, key_of_text, make_row
from sim.checks import shorten

__all__ = ["read_chat"]

_HALF = math.log(0.5)


def read_chat(choice: Mapping[str, Any], response: Mapping[str, Any]) -> ServedText:
    """The text that a choice generated; what stood before it is not told."""
    told = mapping_in(choice.get("logprobs"), "logprobs", None)
    tokens, rows = [], []
    for place, entry in enumerate(list_in(told.get("content"), "logprobs.content")):
        own, names = _chat_token(entry, place), {}
        pairs = []
        for one in list_in(entry.get("top_logprobs"), "top_logprobs", place):
            key, value = _chat_token(one, place)
            pairs.append((key, value))
            names[key] = one.get("token")
        names[own[0]] = entry.get("token")
        tokens.append(own[0])
        rows.append(make_row(_likeliest(pairs, own[0], place), own, names, place))
    return ServedText(tuple(tokens), 0, tuple(rows), model_of(response))


def _likeliest(pairs: list[tuple[Key, float]], own: Key, position: int) -> list[tuple[Key, float]]:
    """The tokens of a list that are surely the likeliest.

    vLLM puts the text's own token before the others and cuts the list at K, so that an own token
    that is less likely than K others takes the place of the last of them. Where it is the least
    likely of its list and does not stand last, it may be such a one.
    """
    values = dict(pairs)
    alone = len(pairs) == 1 and values.get(own, 0.0) <= _HALF
    if alone:
        raise Fault(
            f"the list holds the text's own token {own!r} alone, which need not be the likeliest; "
            "ask for more",
            position,
        )
    if own not in values or pairs[-1][0] == own or values[own] > min(values.values()):
        return pairs
    return [pair for pair in pairs if pair[0] != own]


def _chat_token(entry: Any, position: int) -> tuple[Key, float]:
    """A token by its id, else by its bytes, else by its text; and its log-probability."""
    entry = mapping_in(entry, "a token", position)
    if entry.get("id") is not None:
        key: Key = token_id(entry["id"], position)
    elif entry.get("bytes"):
        key = _key_of_bytes(entry["bytes"], position)
    else:
        key = key_of_text(entry.get("token"), position)
    return key, entry_of(entry.get("logprob"), key, position)


def _key_of_bytes(values: Any, position: int) -> Key:
    try:
        whole = bytes(values)
    except (TypeError, ValueError):
        raise Fault(f"the bytes of a token are {shorten(repr(values))}", position) from None
    try:
        return key_of_text(whole.decode(), position)
    except (UnicodeDecodeError, Fault):
        return f"bytes:{whole.hex()}"

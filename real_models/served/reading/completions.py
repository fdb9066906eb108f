"""Legacy completions: tokens are told by their texts, or by ids written as texts."""

from collections.abc import Mapping
from typing import Any

from real_models.served.reading.checking import (
    first_is_null,
    list_in,
    mapping_in,
    model_of,
    none_is_null,
    refuse_repeated,
    same_length,
)
from real_models.served.reading.texts import (
    Fault,
    Key,
    Row,
    ServedText,
    among,
    entry_of,
    key_of_text,
    make_row,
)

__all__ = ["read_completions"]


def read_completions(choice: Mapping[str, Any], response: Mapping[str, Any]) -> ServedText:
    """The text of a choice: what was echoed, and what was generated behind it.

    It was echoed where there are more tokens than `usage` counts as generated, or, where nothing is
    counted, where the first has no log-probability.
    """
    told = mapping_in(choice.get("logprobs"), "logprobs", None)
    tokens, values, tops = (
        list_in(told.get(name), name) for name in ("tokens", "token_logprobs", "top_logprobs")
    )
    same_length(tokens=tokens, token_logprobs=values, top_logprobs=tops)
    generated = _generated(choice, response, len(tokens))
    echo = bool(values) and (values[0] is None if generated is None else generated < len(tokens))
    if echo:
        first_is_null(values, tops)
    none_is_null(values, tops, start=int(echo))
    keys = [key_of_text(token, place) for place, token in enumerate(tokens)]
    width = _listed_by_all(keys, tops, int(echo))
    rows = [_by_text(keys[i], values[i], tops[i], width, i) for i in range(int(echo), len(keys))]
    given = len(keys) - (generated or 0) if echo else 0
    return ServedText(tuple(keys), given, tuple(rows), model_of(response))


def _generated(choice: Mapping[str, Any], response: Mapping[str, Any], tokens: int) -> int | None:
    """How many of the tokens the server generated, where it tells."""
    if isinstance(choice.get("prompt_token_ids"), list) and choice.get("token_ids") is not None:
        return min(len(choice["token_ids"]), tokens)
    usage = response.get("usage")
    alone = len(response.get("choices", ())) == 1
    count = usage.get("completion_tokens") if isinstance(usage, Mapping) and alone else None
    return min(count, tokens) if isinstance(count, int) else None


def _listed_by_all(keys: list[Key], tops: list[Any], start: int) -> int:
    """K: how many of the likeliest tokens each row lists.

    A row has K entries, and one more where the text's own token is none of them and therefore the
    last. So a row with its own token before others has K, and none has more than K + 1.
    """
    sure, most = set(), 0
    for place in range(start, len(keys)):
        entries = mapping_in(tops[place], "top_logprobs", place)
        most = max(most, len(entries))
        values = {key_of_text(text, place): value for text, value in entries.items()}
        own = values.get(keys[place])
        if own is not None and any(value < own for value in values.values()):
            sure.add(len(entries))
    return max(most - 1, 1, *sure)


def _by_text(own: Key, value: object, entries: Any, width: int, position: int) -> Row:
    refuse_repeated(entries, position)
    pairs = [
        (key, entry_of(value, key, position))
        for text, value in entries.items()
        for key in [key_of_text(text, position)]
    ]
    standing = (own, entry_of(value, own, position))
    among(standing, dict(pairs), position)
    if len(pairs) > width:
        pairs = [pair for pair in pairs if pair[0] != own]
    if len(pairs) != width:
        raise Fault(
            f"{len(pairs)} tokens are listed where other positions list {width}: two of one text "
            "cannot be told apart; ask the server for token ids",
            position,
        )
    return make_row(pairs, standing, {}, position)

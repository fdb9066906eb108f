"""The forms that tell tokens by their ids: vLLM's prompt_logprobs and SGLang's own."""

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
    token_id,
)
from real_models.served.reading.texts import Fault, Row, ServedText, entry_of, make_row
from sim.checks import shorten

__all__ = ["read_prompt_logprobs", "read_sglang"]


def read_prompt_logprobs(choice: Mapping[str, Any], response: Mapping[str, Any]) -> ServedText:
    """The prompt of a choice, of which every token but the first has a row."""
    entries = list_in(choice.get("prompt_logprobs") or response.get("prompt_logprobs"),
                    "prompt_logprobs")  # fmt: skip
    ids = choice.get("prompt_token_ids") or response.get("prompt_token_ids")
    if ids is not None:
        same_length(prompt_token_ids=list_in(ids, "prompt_token_ids"), prompt_logprobs=entries)
    first_is_null(entries)
    none_is_null(entries, start=1)
    rows, tokens = [], [None if ids is None else token_id(ids[0], 0)]
    for place, entry in enumerate(entries[1:], start=1):
        own, row = _by_rank(entry, None if ids is None else token_id(ids[place], place), place)
        tokens.append(own)
        rows.append(row)
    return ServedText(tuple(tokens), len(tokens), tuple(rows), model_of(response))


def _by_rank(entry: Any, own: int | None, position: int) -> tuple[int, Row]:
    """The text's own token and the row: the likeliest have the ranks 1, 2, …, each once.

    Where the ids were not asked for, the own token is the one that has no such rank; where it is
    one of the likeliest, it is the first key, as the server writes them.
    """
    refuse_repeated(entry, position)
    told = {token_id(key, position): mapping_in(value, f"token {key}", position)
            for key, value in mapping_in(entry, "prompt_logprobs", position).items()}  # fmt: skip
    values = {key: entry_of(value.get("logprob"), key, position) for key, value in told.items()}
    if not values:
        raise Fault("no token is listed", position)
    ranks = {value.get("rank"): key for key, value in told.items()}
    likely = [ranks[place] for place in range(1, len(values) + 1) if place in ranks]
    left = values.keys() - set(likely)
    own = next(iter(left or values)) if own is None else own
    if own not in values:
        raise Fault(f"the text's own token {own} is not among those that are told", position)
    if left - {own}:
        raise Fault(f"the token {min(left - {own})} has no rank of its own", position)
    names = {key: value.get("decoded_token") for key, value in told.items()}
    row = make_row([(key, values[key]) for key in likely], (own, values[own]), names, position)
    return own, row


def read_sglang(_: Mapping[str, Any], response: Mapping[str, Any]) -> ServedText:
    """The input of a response, from where its log-probabilities start, and its output."""
    meta = mapping_in(response.get("meta_info"), "meta_info", None)
    standing = list_in(meta.get("input_token_logprobs"), "input_token_logprobs")
    tops = list_in(meta.get("input_top_logprobs"), "input_top_logprobs")
    same_length(input_token_logprobs=standing, input_top_logprobs=tops)
    given, count = len(standing), meta.get("prompt_tokens")
    values = [_triple(entry, place)[0] for place, entry in enumerate(standing)]
    headed = bool(values) and (values[0] is None or count == given)
    if headed:
        first_is_null(values, tops)
    made = meta.get("output_token_logprobs") or []
    made_tops = meta.get("output_top_logprobs") or []
    same_length(output_token_logprobs=made, output_top_logprobs=made_tops)
    standing, tops = [*standing, *made], [*tops, *made_tops]
    none_is_null([entry and entry[0] for entry in standing], tops, start=int(headed))
    tokens = tuple(_triple(entry, place)[1] for place, entry in enumerate(standing))
    rows = tuple(
        _of_triples(standing[place], tops[place], place)
        for place in range(int(headed), len(standing))
    )
    return ServedText(tokens, given, rows, model_of(response))


def _of_triples(own: Any, listed: Any, position: int) -> Row:
    names, pairs = {}, []
    for entry in [own, *list_in(listed, "input_top_logprobs", position)]:
        value, key, text = _triple(entry, position)
        pairs.append((key, entry_of(value, key, position)))
        names[key] = text
    return make_row(pairs[1:], pairs[0], names, position)


def _triple(entry: Any, position: int) -> tuple[Any, int, Any]:
    if not isinstance(entry, list) or not 2 <= len(entry) <= 3:
        raise Fault(f"{shorten(repr(entry))} is not [logprob, id, text]", position)
    return entry[0], token_id(entry[1], position), entry[2] if len(entry) > 2 else None

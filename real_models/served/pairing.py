"""Two servers' rows of the same texts, laid beside each other, token by token.

Given texts must be the same tokens to both, or the rows would belong to different places. What the
servers generated themselves agrees as far as it does: the row at the first place where they differ
is still one behind the same tokens, and the last that is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from real_models.errors import UserError
from real_models.served.reading.texts import Key, Row, ServedText

__all__ = ["PairedText", "pair_texts"]


@dataclass(frozen=True)
class PairedText:
    """One text to both servers.

    tokens          : those that are known, up to the last one that a row predicts.
    position        : that of the first row's token in the text as the servers told it.
    draft, verifier : their rows, which predict the last tokens.
    """

    name: str
    tokens: tuple[Key, ...]
    position: int
    draft: tuple[Row, ...]
    verifier: tuple[Row, ...]

    def between(self, start: int, stop: int) -> "PairedText":
        """The same text with the rows of the places start … stop−1 alone."""
        kept = slice(max(start - self.position, 0), max(stop - self.position, 0))
        draft, verifier = self.draft[kept], self.verifier[kept]
        if not draft:
            raise UserError(f"text {self.name!r}: no server tells of its positions from {start} on")
        position = self.position + kept.start
        left = self.position + len(self.draft) - position - len(draft)
        tokens = self.tokens[: len(self.tokens) - left]
        return PairedText(self.name, tokens, position, draft, verifier)


def pair_texts(
    draft: Sequence[ServedText], verifier: Sequence[ServedText], names: Sequence[str] | None = None
) -> list[PairedText]:
    """The texts of both servers in the verifier's order, which the draft's need not follow.

    names : of the texts; by their number where there are none.

    Raises UserError, naming text, position and the two tokens, where one was split into other
    tokens by the two, is longer for one of them, or is told by ids here and by texts there; and
    for other numbers of texts or names.
    """
    if len(draft) != len(verifier):
        raise UserError(f"the draft was asked about {len(draft)} texts, the verifier about "
                        f"{len(verifier)}")  # fmt: skip
    if names is not None and len(names) != len(verifier):
        raise UserError(f"{len(names)} names for {len(verifier)} texts")
    named = names or [f"text-{number:05d}" for number in range(len(verifier))]
    return [_pair(*both) for both in zip(named, _in_order(draft, verifier), verifier)]


def _in_order(draft: Sequence[ServedText], verifier: Sequence[ServedText]) -> Sequence[ServedText]:
    """The draft's texts in the verifier's order, where they are the same in another one."""
    ours, theirs = ([text.tokens[: text.given] for text in texts] for texts in (draft, verifier))
    places = {tokens: place for place, tokens in enumerate(ours)}
    same = len(places) == len(ours) and places.keys() == set(theirs)
    return [draft[places[tokens]] for tokens in theirs] if same else draft


def _pair(name: str, draft: ServedText, verifier: ServedText) -> PairedText:
    both = (draft, verifier)
    end = _common(name, draft, verifier)
    first = max(text.first for text in both)
    if first >= end:
        raise UserError(f"text {name!r}: there is no position of which both servers tell")
    rows = [text.rows[first - text.first : end - text.first] for text in both]
    for place, pair in enumerate(zip(*rows), start=first):
        _same_names(name, place, *pair)
    known = [
        ours if theirs is None else theirs for ours, theirs in zip(draft.tokens, verifier.tokens)
    ]
    start = max((place + 1 for place in range(end) if known[place] is None), default=0)
    return PairedText(name, tuple(known[start:end]), first, *map(tuple, rows))


def _common(name: str, draft: ServedText, verifier: ServedText) -> int:
    """The number of tokens up to the last place of which both tell behind the same tokens."""
    given = min(draft.given, verifier.given)
    end = min(len(draft.tokens), len(verifier.tokens))
    for place, (ours, theirs) in enumerate(zip(draft.tokens, verifier.tokens)):
        if ours is None or theirs is None or ours == theirs:
            continue
        where = f"text {name!r}, position {place}: the token is {_named(draft, place)}"
        told = f"{where} to the draft and {_named(verifier, place)} to the verifier"
        if type(ours) is not type(theirs):
            raise UserError(f"{told}; ask both for token ids")
        if place < given or _split_otherwise(draft, verifier, place):
            raise UserError(f"{told}: two tokenizers, or another text")
        end = place + 1
        break
    if draft.given != verifier.given:
        raise UserError(
            f"text {name!r}, position {given}: the draft was given {draft.given} tokens of it and "
            f"the verifier {verifier.given}: one cut it, or has another tokenizer"
        )
    return end


def _split_otherwise(draft: ServedText, verifier: ServedText, place: int) -> bool:
    """Whether generated tokens differ, but what follows reads alike beyond both of them."""
    texts = ["".join(_text(text, later) for later in range(place, len(text.tokens)))
             for text in (draft, verifier)]  # fmt: skip
    longest = max(len(_text(text, place)) for text in (draft, verifier))
    shared = takewhile(lambda signs: signs[0] == signs[1], zip(*texts))
    return len(list(shared)) > longest


def _text(text: ServedText, place: int) -> str:
    """What a token of a text reads, as far as that is told."""
    key = text.tokens[place]
    if isinstance(key, str):
        return key
    row = text.rows[place - text.first] if place >= text.first else None
    return row.names.get(key, "") if row is not None and key is not None else ""


def _named(text: ServedText, place: int) -> str:
    key, told = text.tokens[place], _text(text, place)
    return f"{told!r} ({key})" if isinstance(key, int) and told else repr(key)


def _same_names(name: str, place: int, draft: Row, verifier: Row) -> None:
    """Raise UserError where an id that both rows hold is of two texts."""
    for key in draft.names.keys() & verifier.names.keys():
        ours, theirs = draft.names[key], verifier.names[key]
        # Bytes that are no text by themselves are shown in ways of each server's own.
        if ours != theirs and ours and theirs and "\ufffd" not in ours + theirs:
            raise UserError(
                f"text {name!r}, position {place}: the token {key} is {ours!r} to the draft and "
                f"{theirs!r} to the verifier: two tokenizers"
            )

"""Looking into a response: each look raises a Fault that says what is there instead."""

from collections.abc import Mapping
from typing import Any

from real_models.served.reading.texts import Fault
from sim.checks import shorten

__all__ = [
    "Repeated",
    "first_is_null",
    "list_in",
    "mapping_in",
    "model_of",
    "none_is_null",
    "refuse_repeated",
    "same_length",
    "token_id",
]


class Repeated(dict):
    """A JSON object with a key that is there twice; `repeated` names it."""

    repeated: str = ""


def refuse_repeated(entries: Any, position: int) -> None:
    """Raise Fault for an object of which one key was lost."""
    if isinstance(entries, Repeated):
        raise Fault(f"the token {entries.repeated!r} is listed twice", position)


def token_id(value: Any, position: int) -> int:
    """A token id that is written as a number, or as the text of one: "34", not "034"."""
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or len(text) > 9:
        raise Fault(f"{shorten(repr(value))} is no token id", position)
    if text != str(int(text)):
        raise Fault(f"{value!r} is no token id: {int(text)} is meant, or nothing", position)
    return int(text)


def mapping_in(value: Any, name: str, position: int | None) -> Mapping[str, Any]:
    """The JSON object that should be there."""
    if not isinstance(value, Mapping):
        raise Fault(f"{name} is {shorten(repr(value))}, not a JSON object", position)
    return value


def list_in(value: Any, name: str, position: int | None = None) -> list[Any]:
    """The list that should be there."""
    if not isinstance(value, list):
        raise Fault(f"{name} is {shorten(repr(value))}, not a list", position)
    return value


def same_length(**lists: list[Any]) -> None:
    """Raise Fault unless the lists are of one length, as those of a whole response are."""
    if len({len(values) for values in lists.values()}) > 1:
        told = ", ".join(f"{len(values)} {name}" for name, values in lists.items())
        raise Fault(f"the response is cut: it has {told}")


def first_is_null(*lists: list[Any]) -> None:
    """Raise Fault where a list tells something of the first token, which nothing predicts."""
    for values in lists:
        if not values or values[0] is not None:
            found = shorten(repr(values[0])) if values else "nothing"
            raise Fault(f"nothing predicts the first token, but null is missing: {found}", 0)


def none_is_null(*lists: list[Any], start: int) -> None:
    """Raise Fault where a list tells nothing of a token from `start` on."""
    for values in lists:
        if None in values[start:]:
            raise Fault("null stands where a token is predicted", values.index(None, start))


def model_of(response: Mapping[str, Any]) -> str:
    """What the server calls its model, or nothing."""
    return str(response.get("model") or "")

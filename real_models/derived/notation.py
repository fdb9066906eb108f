"""Drafts that are derived from a verifier by a short text instead of being loaded.

    skip:14,16,17                       leave decoder layers out   (derived.layer_skip)
    round:4,group=64,asymmetric         round the decoder's weights (derived.weight_rounding)
    skip:14,17+round:5                  both

A derived draft has the verifier's tokenizer and vocabulary by construction. Adding a kind means
adding one reader to `_READERS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from transformers import PreTrainedModel

from real_models.derived.layer_skip import parse_skip, skip_layers, skip_name
from real_models.derived.weight_rounding import WeightRounding, round_weights
from real_models.errors import UserError

__all__ = ["Derivation", "parse_derivation"]


@dataclass(frozen=True)
class Derivation:
    """How to make a draft from a verifier, and its canonical text."""

    name: str
    apply: Callable[[PreTrainedModel], PreTrainedModel]


def parse_derivation(text: str) -> Derivation | None:
    """The derivation that a text names; None for the name of a model.

    Parts joined by `+` are applied in a fixed order, each kind at most once, so that the indices
    of layers are always the verifier's own.

    Raises UserError naming the text and the form when it begins like a derivation and is none.
    """
    parts = [part.strip() for part in text.split("+")]
    if _kind(parts[0]) is None:
        return None
    kinds = [_kind(part) for part in parts]
    if None in kinds or len(set(kinds)) < len(kinds):
        raise UserError(f"draft {text!r} is not like 'skip:14,17' or 'skip:14,17+round:4'")
    steps = [_READERS[kind](part) for kind, part in sorted(zip(kinds, parts), key=_place)]
    return Derivation("+".join(step.name for step in steps), partial(_apply, steps))


def _kind(part: str) -> str | None:
    """The kind of derivation that a part begins with, if any."""
    return next((kind for kind in _READERS if part.startswith(f"{kind}:")), None)


def _place(kind_and_part: tuple[str, str]) -> int:
    """Where a kind stands in the order of application."""
    return list(_READERS).index(kind_and_part[0])


def _apply(steps: list[Derivation], verifier: PreTrainedModel) -> PreTrainedModel:
    """The steps one after the other; each leaves the model it is given unchanged."""
    for step in steps:
        verifier = step.apply(verifier)
    return verifier


def _skip(text: str) -> Derivation:
    """The derivation of `skip:…`."""
    drop = parse_skip(text)
    return Derivation(skip_name(drop), partial(skip_layers, drop=drop))


def _round(text: str) -> Derivation:
    """The derivation of `round:…`."""
    rounding = WeightRounding.parse(text)
    return Derivation(rounding.name, partial(round_weights, rounding=rounding))


_READERS: dict[str, Callable[[str], Derivation]] = {"skip": _skip, "round": _round}
"""Kind -> reader of its text, in the order in which derivations are applied."""

"""The texts on which two models are compared, and both models' logits along them.

A text is a list of token ids; its last `positions` tokens are the continuation. Scoring gives,
for each model, logits [positions, V] whose row i predicts continuation token i: it is the
output at the token *before* it. A model's output at the continuation's own last token predicts
something beyond the text and is not kept.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings, sample_tokens
from real_models.models.compatibility import head_of
from real_models.models.logits import CutMass, LogitReader, naming
from real_models.models.pair import ModelPair
from real_models.prompts import Prompt, encode_prompt

__all__ = [
    "CONTEXTS",
    "Text",
    "make_text",
    "read_along",
    "sample_continuation",
    "sample_token",
    "score",
    "start_ids",
    "text_stream",
]

CONTEXTS = ("verifier", "draft", "given")
"""Whose text the positions lie on: sampled from the verifier, from the draft, or as given."""


@dataclass(frozen=True)
class Text:
    """Token ids with the number of trailing ones that form the continuation.

    ended : the continuation stopped at an end token before its full length.
    """

    ids: tuple[int, ...]
    positions: int
    ended: bool = False


def start_ids(pair: ModelPair, prompt: Prompt, contexts: str, positions: int) -> list[int]:
    """The token ids of a prompt, as far as they are there before anything is sampled.

    With `given` that is the whole text, without a chat template.

    Raises UserError naming the prompt when a given text has fewer than two tokens, when the text
    cannot be encoded, or when the continuation would leave the models' range of positions.
    """
    if contexts == "given":
        ids = list(pair.tokenizer(prompt.prompt).input_ids)
        if len(ids) < 2:
            raise UserError(f"prompt {prompt.id!r}: a given text needs at least two tokens")
        length = len(ids)
    else:
        ids = encode_prompt(prompt, pair.tokenizer)
        length = len(ids) + positions
    limit = pair.position_limit
    if limit is not None and length > limit:
        raise UserError(
            f"prompt {prompt.id!r}: {length} tokens exceed the models' limit of {limit}"
        )
    return ids


def make_text(
    pair: ModelPair,
    prompt: Prompt,
    contexts: str,
    positions: int,
    settings: SamplingSettings,
    seed: int,
) -> Text:
    """The text for a prompt: the prompt continued by a model, or its own last tokens.

    With `given` the continuation is at most `positions` of the text's own last tokens; its
    first token has nothing before it and is never predicted.

    Raises UserError as `start_ids` does.
    """
    ids = start_ids(pair, prompt, contexts, positions)
    if contexts == "given":
        return Text(tuple(ids), min(positions, len(ids) - 1))
    uniform = text_stream(seed, prompt.id).random
    with naming([prompt.id]):
        more = sample_continuation(pair, contexts, ids, positions, settings, uniform)
    return Text((*ids, *more), len(more), ended=len(more) < positions)


def text_stream(seed: int, prompt_id: str) -> np.random.Generator:
    """The random stream of one prompt: decided by seed and id, whatever is recorded around it."""
    digest = np.frombuffer(hashlib.sha256(prompt_id.encode()).digest()[:16], dtype="<u4")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=digest.tolist()))


@torch.inference_mode()
def sample_continuation(
    pair: ModelPair,
    role: str,
    ids: list[int],
    count: int,
    settings: SamplingSettings,
    uniform: Callable[[], float],
) -> list[int]:
    """Up to `count` tokens of the pair's `verifier` or `draft` after `ids`, up to an end token.

    Raises LogitsError where the model's logits are no distribution.
    """
    model, reader = _model(pair, role), LogitReader(pair.vocabulary, role)
    more: list[int] = []
    cache = None
    step = torch.tensor([ids], device=pair.device)
    while len(more) < count and not (more and more[-1] in pair.end_tokens):
        output = model(step, cache=cache, use_cache=True)
        cache = output.cache
        logits = reader.read(output.logits[0, -1:], len(ids) + len(more))
        law = settings.probabilities(logits[0])
        more.append(sample_token(law, uniform()))
        step = torch.tensor([[more[-1]]], device=pair.device)
    return more


def sample_token(law: torch.Tensor, u: float) -> int:
    """The token at quantile u ∈ [0, 1) of one distribution [V]: see `sample_tokens`."""
    return sample_tokens(law[None], [u])[0]


@torch.inference_mode()
def score(
    pair: ModelPair, text: Text, cut: dict[str, CutMass] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draft and verifier logits [positions, V] along the continuation, one forward pass each.

    cut : counts, by `draft` and `verifier`, the mass on columns beyond the vocabulary.

    Raises LogitsError where a model's logits are no distribution or lose too much by the cut.
    """
    found = []
    for role in ("draft", "verifier"):
        model, reader = _model(pair, role), LogitReader(pair.vocabulary, role)
        found.append(read_along(model, text, reader, pair.device))
        if cut is not None:
            cut.setdefault(role, CutMass()).add(reader.cut)
    return found[0], found[1]


def read_along(
    model: PreTrainedModel, text: Text, reader: LogitReader, device: torch.device
) -> torch.Tensor:
    """The logits [positions, V] that predict the continuation of a text, in one forward pass."""
    ids = torch.tensor([text.ids[:-1]], device=device)
    logits = model(ids, use_cache=False, **head_of(model, text.positions)).logits
    return reader.read(logits[0, -text.positions :], len(text.ids) - text.positions)


def _model(pair: ModelPair, role: str) -> PreTrainedModel:
    return {"verifier": pair.verifier, "draft": pair.draft}[role]

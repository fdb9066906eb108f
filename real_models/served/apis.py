"""What servers are asked, in the words of each API.

vllm     /v1/completions with vLLM's `prompt_logprobs`: ids, and with −1 all tokens
echo     /v1/completions with `echo` and `logprobs` alone: whatever speaks legacy completions
sglang   /generate, SGLang's own
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from real_models.laws.distributions import SamplingSettings
from real_models.prompts import Prompt
from real_models.served.reading.checking import list_in, mapping_in, token_id
from real_models.served.reading.texts import Fault

__all__ = ["APIS", "Api", "Question", "Writing"]

_GREEDY = {"max_tokens": 1, "temperature": 0}


class Question(NamedTuple):
    """Where a request goes below the root of the API, and its JSON body."""

    path: str
    body: dict[str, Any]


class Writing(NamedTuple):
    """How a server continues a prompt: what it is asked, and the ids that its answer tells.

    ask  : (prompt, model, tokens, sampling, seed) → the question.
    read : the answer → the ids of prompt and continuation, and how many are new.
    """

    ask: Callable[[Prompt, str, int, SamplingSettings, int], Question]
    read: Callable[[Mapping[str, Any]], tuple[list[int], int]]


@dataclass(frozen=True)
class Api:
    """The questions of one API.

    score     : (text or its ids, model, K) → what tells of the K likeliest tokens at each position.
    writing   : None where the API does not tell ids, without which what it writes has no rows.
    has_names : whether a question names a model.
    """

    score: Callable[[str | Sequence[int], str, int], Question]
    writing: Writing | None = None
    has_names: bool = True


def _score_vllm(text: str | Sequence[int], model: str, top: int) -> Question:
    asked = {"prompt_logprobs": top, "return_token_ids": True}
    return Question("/completions", {"model": model, "prompt": text, **_GREEDY, **asked})


def _score_echo(text: str | Sequence[int], model: str, top: int) -> Question:
    asked = {"echo": True, "logprobs": top}
    return Question("/completions", {"model": model, "prompt": text, **_GREEDY, **asked})


def _score_sglang(text: str | Sequence[int], model: str, top: int) -> Question:
    given = {"text": text} if isinstance(text, str) else {"input_ids": text}
    asked = {
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": top,
        "return_text_in_logprobs": True,
    }
    made = {"sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    return Question("/generate", {**given, **made, **asked})


def _write_vllm(
    prompt: Prompt, model: str, tokens: int, sampling: SamplingSettings, seed: int
) -> Question:
    asked = {"model": model, "max_tokens": tokens, "seed": seed, "return_token_ids": True}
    asked |= _filters(sampling)
    if prompt.chat:
        messages = [{"role": "user", "content": prompt.prompt}]
        return Question("/chat/completions", {"messages": messages, **asked})
    return Question("/completions", {"prompt": prompt.prompt, **asked})


def _write_sglang(
    prompt: Prompt, model: str, tokens: int, sampling: SamplingSettings, seed: int
) -> Question:
    made = {"max_new_tokens": tokens, "sampling_seed": seed, **_filters(sampling)}
    asked = {"return_logprob": True, "logprob_start_len": 0}
    return Question("/generate", {"text": prompt.prompt, "sampling_params": made, **asked})


def _filters(sampling: SamplingSettings) -> dict[str, Any]:
    return {name: value for name, value in sampling.filters.items() if value is not None}


def _written_vllm(answer: Mapping[str, Any]) -> tuple[list[int], int]:
    choice = mapping_in((list_in(answer.get("choices"), "choices") or [None])[0], "choice 0", None)
    before = choice.get("prompt_token_ids") or answer.get("prompt_token_ids")
    return _joined(
        list_in(before, "prompt_token_ids"), list_in(choice.get("token_ids"), "token_ids")
    )


def _written_sglang(answer: Mapping[str, Any]) -> tuple[list[int], int]:
    meta = mapping_in(answer.get("meta_info"), "meta_info", None)
    sides = [
        [entry[1] for entry in list_in(meta.get(name), name)]
        for name in ("input_token_logprobs", "output_token_logprobs")
    ]
    return _joined(*sides)


def _joined(before: list[Any], new: list[Any]) -> tuple[list[int], int]:
    if not before or not new:
        raise Fault("the server wrote nothing")
    ids = [token_id(value, place) for place, value in enumerate([*before, *new])]
    return ids, len(new)


APIS: dict[str, Api] = {
    "vllm": Api(_score_vllm, Writing(_write_vllm, _written_vllm)),
    "echo": Api(_score_echo),
    "sglang": Api(_score_sglang, Writing(_write_sglang, _written_sglang), has_names=False),
}
"""API → its questions."""

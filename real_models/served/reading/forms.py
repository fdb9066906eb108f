"""The forms in which servers tell log-probabilities, each read into the same rows.

    completions       legacy completions, with `echo` or without: choices[].logprobs =
                      {tokens, token_logprobs, top_logprobs: [null, {" cat": −13.99, …}, …]}
    prompt_logprobs   vLLM's own: choices[].prompt_logprobs = [null, {"2644": {logprob, rank,
                      decoded_token}, …}, …], with `prompt_token_ids` where they were asked for
    chat              choices[].logprobs.content = [{token, logprob, bytes, top_logprobs}, …];
                      llama.cpp adds `id` to each token
    sglang            meta_info.input_token_logprobs and input_top_logprobs = [null,
                      [[logprob, id, text], …], …], and the same of the output

A text's own token is told beside the likeliest ones, whether it is one of them or not, and is never
counted among them unless it is.
"""

from collections.abc import Callable, Mapping
from typing import Any

from real_models.served.reading.chat import read_chat
from real_models.served.reading.completions import read_completions
from real_models.served.reading.identified import read_prompt_logprobs, read_sglang
from real_models.served.reading.texts import Fault, ServedText
from sim.checks import shorten

__all__ = ["FORMS", "find_form", "read_texts"]


def find_form(response: Mapping[str, Any]) -> str:
    """The form of a response; ids are preferred where the same is told by texts too.

    Raises Fault for an error of the server, and where there are no log-probabilities.
    """
    if "meta_info" in response:
        return "sglang"
    choice = _choices(response)[0]
    if response.get("prompt_logprobs") or choice.get("prompt_logprobs"):
        return "prompt_logprobs"
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, Mapping):
        raise Fault("the response holds no log-probabilities; they have to be asked for")
    return "chat" if "content" in logprobs else "completions"


def read_texts(response: Any, form: str = "auto") -> list[ServedText]:
    """What a response tells of its texts, one for each choice, in the order of their index.

    Raises Fault, with the position where there is one, for a response that is not of the form.
    """
    if not isinstance(response, Mapping):
        raise Fault(f"a response must be a JSON object, got {shorten(repr(response))}")
    read = FORMS[find_form(response) if form == "auto" else form]
    if read is read_sglang:
        return [read(response, response)]
    choices = _choices(response)
    return [read(choice, response) for choice in choices]


def _choices(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    error = response.get("error") or (response.get("object") == "error" and response)
    if error:
        message = error.get("message", error) if isinstance(error, Mapping) else error
        raise Fault(f"the server answered with an error: {shorten(str(message), 120)}")
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices:
        raise Fault("the response has neither choices nor meta_info")
    if not all(isinstance(choice, Mapping) for choice in choices):
        raise Fault("a choice is no JSON object")
    return sorted(choices, key=lambda choice: choice.get("index") or 0)


FORMS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], ServedText]] = {
    "completions": read_completions,
    "prompt_logprobs": read_prompt_logprobs,
    "chat": read_chat,
    "sglang": read_sglang,
}
"""Form → what reads a choice of it."""

"""Prompt files: JSON lines with `prompt`, and optionally `id`, `domain` and `chat`.

    {"prompt": "Explain …", "id": "explain-1", "domain": "instructions", "chat": true}

`chat` (default false) puts the prompt into the model's chat template as the user's message;
otherwise the text is continued as it stands. An `id` (default `prompt-00007`, by position) names
the prompt in traces and seeds its random stream; a `domain` (default `all`) groups prompts.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from real_models.errors import UserError

__all__ = ["DEFAULT_PROMPTS", "Prompt", "encode_prompt", "read_prompts"]

DEFAULT_PROMPTS = Path(__file__).with_name("default.jsonl")
_TYPES = {"prompt": str, "id": str, "domain": str, "chat": bool}


@dataclass(frozen=True)
class Prompt:
    """One prompt of a file; see the module for the meaning of the fields."""

    prompt: str
    id: str
    domain: str = "all"
    chat: bool = False


def read_prompts(path: Path | str | None = None) -> tuple[list[Prompt], str]:
    """The prompts of a file (the ten of the package by default) and the sha256 of its bytes.

    Raises UserError naming file and line for what is not a prompt, and for an id used twice.
    """
    path = DEFAULT_PROMPTS if path is None else Path(path)
    try:
        data = path.read_bytes()
        lines = data.decode("utf-8").splitlines()
    except OSError as error:
        raise UserError(f"prompt file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"prompt file {path} is not UTF-8: byte {error.start}") from None
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            prompt = _parse(line, f"{path} line {number}", len(prompts))
            if prompt.id in prompts:
                raise UserError(f"{path} line {number}: the id {prompt.id!r} is used twice")
            prompts[prompt.id] = prompt
    if not prompts:
        raise UserError(f"prompt file {path} holds no prompt")
    return list(prompts.values()), hashlib.sha256(data).hexdigest()


def encode_prompt(prompt: Prompt, tokenizer) -> list[int]:
    """The token ids the model sees, the chat template included where the prompt asks for it.

    Raises UserError naming the prompt when the tokenizer has no chat template, or no token is
    left to condition on.
    """
    if not prompt.chat:
        ids = tokenizer(prompt.prompt).input_ids
    elif not tokenizer.chat_template:
        raise UserError(f"prompt {prompt.id!r} is a chat, but the tokenizer has no chat template")
    else:
        messages = [{"role": "user", "content": prompt.prompt}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        # The template writes its own special tokens; the tokenizer must not add them again.
        ids = tokenizer(text, add_special_tokens=False).input_ids
    if not ids:
        raise UserError(f"prompt {prompt.id!r} has no tokens")
    return list(ids)


def _parse(line: str, where: str, index: int) -> Prompt:
    """The prompt on a line, or a UserError naming the place and the fault."""
    try:
        values = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error})") from None
    if not isinstance(values, dict) or "prompt" not in values:
        raise UserError(f'{where}: not an object with a "prompt"')
    for name, value in values.items():
        if name not in _TYPES:
            raise UserError(f"{where}: unknown field {name!r}; known are {', '.join(_TYPES)}")
        if not isinstance(value, _TYPES[name]) or value == "":
            kind = "true or false" if _TYPES[name] is bool else "a non-empty string"
            raise UserError(f"{where}: {name!r} must be {kind}, got {value!r}")
        if isinstance(value, str) and any("\ud800" <= sign <= "\udfff" for sign in value):
            raise UserError(f"{where}: {name!r} holds half of a surrogate pair, which is no text")
    return Prompt(**({"id": f"prompt-{index:05d}"} | values))

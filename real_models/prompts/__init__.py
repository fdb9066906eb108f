"""Prompt files: JSON lines with `prompt`, and optionally `id`, `domain` and `chat`, or plain text.

    {"prompt": "Explain …", "id": "explain-1", "domain": "instructions", "chat": true}

`chat` true puts the prompt into the model's chat template as the user's message, false continues
the text as it stands; where it is absent, the template is used if the model has one. An `id`
(default `prompt-00007`, by position) names the prompt in traces and seeds its random stream; a
`domain` (default `all`) groups prompts. Of a file whose name ends in `.txt` each line that is not
blank is a prompt. Lines end at a line feed and nowhere else.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from real_models.errors import UserError

__all__ = [
    "DEFAULT_PROMPTS",
    "Prompt",
    "encode_prompt",
    "given_prompt",
    "read_prompts",
    "told_form",
    "uses_template",
]

DEFAULT_PROMPTS = Path(__file__).with_name("default.jsonl")
_TYPES = {"prompt": str, "id": str, "domain": str, "chat": bool}


@dataclass(frozen=True)
class Prompt:
    """One prompt; see the module for the meaning of the fields. `chat` None is "absent"."""

    prompt: str
    id: str
    domain: str = "all"
    chat: bool | None = False


def read_prompts(path: Path | str | None = None) -> tuple[list[Prompt], str]:
    """The prompts of a file (the ten of the package by default) and the sha256 of its bytes.

    Raises UserError naming file and line for what is not a prompt, and for an id used twice.
    """
    path = DEFAULT_PROMPTS if path is None else Path(path)
    try:
        data = path.read_bytes()
        lines = data.decode("utf-8-sig").split("\n")  # U+2028 or U+0085 may stand in a text
    except OSError as error:
        raise UserError(f"prompt file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        if not isinstance(error, UnicodeDecodeError):  # a path with a null byte
            raise UserError(f"prompt file {str(path)!r} cannot be read: {error}") from None
        raise UserError(f"prompt file {path} is not UTF-8: byte {error.start}") from None
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{path} line {number}"
            plain = path.suffix.lower() == ".txt"
            values = {"prompt": line.removesuffix("\r")} if plain else _object(line, where)
            prompt = _checked(values, where, len(prompts))
            if prompt.id in prompts:
                raise UserError(f"{path} line {number}: the id {prompt.id!r} is used twice")
            prompts[prompt.id] = prompt
    if not prompts:
        raise UserError(f"prompt file {path} holds no prompt")
    return list(prompts.values()), hashlib.sha256(data).hexdigest()


def given_prompt(text: str, chat: bool | None) -> Prompt:
    """The one prompt of a command line; UserError for an empty one or bytes that are no text."""
    if not text:
        raise UserError("--prompt is empty")
    if _holds_surrogates(text):
        raise UserError("--prompt holds bytes that are not UTF-8, or half of a surrogate pair")
    return Prompt(text, "prompt", chat=chat)


def uses_template(prompt: Prompt, tokenizer) -> bool:
    """Whether a prompt goes through the chat template: as it says, else if there is one."""
    return bool(tokenizer.chat_template) if prompt.chat is None else prompt.chat


def told_form(prompts: Sequence[Prompt], tokenizer, model: str) -> str:
    """One line on how the prompts are put to the model."""
    count = sum(uses_template(prompt, tokenizer) for prompt in prompts)
    through = f"through the chat template of {model}"
    if count == len(prompts):
        return f"prompts go {through}"
    if count == 0:
        return "prompts as raw text"
    return f"{count} of {len(prompts)} prompts go {through}, the others as raw text"


def encode_prompt(prompt: Prompt, tokenizer) -> list[int]:
    """The token ids the model sees, the chat template included where the prompt goes through it.

    Raises UserError naming the prompt when it asks for a chat template and the tokenizer has none,
    when it is no text, or when no token is left to condition on.
    """
    if _holds_surrogates(prompt.prompt):
        raise UserError(f"prompt {prompt.id!r} holds half of a surrogate pair, which is no text")
    if not uses_template(prompt, tokenizer):
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


def _object(line: str, where: str) -> dict:
    """The JSON object on a line that has a prompt, or a UserError naming the place."""
    try:
        values = json.loads(line)
    except RecursionError:
        raise UserError(f"{where}: not JSON of this form (nested too deeply)") from None
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error})") from None
    if not isinstance(values, dict) or "prompt" not in values:
        raise UserError(f'{where}: not an object with a "prompt"')
    return values


def _checked(values: dict, where: str, index: int) -> Prompt:
    """The prompt of these fields, or a UserError naming the place and the fault."""
    for name, value in values.items():
        if name not in _TYPES:
            known = ", ".join(_TYPES)
            raise UserError(f"{where}: unknown field {name[:40]!r}; known are {known}")
        if not isinstance(value, _TYPES[name]) or value == "":
            kind = "true or false" if _TYPES[name] is bool else "a non-empty string"
            raise UserError(f"{where}: {name!r} must be {kind}, got {_short(value)}")
        if isinstance(value, str) and _holds_surrogates(value):
            raise UserError(f"{where}: {name!r} holds half of a surrogate pair, which is no text")
    return Prompt(**({"id": f"prompt-{index:05d}", "chat": None} | values))


def _holds_surrogates(text: str) -> bool:
    return any("\ud800" <= sign <= "\udfff" for sign in text)


def _short(value: object) -> str:
    """A value as it may stand in one line of an error."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply; an integer of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}…"

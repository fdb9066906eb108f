"""What two models must share before their distributions may be compared.

Every function names both sides (`sides`, such as "verifier 'a' and draft 'b'") in its errors,
because the fault is rarely in one of them.
"""

import hashlib
import json
from inspect import signature

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from real_models.errors import UserError

__all__ = [
    "check_devices",
    "check_tokenizers",
    "common_vocabulary",
    "end_tokens",
    "head_of",
    "logit_width",
    "model_device",
    "tokenizer_hash",
    "with_padding",
]


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 (hex) over the mapping of tokens to ids, added tokens included."""
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def check_tokenizers(
    verifier: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase | None, sides: str
) -> None:
    """Both tokenizers must map the same tokens to the same ids; None is "the verifier's own".

    Raises UserError with the number of differing entries and one of them.
    """
    if draft is None or tokenizer_hash(verifier) == tokenizer_hash(draft):
        return
    ours, theirs = verifier.get_vocab(), draft.get_vocab()
    differing = sorted(t for t in ours.keys() | theirs.keys() if ours.get(t) != theirs.get(t))
    token = differing[0]
    raise UserError(
        f"{sides} have different tokenizers: {len(differing)} entries differ, "
        f"for example {token!r} is {ours.get(token)} and {theirs.get(token)}"
    )


def check_devices(verifier: PreTrainedModel, draft: PreTrainedModel, sides: str) -> None:
    """Both models must take inputs and give logits on one device, or UserError names the two."""
    ours, theirs = model_device(verifier), model_device(draft)
    if ours != theirs:
        raise UserError(f"{sides} are on different devices: {ours} and {theirs}")


def common_vocabulary(
    verifier: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sides: str,
    allow_padded: bool,
) -> int:
    """V, the number of leading logit columns that both models share.

    Equal widths are taken whole. Checkpoints of one family may pad the same vocabulary to
    different widths; with `allow_padded` both are then cut to the tokenizer's size, which
    conditions each distribution on a token that exists.

    Raises UserError for different widths without leave, or a tokenizer larger than a width.
    """
    widths = logit_width(verifier), logit_width(draft)
    size = max(tokenizer.get_vocab().values()) + 1
    if size > min(widths):
        raise UserError(
            f"{sides} have {widths[0]} and {widths[1]} logits, but the tokenizer has {size} ids"
        )
    if widths[0] == widths[1]:
        return widths[0]
    if not allow_padded:
        raise UserError(
            f"{sides} have vocabularies of different width, {widths[0]} and {widths[1]}; if only "
            f"the padding differs, --allow-padded-vocab cuts both to the tokenizer's {size}"
        )
    return size


def end_tokens(
    verifier: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sides: str
) -> tuple[int, ...]:
    """The ids that end a text, by the tokenizer or by the verifier's generation settings.

    Raises UserError when there is none: a text would never end.
    """
    named = getattr(verifier.generation_config, "eos_token_id", None)
    ids = set(named) if isinstance(named, list | tuple) else {named}
    ids = (ids | {tokenizer.eos_token_id}) - {None}
    if not ids:
        raise UserError(f"{sides} have no end-of-text token, in the tokenizer or the verifier")
    return tuple(sorted(ids))


def with_padding(
    tokenizer: PreTrainedTokenizerBase, pad_token: str | None, sides: str
) -> PreTrainedTokenizerBase:
    """The tokenizer with a pad token: its own, or the entry `pad_token` of its vocabulary.

    Raises UserError when there is neither, or when `pad_token` is no entry: adding one would
    make an id that the models have no logit for.
    """
    if pad_token is not None:
        if pad_token not in tokenizer.get_vocab():
            raise UserError(f"pad token {pad_token!r} is not in the vocabulary of {sides}")
        tokenizer.pad_token = pad_token
    if tokenizer.pad_token_id is None:
        hint = f", for example {tokenizer.eos_token!r}" if tokenizer.eos_token else ""
        raise UserError(f"{sides} have no pad token; name one with --pad-token{hint}")
    return tokenizer


def logit_width(model: PreTrainedModel) -> int:
    """The number of logits per position: the rows of the output embedding."""
    head = model.get_output_embeddings()
    return model.config.get_text_config().vocab_size if head is None else head.weight.shape[0]


def model_device(model: PreTrainedModel) -> torch.device:
    """Where inputs go and logits come from; for a model spread over devices, its entry's."""
    hook = getattr(model, "_hf_hook", None)
    device = getattr(hook, "execution_device", None)
    return model.device if device is None else torch.device(device)


def head_of(model: PreTrainedModel, count: int) -> dict[str, int]:
    """The argument that asks a model for the logits at its last `count` inputs only, if it can.

    For a long prompt and a large vocabulary the others would be most of the memory.
    """
    keeps = "logits_to_keep" in signature(model.forward).parameters
    return {"logits_to_keep": count} if keeps else {}

"""A draft/verifier pair that is fit to be measured.

    pair = load_pair("smollm2-skip3")
    pair = load_pair(verifier="Qwen/Qwen3-14B", draft="Qwen/Qwen3-0.6B")
    pair = load_pair(verifier="smollm2", draft="skip:14,16,17")
    pair = load_pair(verifier="smollm2", draft="round:4")

Everything that would make a comparison of p and q meaningless is refused here, once: different
tokenizers, logits of different width, models on different devices, no end-of-text token.
"""

import difflib
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from real_models.derived.layer_skip import skip_name
from real_models.derived.notation import parse_derivation
from real_models.errors import UserError
from real_models.models.bundled import BUNDLED
from real_models.models.compatibility import (
    check_devices,
    check_tokenizers,
    common_vocabulary,
    end_tokens,
    logit_width,
    model_device,
    tokenizer_hash,
    with_padding,
)
from real_models.models.loading import LoadOptions, load_model

__all__ = ["PAIRS", "ModelPair", "load_pair", "make_pair", "register_pair", "tokenizer_hash"]

PAIRS: dict[str, tuple[str, str]] = {}
"""Names of the command line: name -> (verifier, draft)."""


@dataclass(frozen=True)
class ModelPair:
    """A draft and a verifier over one vocabulary, checked by `make_pair`.

    vocabulary : V, the leading columns of both models' logits that count; less than the
                 models' widths only where padded vocabularies were allowed.
    end_tokens : the ids that end a text, in ascending order.
    """

    name: str
    verifier_name: str
    draft_name: str
    verifier_revision: str
    draft_revision: str
    tokenizer: PreTrainedTokenizerBase
    verifier: PreTrainedModel
    draft: PreTrainedModel
    tokenizer_hash: str
    vocabulary: int
    end_tokens: tuple[int, ...]

    @property
    def device(self) -> torch.device:
        """The device that inputs go to and logits come from, the same for both models."""
        return model_device(self.verifier)

    @property
    def logit_widths(self) -> dict[str, int]:
        """The width of each model's own logits, before the cut to `vocabulary`."""
        return {"draft": logit_width(self.draft), "verifier": logit_width(self.verifier)}

    @property
    def position_limit(self) -> int | None:
        """The longest text both models can take, in tokens; None if neither states one."""
        limits = [
            getattr(model.config.get_text_config(), "max_position_embeddings", None)
            for model in (self.draft, self.verifier)
        ]
        return min((limit for limit in limits if limit is not None), default=None)


def register_pair(name: str, verifier: str, draft: str) -> None:
    """Add a pair to the names of the command line; a name already taken is a ValueError."""
    if name in PAIRS:
        raise ValueError(f"the pair {name!r} is registered already, as {PAIRS[name]}")
    PAIRS[name] = (verifier, draft)


# Layers of the bundled verifier in the order in which leaving them out costs least acceptance.
for _count, _layers in {
    1: (17,),
    2: (14, 17),
    3: (14, 16, 17),
    4: (14, 16, 17, 18),
    5: (14, 16, 17, 18, 26),
    6: (14, 16, 17, 18, 25, 26),
    8: (13, 14, 15, 16, 17, 18, 25, 26),
}.items():
    register_pair(f"smollm2-skip{_count}", BUNDLED, skip_name(_layers))

# Roundings of the bundled verifier, from near to far: acceptance at T = 1 is about 0.84, 0.76 and
# 0.27. Its own weights are 4-bit groups of 32 with a zero point, which a group of 64 cannot follow.
for _bits, _kind in {5: "symmetric", 4: "asymmetric", 3: "symmetric"}.items():
    register_pair(f"smollm2-round{_bits}", BUNDLED, f"round:{_bits},group=64,{_kind}")


def load_pair(
    name: str | None = None,
    *,
    verifier: str | None = None,
    draft: str | None = None,
    options: LoadOptions | None = None,
    allow_padded_vocab: bool = False,
    pad_token: str | None = None,
) -> ModelPair:
    """Load a registered pair by name, or any two models.

    verifier : as `loading.load_model` takes it. draft : the same, or a derivation of the verifier
    such as `skip:14,16,17` or `round:4` (see `derived.notation`). The other arguments are those
    of `make_pair`.

    Raises UserError when the names are unknown or the models do not make a pair.
    """
    if (name is None) == (verifier is None and draft is None):
        raise UserError("give either the name of a pair or a verifier with a draft")
    if name is not None:
        verifier, draft = _registered(name)
    if verifier is None or draft is None:
        missing = "verifier" if verifier is None else "draft"
        raise UserError(f"a verifier and a draft go together; the {missing} is missing")
    options = options or LoadOptions()
    derivation = parse_derivation(draft)
    target = load_model(verifier, "verifier", options)
    if derivation is not None:
        small, draft_tokenizer = derivation.apply(target.model), None
        draft_name, draft_revision = f"{verifier} {derivation.name}", target.revision
    else:
        loaded = load_model(draft, "draft", options)
        small, draft_tokenizer = loaded.model, loaded.tokenizer
        draft_name, draft_revision = draft, loaded.revision
    return make_pair(
        target.model,
        small,
        target.tokenizer,
        draft_tokenizer=draft_tokenizer,
        name=name or f"{verifier} / {draft}",
        names=(verifier, draft_name),
        revisions=(target.revision, draft_revision),
        allow_padded_vocab=allow_padded_vocab,
        pad_token=pad_token,
    )


def make_pair(
    verifier: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    draft_tokenizer: PreTrainedTokenizerBase | None = None,
    name: str = "pair",
    names: tuple[str, str] = ("verifier", "draft"),
    revisions: tuple[str, str] = ("unknown", "unknown"),
    allow_padded_vocab: bool = False,
    pad_token: str | None = None,
) -> ModelPair:
    """Check that two loaded models make a pair. `names` and `revisions` are (verifier, draft).

    draft_tokenizer    : None says that the draft uses the verifier's.
    allow_padded_vocab : logits of different width are cut to the tokenizer's size.
    pad_token          : an entry of the vocabulary to pad with, for tokenizers that name none.

    Raises UserError naming both sides when the tokenizers differ, the logit widths differ
    without leave, the models are on different devices, or an end or pad token is missing.
    """
    sides = f"verifier {names[0]!r} and draft {names[1]!r}"
    check_tokenizers(tokenizer, draft_tokenizer, sides)
    check_devices(verifier, draft, sides)
    return ModelPair(
        name=name,
        verifier_name=names[0],
        draft_name=names[1],
        verifier_revision=revisions[0],
        draft_revision=revisions[1],
        tokenizer=with_padding(tokenizer, pad_token, sides),
        verifier=verifier,
        draft=draft,
        tokenizer_hash=tokenizer_hash(tokenizer),
        vocabulary=common_vocabulary(verifier, draft, tokenizer, sides, allow_padded_vocab),
        end_tokens=end_tokens(verifier, tokenizer, sides),
    )


def _registered(name: str) -> tuple[str, str]:
    """Verifier and draft of a registered pair, or a UserError with the nearest names."""
    if name in PAIRS:
        return PAIRS[name]
    near = difflib.get_close_matches(name, PAIRS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(PAIRS)}"
    raise UserError(
        f"unknown pair {name!r}; {hint}; any two models make a pair by verifier=… and draft=…, "
        "on a command line by --verifier and --draft"
    )

"""Layer-skip drafts: the verifier itself with some decoder layers left out.

The draft of self-speculative decoding. It has the verifier's tokenizer and vocabulary by
construction, and it costs no memory: every parameter and buffer of the draft *is* the
verifier's tensor. Only the module objects and the configuration are copied, because both
count layers: a layer finds its keys and values in the cache by `layer_idx`, and the cache is
built from `config.num_hidden_layers` and `config.layer_types`.
"""

from collections.abc import Iterable

from torch import nn
from transformers import PreTrainedModel

from real_models.derived.decoder_layers import layer_list_name, shared_copy
from real_models.errors import UserError
from sim.checks import shorten

__all__ = ["parse_skip", "skip_layers", "skip_name"]

_PREFIX = "skip:"


def skip_layers(verifier: PreTrainedModel, drop: Iterable[int]) -> PreTrainedModel:
    """The verifier without the decoder layers `drop` (indices from 0), sharing every tensor.

    An empty `drop` gives a model with exactly the verifier's logits. Training the draft or
    moving it to another device would change the verifier too.

    Raises UserError for a repeated index, one outside [0, layers), when no layer would be left,
    or when the architecture's layers cannot be left out independently.
    """
    layers = _layer_list(verifier)
    dropped = _checked(list(drop), len(verifier.get_submodule(layers)))
    draft = shared_copy(verifier)
    total = len(draft.get_submodule(layers))
    kept = [index for index in range(total) if index not in dropped]
    stack = nn.ModuleList(draft.get_submodule(layers)[index] for index in kept)
    _renumber(stack)
    draft.set_submodule(layers, stack)
    _shorten(draft.config.get_text_config(decoder=True), kept, total)
    return draft.eval()


def parse_skip(text: str) -> tuple[int, ...] | None:
    """The layers named by `skip:14,16,17` (`skip:` alone names none); None for other texts.

    Raises UserError when what follows `skip:` is not a list of integers.
    """
    if not text.startswith(_PREFIX):
        return None
    parts = [part.strip() for part in text[len(_PREFIX) :].split(",")]
    if parts == [""]:
        return ()
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise UserError(f"draft {shorten(text)!r} is not like 'skip:14,16,17'")
    return tuple(int(part) for part in parts)


def skip_name(drop: Iterable[int]) -> str:
    """The inverse of `parse_skip`: `skip:14,16,17`, in ascending order."""
    return _PREFIX + ",".join(str(index) for index in sorted(drop))


def _layer_list(model: PreTrainedModel) -> str:
    """The name of the decoder's list of layers; UserError where they do not stand alone."""
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "is_heterogeneous", False) or getattr(config, "num_kv_shared_layers", 0):
        raise UserError(
            f"{type(model).__name__} has layers that depend on each other's place or cache; "
            "layers cannot be skipped"
        )
    return layer_list_name(model)


def _checked(drop: list[int], total: int) -> frozenset[int]:
    """The indices as a set, or a UserError naming the first that is no layer of this model."""
    for index in drop:
        if not 0 <= index < total:
            raise UserError(f"cannot skip layer {index}: the verifier has layers 0 … {total - 1}")
    if len(set(drop)) < len(drop):
        raise UserError(f"the layers to skip repeat an index: {drop}")
    if len(drop) == total:
        raise UserError(f"cannot skip all {total} layers of the verifier")
    return frozenset(drop)


def _renumber(stack: nn.ModuleList) -> None:
    """Give each layer, and whatever in it uses the cache, its new place as `layer_idx`."""
    for place, layer in enumerate(stack):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = place


def _shorten(config, kept: list[int], total: int) -> None:
    """Bring the configuration's layer count and its per-layer lists down to the kept layers."""
    config.num_hidden_layers = len(kept)
    for name, value in vars(config).items():
        if "layer" in name and isinstance(value, list) and len(value) == total:
            setattr(config, name, [value[index] for index in kept])

"""Weight-rounded drafts: the verifier with the linear layers of its decoder rounded to a few bits.

Round to nearest in groups of neighbouring inputs, w ← ŵ with n bits per weight:

    symmetric    ŵ = s · round(w / s)               s = max|w| / (2ⁿ⁻¹ − 1)
    asymmetric   ŵ = min w + s · round((w − min w) / s)   s = (max w − min w) / (2ⁿ − 1)

maxima and minima over the group; |ŵ − w| ≤ s / 2 either way. Symmetric rounding keeps 0 and spends
one code less; asymmetric rounding has a real-valued zero point, as the Q4_1 blocks of GGUF have.

The rounded weights are kept as numbers of the verifier's precision. This is a draft whose *law* is
that of a quantised verifier, to be compared with it; it is no smaller and no faster, which takes
packed weights and kernels that read them. Embeddings, norms, biases and head are the verifier's own
tensors.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from real_models.derived.decoder_layers import layer_list_name, shared_copy
from real_models.errors import UserError
from sim.checks import shorten

__all__ = ["WeightRounding", "round_groups", "round_weights"]

_PREFIX = "round:"
_FORM = "'round:4' or 'round:4,group=64,asymmetric' (bits 2 … 16, group ≥ 1)"
# Which axis of its weight each kind of linear layer sums over; GPT-2 stores the transpose.
_INPUT_AXIS = {nn.Linear: 1, Conv1D: 0}


@dataclass(frozen=True)
class WeightRounding:
    """How to round: bits per weight, weights per group, and whether around 0.

    Raises UserError when bits are outside 2 … 16 or the group is empty.
    """

    bits: int
    group: int = 64
    symmetric: bool = True

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16 or self.group < 1:
            raise UserError(
                f"cannot round to bits={self.bits} in groups of {self.group}; write {_FORM}"
            )

    @property
    def name(self) -> str:
        """Every choice written out, as `parse` reads it: `round:4,group=64,symmetric`."""
        kind = "symmetric" if self.symmetric else "asymmetric"
        return f"{_PREFIX}{self.bits},group={self.group},{kind}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The rounding that `round:BITS[,group=SIZE][,symmetric|asymmetric]` names.

        None for a text of another kind. Raises UserError naming the text and the form.
        """
        if not text.startswith(_PREFIX):
            return None
        bits, *choices = (part.strip() for part in text[len(_PREFIX) :].split(","))
        values = {}
        for choice in choices:
            key, _, size = choice.partition("=")
            if key == "group" and size.isdecimal() and len(size) < 10 and "group" not in values:
                values["group"] = int(size)
            elif choice in ("symmetric", "asymmetric") and "symmetric" not in values:
                values["symmetric"] = choice == "symmetric"
            else:
                raise UserError(
                    f"draft {shorten(text)!r}: {shorten(choice)!r} is not understood; write {_FORM}"
                )
        if not (bits.isdecimal() and len(bits) < 10):
            raise UserError(f"draft {shorten(text)!r} is not like {_FORM}")
        return cls(int(bits), **values)


def round_weights(verifier: PreTrainedModel, rounding: WeightRounding) -> PreTrainedModel:
    """The verifier with rounded decoder layers; every tensor that is not rounded is shared.

    The verifier is unchanged. New memory: one copy of the decoder's matrices.

    Raises UserError naming the weight when a matrix of the decoder belongs to no linear layer, is
    quantised already or is not in memory: a part left unrounded would go unnoticed.
    """
    draft = shared_copy(verifier)
    decoder = draft.get_submodule(layer_list_name(draft))
    linear = {name: module for name, module in decoder.named_modules() if _axis(module) is not None}
    _check_weights(decoder, linear)
    for module in linear.values():
        rounded = round_groups(module.weight.detach(), rounding, axis=_axis(module))
        module.weight = nn.Parameter(rounded, requires_grad=False)
    return draft.eval()


@torch.no_grad()
def round_groups(weight: torch.Tensor, rounding: WeightRounding, axis: int = -1) -> torch.Tensor:
    """ŵ in the shape and precision of `weight`; groups run along `axis`.

    The last group is shorter where the size is no multiple of the group. The arithmetic is in
    float32 at least, since scales in bfloat16 would lose the bound of half a step.
    """
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    nearest = _symmetric if rounding.symmetric else _asymmetric
    groups = [nearest(part, rounding.bits, axis) for part in wide.split(rounding.group, dim=axis)]
    return torch.cat(groups, dim=axis).to(weight.dtype)


def _symmetric(group: torch.Tensor, bits: int, axis: int) -> torch.Tensor:
    """s · round(w / s), codes −(2ⁿ⁻¹ − 1) … 2ⁿ⁻¹ − 1."""
    step = group.abs().amax(axis, keepdim=True) / (2 ** (bits - 1) - 1)
    return step * (group / _divisor(step)).round()


def _asymmetric(group: torch.Tensor, bits: int, axis: int) -> torch.Tensor:
    """min + s · round((w − min) / s), codes 0 … 2ⁿ − 1."""
    lowest, highest = group.aminmax(dim=axis, keepdim=True)
    step = (highest - lowest) / (2**bits - 1)
    return lowest + step * ((group - lowest) / _divisor(step)).round()


def _divisor(step: torch.Tensor) -> torch.Tensor:
    """The step, and 1 where it is 0: a group of equal weights is kept as it is."""
    return torch.where(step > 0, step, 1)


def _axis(module: nn.Module) -> int | None:
    """The input axis of a linear layer's weight; None for other modules."""
    return next((axis for kind, axis in _INPUT_AXIS.items() if isinstance(module, kind)), None)


def _check_weights(decoder: nn.Module, linear: dict[str, nn.Module]) -> None:
    """Every matrix of the decoder must be a floating-point weight of a linear layer."""
    known = {id(module.weight) for module in linear.values()}
    for name, weight in decoder.named_parameters():
        if weight.ndim < 2 and id(weight) not in known:
            continue
        if id(weight) not in known:
            raise UserError(f"cannot round {name!r}: it is not the weight of a linear layer")
        if not weight.is_floating_point() or weight.device.type == "meta":
            state = "not in memory" if weight.device.type == "meta" else f"{weight.dtype} already"
            raise UserError(f"cannot round {name!r}: it is {state}")

"""The decoder layers of a model, and copies of a model that share its tensors.

Drafts that are derived from a verifier rearrange or replace its decoder layers. They copy the
module objects, which are small, and keep every parameter and buffer that they do not change.
"""

import copy
from itertools import chain

from torch import nn
from transformers import PreTrainedModel

from real_models.errors import UserError

__all__ = ["layer_list_name", "shared_copy"]


def layer_list_name(model: PreTrainedModel) -> str:
    """The qualified name of the decoder's list of layers, such as `model.layers`.

    Raises UserError naming the architecture when it has no such list.
    """
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return name
    raise UserError(f"{type(model).__name__} has no list of {count} layers")


def shared_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Modules and configuration copied, every parameter and buffer the model's own tensor.

    Replacing a module or an entry of the configuration leaves the model as it was; training the
    copy or moving it to another device would change the model too.
    """
    tensors = chain(model.parameters(), model.buffers())
    # What the memo already holds is taken as it is instead of being copied.
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})

"""A cache from which rejected drafts can be dropped, however far back, or a refusal by name.

A layer whose attention slides over a window forgets what has left the window, so that a text that
is cut back misses states which it needs again. Its cache is replaced by one that keeps everything:
the window itself is in the attention mask, which transformers makes for any length of the cache. It
costs memory for the whole text. A recurrent state (Mamba, linear attention, a convolution over the
text) mixes all tokens into one: nothing can be taken out of it again.
"""

from inspect import signature

from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    DummyLayer,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from real_models.errors import UserError

__all__ = ["check_texts", "keeps_cache", "rollback_cache", "takes", "takes_trees"]


def takes(model: PreTrainedModel, argument: str) -> bool:
    """Whether the model's forward pass has an argument of this name."""
    return argument in signature(model.forward).parameters


def keeps_cache(model: PreTrainedModel) -> bool:
    """Whether the model works with transformers' caches at all; others compute a text anew."""
    return takes(model, "cache")


def rollback_cache(model: PreTrainedModel, role: str) -> DynamicCache | None:
    """An empty cache for the model whose every layer keeps all states; None where it has none.

    Raises UserError naming `role` and the model's class where a layer has a state that cannot be
    rolled back.
    """
    if getattr(model, "_is_stateful", False):
        raise _no_rollback(model, role, "a recurrent state")
    if not keeps_cache(model):
        return None
    cache = _default_cache(model, role)
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicSlidingWindowLayer:
            cache.layers[place] = DynamicLayer()
        elif type(layer) not in (DynamicLayer, DynamicIndexedLayer, DummyLayer):
            raise _no_rollback(model, role, f"a {type(layer).__name__} in its cache")
    return cache


def check_texts(model: PreTrainedModel, role: str, texts: int) -> None:
    """Several texts of different length leave columns in the cache that hold nothing of a text.

    Raises UserError where these would count: in a window over columns, in a cache with an index,
    or in a model that counts positions by itself.
    """
    if texts > 1 and not _allows_holes(model, role):
        raise UserError(
            f"{role}: {type(model).__name__} has layers whose cache cannot hold texts of "
            "different length; decode one text at a time"
        )


def takes_trees(model: PreTrainedModel, role: str) -> bool:
    """Whether one pass can read a tree: each token has a mask and a position of its own.

    A window over columns would see other branches, and kernels of their own take no mask.
    """
    own = getattr(model.config, "_attn_implementation", None) in ("eager", "sdpa")
    plain = keeps_cache(model) and takes(model, "position_ids") and _allows_holes(model, role)
    return own and plain


def _allows_holes(model: PreTrainedModel, role: str) -> bool:
    if not keeps_cache(model):
        return takes(model, "position_ids")
    layers = _default_cache(model, role).layers
    plain = all(type(layer) in (DynamicLayer, DummyLayer) for layer in layers)
    local = "local" in (getattr(model.config, "attention_layers", None) or ())  # GPT-Neo
    return plain and not local and takes(model, "position_ids")


def _default_cache(model: PreTrainedModel, role: str) -> DynamicCache:
    try:
        return DynamicCache(config=model.config)
    except KeyError as error:
        raise _no_rollback(model, role, f"layers of the kind {error}") from None


def _no_rollback(model: PreTrainedModel, role: str, what: str) -> UserError:
    return UserError(
        f"{role}: {type(model).__name__} has {what}, which cannot be rolled back when a draft is "
        "rejected; take a model whose layers all attend to cached keys"
    )

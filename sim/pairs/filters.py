"""Logits to probabilities, and the sampling filters, for synthetic rows (numpy, last axis V)."""

import numpy as np

__all__ = ["filter_probabilities", "softmax"]


def softmax(logits: np.ndarray) -> np.ndarray:
    """exp(logits) / Σ exp(logits) over the last axis; a logit of −∞ gives probability 0.

    Each row needs one finite logit; an empty batch gives an empty array.
    """
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    weights = np.exp(shifted)
    return weights / np.sum(weights, axis=-1, keepdims=True)


def filter_probabilities(
    probabilities: np.ndarray, top_k: int = 0, top_p: float = 1.0
) -> np.ndarray:
    """Keep the `top_k` largest entries, then the smallest set of those with a mass of `top_p`.

    The mass is counted after top-k, as decoders do. top_k = 0 and top_p = 1 keep every token of
    positive probability. Among equal entries the one of lower index is kept. The kept entries are
    divided by their sum, which is what the sampler draws from. Shapes: [..., V] to [..., V].
    """
    order = np.argsort(-probabilities, axis=-1, kind="stable")
    kept = np.take_along_axis(probabilities, order, axis=-1)
    if top_k > 0:
        kept[..., top_k:] = 0
    if top_p < 1:
        mass = np.cumsum(kept, axis=-1)
        before = mass - kept
        kept = np.where(before < top_p * mass[..., -1:], kept, 0)
    result = np.zeros_like(probabilities)
    np.put_along_axis(result, order, kept, axis=-1)
    return result / np.sum(result, axis=-1, keepdims=True)

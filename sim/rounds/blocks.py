"""What a round of draft-and-verify emits, given which drafts were accepted."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sim.rounds.inputs import plain_array, whole_numbers

__all__ = ["NO_TOKEN", "Block", "require_tokens", "verify_block", "verify_greedy"]

NO_TOKEN = -1  # fills the places of a round after its last token


@dataclass(frozen=True)
class Block:
    """Emitted tokens [..., k+1], filled up with −1, and how many drafts were accepted [...]."""

    tokens: np.ndarray
    accepted: np.ndarray


def verify_block(
    draft_tokens: ArrayLike,
    accepted: ArrayLike,
    recovery_tokens: ArrayLike,
    bonus_token: ArrayLike,
    draft_lengths: ArrayLike | None = None,
) -> Block:
    """What a round emits: drafts up to the first rejection, then one token of the verifier.

    draft_tokens, accepted, recovery_tokens: [..., k], aligned; the recovery token is read at the
    first rejected position only, and a flag after that position does not count. bonus_token: [...],
    read where no draft is rejected. `draft_lengths` [...] says how many drafts are real where rows
    are padded; without it all k are. Integers of any width give tokens of int64. Raises ValueError,
    naming the argument, for shapes that do not match, tokens and lengths that are no integers,
    flags that are not True or False, lengths beyond k, and a negative token that would be read.
    """
    drafts = whole_numbers("draft_tokens", draft_tokens)
    recovery = whole_numbers("recovery_tokens", recovery_tokens)
    bonus, flags = whole_numbers("bonus_token", bonus_token), _flags(accepted)
    _require_aligned(drafts, flags, recovery, bonus)
    k = drafts.shape[-1]
    real = np.arange(k) < _lengths(k if draft_lengths is None else draft_lengths, k)[..., None]
    require_tokens("draft_tokens", drafts, real)
    kept = np.sum(np.cumprod(flags & real, axis=-1), axis=-1)
    rejected = real & (np.arange(k) == kept[..., None])
    full = ~np.any(rejected, axis=-1)
    require_tokens("recovery_tokens", recovery, rejected)
    require_tokens("bonus_token", bonus, full)
    last = np.where(full, bonus, np.sum(recovery, axis=-1, where=rejected))[..., None]
    place, end = np.arange(k + 1), kept[..., None]
    widened = np.concatenate([drafts, np.full_like(last, NO_TOKEN)], axis=-1)
    return Block(np.where(place < end, widened, np.where(place == end, last, NO_TOKEN)), kept)


def verify_greedy(draft_tokens: ArrayLike, verifier_tokens: ArrayLike) -> Block:
    """Exact-match verification: a draft is kept iff the verifier chose the same token there.

    draft_tokens [..., k]; verifier_tokens [..., k+1], of which entry i is the verifier's choice at
    the position of draft i, and the last one its choice after all drafts. Raises ValueError for
    other shapes: to compare entry i with draft i + 1 would leave the first draft unchecked.
    """
    drafts = whole_numbers("draft_tokens", draft_tokens)
    choices = whole_numbers("verifier_tokens", verifier_tokens)
    _require_axis(drafts)
    k = drafts.shape[-1]
    if choices.shape != (*drafts.shape[:-1], k + 1):
        raise ValueError(
            f"{k} drafts need {k + 1} verifier tokens, one for each draft and the bonus: "
            f"got draft_tokens {drafts.shape}, verifier_tokens {choices.shape}"
        )
    return verify_block(drafts, drafts == choices[..., :-1], choices[..., :-1], choices[..., -1])


def require_tokens(
    argument: str, tokens: np.ndarray, read: np.ndarray, vocab: int | None = None
) -> None:
    """Raise ValueError for a token outside the vocabulary among those that are `read` (a mask).

    numpy would take −1 for the last entry of the vocabulary. Without `vocab` its size is unknown.
    """
    if vocab is not None and np.any(beyond := read & (tokens >= vocab)):
        where = [int(axis) for axis in np.argwhere(beyond)[0]]
        raise ValueError(
            f"{argument} must hold token ids below {vocab}, got {tokens[beyond][0]} at {where}"
        )
    wrong = read & (tokens < 0)
    if np.any(wrong):
        where = [int(axis) for axis in np.argwhere(wrong)[0]]
        raise ValueError(
            f"{argument} must hold token ids of at least 0, got {tokens[wrong][0]} at {where}"
        )


def _flags(accepted: ArrayLike) -> np.ndarray:
    """Truth values, or the numbers 0 and 1 that stand for them."""
    flags = plain_array("accepted", accepted)
    if not np.all((flags == 0) | (flags == 1)):
        raise ValueError("accepted must be True or False, or 1 and 0, for every draft")
    return flags.astype(bool)


def _lengths(draft_lengths: ArrayLike, most: int) -> np.ndarray:
    lengths = whole_numbers("draft_lengths", draft_lengths)
    wrong = (lengths < 0) | (lengths > most)
    if np.any(wrong):
        raise ValueError(f"draft_lengths must lie in 0 … {most}, got {lengths[wrong].flat[0]}")
    return lengths


def _require_axis(drafts: np.ndarray) -> None:
    if drafts.ndim == 0:
        raise ValueError("draft_tokens must have an axis [..., k] of drafts, got one number")


def _require_aligned(
    drafts: np.ndarray, flags: np.ndarray, recovery: np.ndarray, bonus: np.ndarray
) -> None:
    _require_axis(drafts)
    if not drafts.shape == flags.shape == recovery.shape or drafts.shape[:-1] != bonus.shape:
        raise ValueError(
            "every draft needs a flag and a recovery token, every round one bonus token: got "
            f"draft_tokens {drafts.shape}, accepted {flags.shape}, "
            f"recovery_tokens {recovery.shape}, bonus_token {bonus.shape}"
        )

r"""The exact law of a round by going through all drafts: small vocabularies and short blocks.

A *kernel* is a function of a prefix (a tuple of tokens) that returns a row. Of a round with drafts
from the kernel p, verified for the kernel h, E(v, y) is the probability that exactly the prefix v
is accepted and the token y follows; A(v) that v or longer is. A verification has the law h, and a
fresh start behind it, iff E(v, y) = A(v) h(y|v) − A(vy) ≥ 0 (claim 21).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Kernel", "RoundLaw", "round_law"]

Prefix = tuple[int, ...]
Kernel = Callable[[Prefix], Any]
MOST = 200_000  # prefixes that are gone through


@dataclass(frozen=True)
class RoundLaw:
    """A round of m drafts.

    alive : A(v) by prefix v, from the empty one (1) to those of length m.
    ends  : E(v, ·) by prefix, [V] each; behind m drafts A(v) times the bonus row.
    """

    drafts: int
    alive: dict[Prefix, float]
    ends: dict[Prefix, Any]

    @property
    def reached(self) -> Any:
        """P(τ ≥ i) for i = 0 … m, ``[m + 1]``."""
        found = np.zeros(self.drafts + 1)
        for prefix, mass in self.alive.items():
            found[len(prefix)] += mass
        return found

    @property
    def accepted_length(self) -> float:
        """E τ, the mean number of drafts that are accepted."""
        return float(np.sum(self.reached[1:]))

    def text(self, kernel: Kernel, length: int) -> dict[Prefix, float]:
        """The law of the first ``length`` tokens, those behind the round drawn from a kernel."""
        found: dict[Prefix, float] = {}
        for prefix, row in self.ends.items():
            for token in np.flatnonzero(row):
                _extend(found, (*prefix, int(token)), float(row[token]), kernel, length)
        return found


def round_law(
    draft: Kernel, target: Kernel, drafts: int, verification: str = "block", *, bonus: Kernel
) -> RoundLaw:
    r"""Return the law of a round by enumeration.

    A(vy) = min(p(vy), A(v) h(y|v)) in blocks, A(v) min(p(y|v), h(y|v)) token by token;
    E(v, y) = A(v) h(y|v) − A(vy) before the last draft, and A(v) bonus(y|v) behind it.

    Parameters
    ----------
    draft, target, bonus : callable
        From a prefix to a row [V] of float64.
    drafts : int
        m ≥ 1.
    verification : str
        "token" or "block".

    Raises
    ------
    ValueError
        For another verification, drafts that are no positive integer, and more than 200,000
        prefixes.
    """
    if verification not in ("token", "block"):
        raise ValueError(f"no verification {verification!r}; there are token, block")
    if type(drafts) is not int or drafts < 1:
        raise ValueError(f"drafts must be an integer of at least 1, got {drafts!r}")
    vocabulary = len(draft(()))
    if vocabulary**drafts > MOST:
        raise ValueError(f"{vocabulary} tokens and {drafts} drafts are too many prefixes")
    alive: dict[Prefix, float] = {(): 1.0}
    drawn: dict[Prefix, float] = {(): 1.0}
    ends: dict[Prefix, Any] = {}
    for length in range(drafts):
        for prefix in itertools.product(range(vocabulary), repeat=length):
            p, h = draft(prefix), target(prefix)
            joint = drawn[prefix] * p
            own = alive[prefix] * np.minimum(p, h)
            kept = np.minimum(joint, alive[prefix] * h) if verification == "block" else own
            ends[prefix] = np.maximum(alive[prefix] * h - kept, 0.0)
            for token in range(vocabulary):
                alive[*prefix, token] = float(kept[token])
                drawn[*prefix, token] = float(joint[token])
    for prefix in itertools.product(range(vocabulary), repeat=drafts):
        ends[prefix] = alive[prefix] * bonus(prefix)
    return RoundLaw(drafts, alive, ends)


def _extend(
    found: dict[Prefix, float], prefix: Prefix, mass: float, kernel: Kernel, length: int
) -> None:
    """Add the mass of a text, cut to ``length`` or drawn on from the kernel."""
    if len(prefix) >= length:
        found[prefix[:length]] = found.get(prefix[:length], 0.0) + mass
        return
    row = kernel(prefix)
    for token in np.flatnonzero(row):
        _extend(found, (*prefix, int(token)), mass * float(row[token]), kernel, length)

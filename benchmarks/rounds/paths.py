"""Rounds along recorded texts of the verifier: exact expectations, with nothing drawn but the text.

A round that starts at some place of a text drafts m tokens. With A(v) the probability that the
prefix v of the drafts, or a longer one, is accepted,

    accepted length = Σ_v A(v) = E_q[Σ_i A(x₁…x_i)/q(x₁…x_i)],

the mean over texts x of the *verifier*; likewise the divergence Σ_v A(v) KL(h(·|v)‖q(·|v)), which
bounds that of the text (claim 30). A(v)/q(v) needs the rows along x alone, whatever the rule, the
number of candidates and the verification, so that one text serves every way of decoding, and only
the text is random. With K candidates at each place the draft is the effective one, u (claim 26).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sim.tables.grid import Setting
from theory import DIVERGENCES, RULES, Pair, effective_draft
from theory.arrays import UNIT, take_rows
from theory.blocks import alive, scaled_clip
from theory.divergences import several_divergences
from theory.frontier.clipped import ClippedFamily

__all__ = ["MULTIPLIERS", "Kernel", "Totals", "VerifierText", "rounds", "scaled_rounds", "schedule"]

KL = DIVERGENCES["kl"]
MULTIPLIERS = np.append(0.0, np.geomspace(0.04, 12.0, 60))
"""Values of log(a/b): strict, and others a factor 1.10 apart."""


class Kernel(NamedTuple):
    """A rule at several values of its parameter, at each place of a text; arrays [T, values].

    kept : probability that the token of the text is drafted and accepted where it is tested alone.
    h    : probability that it is emitted.
    nats : KL(h‖q) of the place.
    accepted : the acceptance of the place, for the means that schedules are made from.
    """

    kept: np.ndarray
    h: np.ndarray
    nats: np.ndarray
    accepted: np.ndarray


class Totals(NamedTuple):
    """Sums over the rounds that start at each place of a text: [values]."""

    tokens: np.ndarray  # emitted in expectation, the verifier's own token included
    nats: np.ndarray  # Σ_v A(v) KL(h‖q)


class Drawn(NamedTuple):
    """What the effective draft and the verifier give the tokens of a text: u and q, [T] each."""

    u: np.ndarray
    q: np.ndarray


@dataclass(frozen=True)
class VerifierText:
    """The rows along one text of the verifier, with the effective draft of K candidates."""

    pair: Pair
    index: np.ndarray  # of the text's token in pair coordinates, [T]

    @classmethod
    def of(cls, p: np.ndarray, q: np.ndarray, tokens: np.ndarray, candidates: int) -> Self:
        """Prepare rows [T, V] and the tokens [T] that the verifier drew from q."""
        pair = Pair.prepare(effective_draft(p, q, candidates), q, validate=False)
        return cls(pair, pair.locate(tokens))

    def at_text(self, rows: np.ndarray) -> np.ndarray:
        """The entries [T] of rows at the text's tokens."""
        return take_rows(np, rows, self.index[:, None])[:, 0]

    @cached_property
    def drawn(self) -> Drawn:
        """u and q at the tokens of the text."""
        return Drawn(self.at_text(self.pair.p), self.at_text(self.pair.q))

    def _clip(self, mass: np.ndarray) -> Kernel:
        """The frontier's clip at each rejected mass [T, values]."""
        above, below = self._family.factors(mass)
        u, q = (at[:, None] for at in self.drawn)
        h = np.minimum(np.maximum(u, below / UNIT * q), above / UNIT * q)
        return Kernel(np.minimum(u, h), h, self._family.at(mass).spent, 1.0 - mass)

    @property
    def _family(self) -> ClippedFamily:
        return self.pair.cached("family", lambda: ClippedFamily.of(self.pair, KL))

    def by_multiplier(self, multipliers: np.ndarray) -> Kernel:
        """The frontier's clip at multipliers that hold for all places."""
        return self._clip(self._family.mass_at(multipliers))

    def by_level(self, levels: np.ndarray) -> Kernel:
        """The frontier's clip at levels of KL that hold for all places."""
        places = np.ones(len(self.index))
        return self._clip(np.stack([self._family.solve(level * places) for level in levels], -1))

    def by_rule(self, name: str, values: Sequence[float]) -> Kernel:
        """Any rule at values of its parameter; in blocks its output is the target."""
        found = []
        for value in values:
            rule = Setting(name, RULES[name].parameter or "", value).build()
            law = rule.law(self.pair)
            nats = several_divergences([KL], law.output, self.pair.q, validate=False)[0]
            kept = self.drawn.u * rule.accept_at(self.pair, self.index)
            found.append(Kernel(kept, self.at_text(law.output), nats, law.acceptance))
        return Kernel(*(np.stack(parts, axis=-1) for parts in zip(*found)))


def rounds(
    drawn: Drawn,
    kernel: Kernel,
    drafts: int,
    verification: str,
    places: np.ndarray | None = None,
) -> Totals:
    """Rounds of `drafts` tokens from every place of the text, summed: [values].

    `places` [drafts, values′] says which of the kernel's values stands at each place of a round;
    without it every place has the same.
    """
    kept, h, nats = (_windows(part, drafts, places) for part in kernel[:3])
    u, q = (sliding_window_view(at, drafts)[:, None] for at in drawn)
    if verification == "token":
        going = np.cumprod(kept / q, axis=-1)
    else:
        going = alive(*np.broadcast_arrays(u, h), over=np.broadcast_to(q, h.shape))
    return _totals(going, nats)


def scaled_rounds(text: VerifierText, multipliers: np.ndarray, drafts: int) -> Totals:
    """The same in blocks with the scaled clip at every place (claim 33)."""
    places, values = len(text.index), len(multipliers)
    starts = places - drafts + 1
    scale = np.ones((starts, values))
    reach = np.ones(starts)
    going, nats = [], []
    for place in range(drafts):
        here = slice(place, place + starts)
        whole = np.ones((places, values))
        whole[here] = scale
        clip = scaled_clip(text.pair, whole, np.broadcast_to(multipliers, whole.shape))
        u, q = (at[here, None] for at in text.drawn)
        h = np.minimum(np.maximum(u / scale, clip.below[here] * q), clip.above[here] * q)
        reach = reach * (u / q)[:, 0]
        before = np.where(reach[:, None] > 0, scale * h / np.where(u > 0, u, 1.0), 1.0)
        scale = np.minimum(before, 1.0)
        going.append(scale * reach[:, None])
        nats.append(clip.spent[here])
    return _totals(np.stack(going, -1), np.stack(nats, -1))


def schedule(kernel: Kernel, multiplier: float, drafts: int) -> np.ndarray:
    """Which of MULTIPLIERS stands at each place of a round: those of (1 + W_{i+1})·μ (claim 31).

    W_i = (1 + W_{i+1})·acceptance − KL/μ at the mean of all places of `kernel`, W_m = 0: what the
    rest of a round is worth where rows do not depend on the context.
    """
    accepted, nats = kernel.accepted.mean(axis=0), kernel.nats.mean(axis=0)
    chosen, worth = [], 0.0
    for _ in range(drafts):
        at = 1 + int(np.argmin(np.abs(np.log(MULTIPLIERS[1:] / ((1.0 + worth) * multiplier)))))
        worth = (1.0 + worth) * accepted[at] - nats[at] / multiplier
        chosen.insert(0, at)
    return np.array(chosen)


def _windows(part: np.ndarray, drafts: int, places: np.ndarray | None) -> np.ndarray:
    """[T, values] as [starts, values, drafts]."""
    windows = sliding_window_view(part, drafts, axis=0)
    if places is None:
        return windows
    return np.stack([windows[:, at, i] for i, at in enumerate(places)], axis=-1)


def _totals(going: np.ndarray, nats: np.ndarray) -> Totals:
    tokens = 1.0 + np.sum(going, axis=-1)
    spent = nats[..., 0] + np.sum(going[..., :-1] * nats[..., 1:], axis=-1)
    return Totals(np.sum(tokens, axis=0), np.sum(spent, axis=0))

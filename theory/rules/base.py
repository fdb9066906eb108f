"""The one model behind all rules: an acceptance probability and a recovery for each candidate.

A rule is an acceptance probability b_n for each candidate n and a recovery distribution g⁽ⁿ⁾ that
is sampled when n is rejected. Its exact one-step law is

    output(x) = p_x b_x + Σ_n p_n (1 − b_n) g⁽ⁿ⁾_x          acceptance = Σ_n p_n b_n.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import array_api_compat

from theory.arrays import (
    Array,
    device_of,
    namespace,
    normalised_or,
    one_hot,
    one_per_row,
    plain_number,
    quotient,
    refuse_unfit,
    take_rows,
    to_numpy,
)
from theory.law import OneStep, as_probability, enumerated_law
from theory.pair import Pair
from theory.rules.parameters import literal, plain_parameter


@dataclass(frozen=True)
class Rule(ABC):
    """An acceptance rule. Subclasses give two kernels on prepared rows; the rest follows.

    A new rule needs ``accept`` and ``recover`` only: its law is then found by enumeration. Families
    with a closed law (``TargetRule``, ``CandidateRule``, …) override ``law``.
    """

    name: ClassVar[str]
    family: ClassVar[str] = "other"
    parameter: ClassVar[str | None] = None  # the one that a sweep varies; else the first float
    values: ClassVar[tuple[float, ...]] = ()  # those that a sweep tries where none are asked for
    aliases: ClassVar[Mapping[str, str]] = {}  # names that engines have for its parameters
    needs_order: ClassVar[bool] = False  # whether ``law`` uses the rows sorted by p/q
    reads_raw: ClassVar[bool] = False  # whether p and q before temperature and filters are read
    keeps_strict: ClassVar[bool] = False  # whether b_n ≥ min(1, q_n/p_n) for every candidate

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):
            cls.__repr__ = Rule.__repr__  # type: ignore[method-assign]  # not that of a dataclass

    def __post_init__(self) -> None:
        """Keep every number as Python's own, which goes beside rows of every library."""
        for name, value in self.parameters.items():
            object.__setattr__(self, name, plain_parameter(value))

    def __repr__(self) -> str:
        given = (f"{name}={literal(value)}" for name, value in self.parameters.items())
        return f"{type(self).__qualname__}({', '.join(given)})"

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters by name: ``make_rule(rule.name, **rule.parameters)`` is the rule again."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}

    @abstractmethod
    def accept(self, pair: Pair) -> Array:
        """Return b ``[R, K]`` in pair coordinates."""

    @abstractmethod
    def recover(self, pair: Pair, candidate: Array) -> Array:
        """Return g⁽ⁿ⁾ ``[R, K]`` for one candidate coordinate per row, ``candidate [R]``."""

    def accept_at(self, pair: Pair, candidate: Array) -> Array:
        """Return b_n ``[R]`` for one candidate coordinate per row: all that a decoder needs."""
        return take_rows(pair.xp, self.accept(pair), candidate[:, None])[:, 0]

    def law(self, pair: Pair) -> OneStep:
        """Return the exact law in pair coordinates, by enumerating the candidates: O(K²) time."""
        return enumerated_law(pair, self.accept(pair), lambda n: self.recover(pair, n))

    def accept_prob(
        self,
        p: Array,
        q: Array,
        *,
        p_raw: Array | None = None,
        q_raw: Array | None = None,
        validate: bool = True,
    ) -> Array:
        """Return the acceptance probability b_n of every candidate, ``[..., V]``.

        A candidate is accepted iff u·p_n < b_n·p_n with u in [0, 1). b_n is 0 where p_n = 0 and the
        rule gives the token no probability; where p_n = 0 otherwise it is the limit, never used.
        ``p_raw``, ``q_raw`` are the distributions before temperature and filters (cascades only).
        """
        pair = Pair.prepare(
            p, q, p_raw=p_raw, q_raw=q_raw, validate=validate, sort=False, compress=False
        )
        return pair.expand(self.accept(pair))

    def rejectable(self, p: Array, q: Array, **options: Any) -> Array:
        """Return, ``[..., V]``, whether each candidate can be drafted and rejected.

        Where this is False the recovery is never sampled; its value there is a convention (q where
        the residual is empty).
        """
        pair = Pair.prepare(p, q, sort=False, compress=False, **options)
        flags = (pair.p > 0) & (self.accept(pair) < 1)
        return pair.xp.reshape(flags, (*pair.batch, pair.vocabulary))

    def recovery(
        self,
        p: Array,
        q: Array,
        n: Array | int,
        *,
        p_raw: Array | None = None,
        q_raw: Array | None = None,
        validate: bool = True,
    ) -> Array:
        """Return the distribution g⁽ⁿ⁾ that is sampled when candidate n is rejected, ``[..., V]``.

        ``n`` is one token index, or an integer array ``[...]`` with one per row; an index outside
        0 … V−1 is a ValueError (a placeholder such as −1 is not a token).
        """
        pair = Pair.prepare(
            p, q, p_raw=p_raw, q_raw=q_raw, validate=validate, sort=False, compress=False
        )
        return pair.expand(self.recover(pair, _candidates(pair, n)))

    def output(
        self,
        p: Array,
        q: Array,
        *,
        p_raw: Array | None = None,
        q_raw: Array | None = None,
        validate: bool = True,
    ) -> Array:
        """Return the exact distribution of the emitted token, ``[..., V]``."""
        pair = Pair.prepare(
            p, q, p_raw=p_raw, q_raw=q_raw, validate=validate, sort=self.needs_order
        )
        return pair.expand(self.law(pair).output)


def _candidates(pair: Pair, n: Array | int) -> Array:
    """Validate candidate indices and bring them to ``[R]``."""
    xp = pair.xp
    device = device_of(pair.q)
    refuse_unfit("n", n)
    n = plain_number(n)
    if array_api_compat.is_array_api_obj(n) and namespace(n) != xp:
        n = to_numpy(n).tolist()
    if not array_api_compat.is_array_api_obj(n):
        n = xp.asarray(n, device=device)
    index: Any = n
    if not xp.isdtype(index.dtype, "integral"):
        raise ValueError(f"n must hold integer token indices, got dtype {index.dtype}")
    n = one_per_row("n", xp.astype(index, xp.int64), pair.batch)
    bad = (n < 0) | (n >= pair.vocabulary)
    if str(device) != "meta" and bool(xp.any(bad)):
        row = int(xp.argmax(xp.astype(bad, xp.int64)))
        raise ValueError(
            f"n row {row} is {int(n[row])}, not a token index in [0, {pair.vocabulary - 1}]"
        )
    return n


def coupled_accept(xp: Any, p: Array, target: Array) -> Array:
    """Return min(1, π/p), with 0 where the target is zero and the limit 1 where only p is."""
    reachable = xp.astype(target > 0, target.dtype)
    return xp.minimum(quotient(xp, target, p, 1.0), reachable)


@dataclass(frozen=True)
class TargetRule(Rule):
    """A rule with one target π(p, q): accept min(1, π/p), recover from norm((π − p)₊).

    The output is π itself and the acceptance 1 − TV(p, π), the best that any scheme with this
    output can have (Theorem 1, maximal coupling).
    """

    family = "target"

    @abstractmethod
    def target(self, pair: Pair) -> Array:
        """Return π ``[R, K]`` in pair coordinates."""

    def accept(self, pair: Pair) -> Array:
        return coupled_accept(pair.xp, pair.p, self._known_target(pair))

    def accept_at(self, pair: Pair, candidate: Array) -> Array:
        target, at = self._known_target(pair), candidate[:, None]
        p_n, target_n = (take_rows(pair.xp, values, at)[:, 0] for values in (pair.p, target))
        return coupled_accept(pair.xp, p_n, target_n)

    def recover(self, pair: Pair, candidate: Array) -> Array:
        residual = pair.xp.maximum(self._known_target(pair) - pair.p, 0.0)
        return normalised_or(pair.xp, residual, pair.q)

    def _known_target(self, pair: Pair) -> Array:
        return pair.cached(("target", self), lambda: self.target(pair))

    def law(self, pair: Pair) -> OneStep:
        target = self.target(pair)
        accepted = pair.xp.sum(pair.xp.minimum(pair.p, target), axis=-1)
        return OneStep(as_probability(pair.xp, accepted), target)


@dataclass(frozen=True)
class AcceptSetRule(Rule):
    """A rule that accepts the tokens of a set S for certain and recovers from one distribution.

    Output = p·1[S] + p(Sᶜ)·recovery.
    """

    family = "accept set"

    @abstractmethod
    def accepted(self, pair: Pair) -> Array:
        """Return the boolean membership in S, ``[R, K]``."""

    @abstractmethod
    def fallback(self, pair: Pair) -> Array:
        """Return the recovery distribution ``[R, K]``."""

    def accept(self, pair: Pair) -> Array:
        return pair.xp.astype(self.accepted(pair), pair.p.dtype)

    def recover(self, pair: Pair, candidate: Array) -> Array:
        return self.fallback(pair)

    def law(self, pair: Pair) -> OneStep:
        xp, member = pair.xp, self.accepted(pair)
        kept = xp.where(member, pair.p, 0.0)
        rejected = xp.sum(xp.where(member, 0.0, pair.p), axis=-1, keepdims=True)
        acceptance = as_probability(xp, xp.sum(kept, axis=-1))
        return OneStep(acceptance, kept + rejected * self.fallback(pair))


def strict_residual(pair: Pair) -> Array:
    """Return norm((q − p)₊), what strict sampling recovers from; q where it is empty."""
    xp, p, q = pair.xp, pair.p, pair.q
    return pair.cached("residual", lambda: normalised_or(xp, xp.maximum(q - p, 0.0), q))


def verifier_mode(pair: Pair) -> Array:
    """Return the one-hot at the most likely verifier token of each row (lowest index on ties)."""
    return one_hot(pair.xp, pair.verifier_mode, pair.q)

r"""The sets of outputs that a rule can produce for a verifier row, and how far they reach from it.

No draft is needed to describe them:

* ``cactus``, ``cactus_exact`` and every rule with γ(q) ≥ q: the capped simplex {h : h ≤ γ}. No
  output exceeds γ, and a draft p = h ≤ γ is accepted whole (claim 19). ``lenience`` is the same
  with the cap q/l: donors are cut to q/l, receivers stay below q, and p = h ≤ q/l is accepted
  whole. Its reach is at most d_f(1, l), that is log(1/l) for KL, attained iff some set of tokens
  holds exactly l. ``ratio_threshold`` has the cap q/θ in the same way.
* ``constant_threshold`` accepts p = h ≤ q/θ whole as well. Where it rejects, p_n > q_n/θ, so that
  the rejected mass is below TV(p, q)/(1−θ), and a receiver below p + (q−p)/(1−θ) ≤ q/(1−θ): the
  caps q/θ and q/min(θ, 1−θ) give bounds, equal for θ ≤ ½. At θ = 1 only Σh = 1 is left.
* The truncated rules emit one law, whatever the draft.
* ``cactus_target_only``, ``target_only`` and ``interpolation``: the output is linear in p, so the
  set is the convex hull of the V outputs of one-hot drafts, and one of these is the worst (claim
  20).
* ``mentored``: {h ≪ q : KL(q‖h) ≤ D}; a draft in it is accepted whole. At a maximum of D_f the
  Lagrangian condition f′(t) + ν/t = λ holds for every t = h_x/q_x. Its left side has one turning
  point where t²f″(t) increases (KL, χ², Hellinger, Jensen–Shannon, powers above 0), and for TV it
  jumps once, so t takes two values: some set of verifier mass s is raised to γ*(s, D) of
  ``reverse_kl``, which gives d_f(γ*, s). By the envelope theorem its derivative in s has the sign
  of (mean of t ∈ [b, a] with weight 1/t²) − (the same with weight f″), b = (1−γ)/(1−s), a = γ/s:
  not positive where t²f″ increases. **The worst draft raises the verifier's rarest token alone.**
  For TV the sets {s : γ*(s, D) − s ≥ τ} are intervals, as KL is jointly convex, so the gain rises
  to one maximum s* (Pinsker's inequality made tight) and falls; it is bounded by its value at the
  point next to s* of every interval of masses that the tokens can make up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from theory.arrays import (
    Array,
    coerce,
    compact,
    device_of,
    is_lazy,
    scatter_rows,
    search_rows,
    take_rows,
)
from theory.certificates.capped import Extent, largest_divergence, subsets
from theory.divergences.kinds import Power
from theory.divergences.summand import Divergence
from theory.optimum.gamma import Gamma, optimal_gamma, second_order_gamma
from theory.pair import Pair
from theory.rules import CandidateRule, Rule, TargetOnlyRule
from theory.rules.target import Interpolation, Lenience, Mentored, SpS
from theory.rules.thresholds import ConstantThreshold, RatioThreshold
from theory.rules.truncated import TruncatedRule

PASSES = 1e-12  # of log(p/q), by which a draft passes a test of its ratio whatever the rounding
SEARCH_STEPS = 42  # of the golden section for TV under mentored decoding
GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)
VARIATION_HEADS = 12  # up to this many tokens TV under mentored decoding is exact

Bound = Callable[[Divergence], Extent]


class Rows(NamedTuple):
    """Verifier rows ``[R, V]`` in float64 with what it takes to give results back."""

    xp: Any
    q: Array
    batch: tuple[int, ...]
    dtype: Any


def reach_of(rule: Rule, rows: Rows) -> Bound:
    """Return the bound for a rule with its parameters."""
    xp, q = rows.xp, rows.q
    if isinstance(rule, CandidateRule):
        return _capped(rows, rule.gamma(q).value)
    if isinstance(rule, TargetOnlyRule):
        return _hull(rows, rule.gamma(q))
    constant = xp.ones_like(q[:, :1])
    if isinstance(rule, SpS):
        return _capped(rows, q)
    if isinstance(rule, Lenience):
        return FAMILIES["lenience"](rows, -math.log(rule.l) * constant)
    if isinstance(rule, RatioThreshold):
        return FAMILIES["ratio_threshold"](rows, -math.log(rule.threshold) * constant)
    if isinstance(rule, ConstantThreshold):
        margin = min(rule.threshold, 1.0 - rule.threshold)
        most = -math.log(margin) if margin > 0 else math.inf
        return _threshold(rows, -math.log(rule.threshold) * constant, most * constant)
    if isinstance(rule, TruncatedRule):
        return _one_law(rows, rule)
    if isinstance(rule, Interpolation):
        return _hull(rows, _towards_one_hot(q, rule.alpha * constant))
    if isinstance(rule, Mentored):
        return _mentored(rows, rule.level * constant)
    raise ValueError(f"no certificate is known for rule {rule.name!r}; known are {_known()}")


def _known() -> str:
    cuts = ("truncated_typical", "truncated_top_k", "truncated_top_p")
    return ", ".join([*FAMILIES, "constant_threshold", *cuts, "target_only", "sps"])


def _towards_one_hot(q: Array, share: Array) -> Gamma:
    return Gamma(q + share * (1.0 - q), (1.0 - share) * (1.0 - q))


def _scaled(rows: Rows, looseness: Array) -> Bound:
    """The cap q·e^x, for a looseness x ``[R, 1]``."""
    xp, q = rows.xp, rows.q
    return _capped(rows, xp.where(q > 0, q * xp.exp(xp.minimum(looseness, 700.0)), 0.0))


# Each rule's bound as a function of a looseness ``[R, 1]`` in [0, inf]; 0 is strict.
FAMILIES: dict[str, Callable[[Rows, Array], Bound]] = {
    "cactus": lambda rows, x: _capped(rows, second_order_gamma(rows.q, x, validate=False).value),
    "cactus_exact": lambda rows, x: _capped(rows, optimal_gamma(rows.q, x, validate=False).value),
    "cactus_target_only": lambda rows, x: _hull(
        rows, second_order_gamma(rows.q, x, validate=False)
    ),
    "lenience": _scaled,
    "ratio_threshold": lambda rows, x: _threshold(rows, x, x),
    "interpolation": lambda rows, x: _hull(rows, _towards_one_hot(rows.q, -rows.xp.expm1(-x))),
    "mentored": lambda rows, x: _mentored(rows, x),
}


def _capped(rows: Rows, cap: Array) -> Bound:
    """The capped simplex, on the tokens that the verifier can emit."""
    xp, q, width = rows.xp, rows.q, rows.q.shape[-1]
    cap = xp.maximum(cap, q)

    def bound(kind: Divergence) -> Extent:
        if is_lazy(q) or q.shape[0] == 0:
            return largest_divergence(kind, q, cap)
        token, valid = compact(xp, q > 0)
        packed = (xp.where(valid, take_rows(xp, v, token), 0.0) for v in (q, cap))
        lower, upper, vertex = largest_divergence(kind, *packed)
        padded = xp.where(valid, token, width)
        return Extent(lower, upper, _scatter_padded(xp, vertex, padded, width))

    return bound


def _threshold(rows: Rows, looseness: Array, most: Array) -> Bound:
    """Drafts that pass q ≥ θ·p are emitted whole, and no token goes beyond q·e^most."""
    inside, outside = _scaled(rows, looseness - PASSES), _scaled(rows, most)

    def bound(kind: Divergence) -> Extent:
        lower, _, vertex = inside(kind)
        return Extent(lower, outside(kind).upper, vertex)

    return bound


def _one_law(rows: Rows, rule: TruncatedRule) -> Bound:
    """The one law that is emitted; the draft that proposes it is accepted whole."""
    law = rule.target(Pair.prepare(rows.q, rows.q, validate=False, sort=False, compress=False))

    def bound(kind: Divergence) -> Extent:
        worst = kind.between(law, rows.q)
        return Extent(worst, worst, law)

    return bound


def _scatter_padded(xp: Any, values: Array, token: Array, width: int) -> Array:
    return scatter_rows(xp, values, token, width + 1)[:, :width]


def _one_at(rows: Rows, at: Array) -> Array:
    columns = rows.xp.arange(rows.q.shape[-1], device=device_of(rows.q))
    return columns == at


def _hull(rows: Rows, raised: Gamma) -> Bound:
    """The outputs of one-hot drafts: token n raised to γ_n, the others scaled."""
    xp, q = rows.xp, rows.q

    def bound(kind: Divergence) -> Extent:
        value = _two_point(kind, raised, q)
        at = xp.argmax(value, axis=-1, keepdims=True)
        worst = take_rows(xp, value, at)[:, 0]
        return Extent(worst, worst, xp.astype(_one_at(rows, at), q.dtype))

    return bound


def _two_point(kind: Divergence, raised: Gamma, q: Array) -> Array:
    gamma, rest = raised
    return kind.term(gamma, q) + kind.term(rest, 1.0 - q, q - gamma)


def _mentored(rows: Rows, level: Array) -> Bound:
    """The ball KL(q‖h) ≤ D on the support of q."""
    xp, q = rows.xp, rows.q

    def bound(kind: Divergence) -> Extent:
        if isinstance(kind, Power) and kind.order < 0:
            raise ValueError(f"no certificate of mentored for {kind.name}; orders must exceed 0")
        if kind.name == "total_variation":
            return _mentored_variation(rows, level, kind)
        at = xp.argmin(xp.where(q > 0, q, 2.0), axis=-1, keepdims=True)
        rare = take_rows(xp, q, at)
        return _raised(rows, kind, _one_at(rows, at), rare, level)

    return bound


def _raised(rows: Rows, kind: Divergence, member: Array, mass: Array, level: Array) -> Extent:
    """Raise a set of verifier mass ``[R, 1]`` as far as KL(q‖h) ≤ D allows."""
    xp, q = rows.xp, rows.q
    raised = optimal_gamma(mass, level, "reverse_kl", validate=False)
    rest = 1.0 - mass
    up = raised.value / xp.where(mass > 0, mass, 1.0)
    down = raised.complement / xp.where(rest > 0, rest, 1.0)
    worst = _two_point(kind, raised, mass)[:, 0]
    return Extent(worst, worst, q * xp.where(member, up, down))


def _mentored_variation(rows: Rows, level: Array, kind: Divergence) -> Extent:
    """TV on the ball: the gain γ*(s, D) − s over the masses s that sets of tokens can have."""
    xp, q = rows.xp, rows.q
    heads = min(q.shape[-1], VARIATION_HEADS)
    order = xp.argsort(q, axis=-1, descending=True)
    first, tail = order[:, :heads], xp.flip(order[:, heads:], axis=-1)
    _, bits = coerce(q, subsets(heads)[0].tolist())
    whole = take_rows(xp, q, first) @ bits.T
    prefix = xp.cumulative_sum(take_rows(xp, q, tail), axis=-1, include_initial=True)
    rarest = xp.min(xp.where(q > 0, q, 1.0), axis=-1, keepdims=True)
    best = xp.maximum(_best_mass(xp, level), rarest)
    # The gain rises up to s* and falls beyond it: only the sums next to s* can be the best.
    last = prefix.shape[-1] - 1
    after = xp.clip(search_rows(xp, prefix, best - whole), 0, last)
    at = xp.concat([xp.maximum(after - 1, 0), after], axis=-1)
    mass = xp.concat([whole, whole], axis=-1) + take_rows(xp, prefix, at)
    gain = _gain(xp, mass, level)
    chosen = xp.argmax(gain, axis=-1, keepdims=True)
    nearest = xp.minimum(xp.maximum(best, whole), whole + prefix[:, -1:])
    upper = xp.max(_gain(xp, nearest, level), axis=-1)
    slots = xp.arange(last, device=device_of(q)) < take_rows(xp, at, chosen)
    inside = xp.take(bits, chosen[:, 0] % bits.shape[0], axis=0) > 0
    ones = xp.astype(xp.concat([inside, slots], axis=-1), q.dtype)
    member = scatter_rows(xp, ones, xp.concat([first, tail], axis=-1), q.shape[-1]) > 0
    lower, _, vertex = _raised(rows, kind, member, take_rows(xp, mass, chosen), level)
    return Extent(lower, xp.maximum(lower, upper), vertex)


def _gain(xp: Any, mass: Array, level: Array) -> Array:
    """Return γ*(s, D) − s for KL(q‖h), 0 for the empty set and for all tokens."""
    mass = xp.clip(mass, 0.0, 1.0)
    level = xp.broadcast_to(level, mass.shape)
    return optimal_gamma(mass, level, "reverse_kl", validate=False).value - mass


def _best_mass(xp: Any, level: Array) -> Array:
    """Return the s* ``[R, 1]`` of the largest gain, by golden section."""
    low, high = 0.0 * level, 0.0 * level + 1.0
    low, high = xp.where(level > 0, low, 0.0), xp.where(level > 0, high, 1.0)
    for _ in range(SEARCH_STEPS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        rising = _gain(xp, left, level) < _gain(xp, right, level)
        low, high = xp.where(rising, left, low), xp.where(rising, high, right)
    return 0.5 * (low + high)

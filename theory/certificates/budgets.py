r"""What a rule guarantees before any draft exists: the largest D_f(output‖q) over all drafts.

A budget δ bounds each candidate's target and not what is emitted (claim 13). What is emitted is
bounded by the reach of the rule, the set of outputs it can produce for a verifier row, which
:mod:`theory.certificates.reach` describes and proves. Here the largest divergence on that set is
returned with a draft that causes it, and turned round: the loosest parameter that keeps a wanted
divergence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from theory.arrays import (
    Array,
    check_distribution,
    check_elementwise,
    coerce,
    namespace,
    one_per_row,
    quiet,
)
from theory.certificates.capped import Extent
from theory.certificates.reach import FAMILIES, Rows, reach_of
from theory.divergences.kinds import resolve_divergence
from theory.divergences.summand import Divergence
from theory.rules import Rule

BISECTIONS = 64  # of the logarithm of a parameter over RANGE: to the last digits
RANGE = (-150.0, 100.0)


class Certificate(NamedTuple):
    """Two-sided bounds ``[...]`` of the worst divergence, and a draft ``[..., V]`` that causes it.

    No draft makes D_f(output‖q) exceed ``upper``; the one given here makes it ``lower``. The two
    are equal wherever the worst case is known exactly.
    """

    lower: Array
    upper: Array
    draft: Array


def certified_divergence(
    q: Array, rule: Rule, divergence: str | Divergence = "kl", *, validate: bool = True
) -> Certificate:
    r"""Return the largest D_f(output‖q) that any draft can cause for these verifier rows.

    .. math:: \Gamma_f(q) = \max_p D_f(\mathrm{output}(p, q) \| q)

    Parameters
    ----------
    q : array [..., V]
        Verifier distributions, float32 or float64.
    rule : Rule
        ``cactus``, ``cactus_exact``, ``lenience``, ``mentored``, a target-only rule,
        ``interpolation``, ``sps``, ``ratio_threshold``, ``constant_threshold`` or a truncated rule.
    divergence : str or Divergence
        As in :func:`theory.divergence`.
    validate : bool
        False skips the checks.

    Returns
    -------
    Certificate
        Exact for the linear and the truncated rules and for mentored decoding (TV: up to 12
        tokens), and for the others where the row has at most 12 tokens or f(0) = ∞; bounds
        elsewhere, apart by the defect of one token of the tail (see `capped.py`), and for
        ``constant_threshold`` above ½. Computed in float64, returned
        in the dtype of q.

    Raises
    ------
    ValueError
        If a row is not a distribution, for an unknown divergence, for a rule whose reachable
        outputs are not known, or for ``mentored`` with a power divergence of negative order.
    """
    kind = resolve_divergence(divergence)
    if not isinstance(rule, Rule):
        raise ValueError(f"rule must come from make_rule or be a Rule, got {rule!r}")
    rows, back = _open(q, validate)
    return back(reach_of(rule, rows)(kind))


def certifying_budget(
    q: Array,
    wanted: Array,
    rule_name: str = "cactus",
    divergence: str | Divergence = "kl",
    *,
    validate: bool = True,
) -> Array:
    """Return the loosest parameter of a rule that keeps a wanted divergence for every draft.

    Parameters
    ----------
    q : array [..., V]
        Verifier distributions.
    wanted : array [...] or float
        The divergence that no draft may exceed, in nats, ≥ 0.
    rule_name : str
        ``cactus``, ``cactus_exact``, ``cactus_target_only`` (δ), ``mentored`` (level),
        ``lenience`` (l), ``ratio_threshold`` (θ) or ``interpolation`` (α).
    divergence : str or Divergence
        As in :func:`theory.divergence`.

    Returns
    -------
    array [...]
        The largest δ, level or α, or the smallest l or θ, whose certificate's upper bound is at
        most ``wanted``, to the last few digits (bisection; the bound is monotone in the parameter).
        δ and the level are inf where no draft can exceed the wanted divergence at all; l and θ are
        then the rarest verifier probability, below which it changes nothing.

    Raises
    ------
    ValueError
        As :func:`certified_divergence`; also for a negative or NaN ``wanted`` and for other rules.
    """
    kind = resolve_divergence(divergence)
    if not isinstance(rule_name, str) or rule_name not in FAMILIES:
        raise ValueError(f"no budget for rule {rule_name!r}; known are {', '.join(FAMILIES)}")
    rows, _ = _open(q, validate)
    xp = rows.xp
    _, wanted = coerce(rows.q, wanted, names=("q", "wanted"))
    if validate:
        check_elementwise("wanted", wanted, 0.0, math.inf)
    wanted = one_per_row("wanted", xp.astype(wanted, xp.float64), rows.batch)[:, None]

    def allowed(looseness: Array) -> Array:
        return FAMILIES[rule_name](rows, looseness)(kind).upper[:, None] <= wanted

    looseness = _largest(xp, allowed, xp.zeros_like(wanted))[:, 0]
    if rule_name in ("lenience", "ratio_threshold"):
        rarest = xp.min(xp.where(rows.q > 0, rows.q, 1.0), axis=-1)
        looseness = xp.maximum(xp.exp(-looseness), rarest)  # below it every cap is 1 already
    elif rule_name == "interpolation":
        looseness = -xp.expm1(-looseness)
    return xp.astype(xp.reshape(looseness, rows.batch), rows.dtype, copy=False)


@quiet()
def _largest(xp: Any, allowed: Callable[[Array], Array], zero: Array) -> Array:
    """Return the largest looseness that is allowed: inf, a bisected number, or the smallest one."""
    unlimited = allowed(zero + math.inf)
    low, high = zero + RANGE[0], zero + RANGE[1]
    nothing = ~allowed(xp.exp(low))
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        inside = allowed(xp.exp(middle))
        low, high = xp.where(inside, middle, low), xp.where(inside, high, middle)
    found = xp.where(nothing, 0.0, xp.exp(low))
    return xp.where(unlimited, math.inf, found)


def _open(q: Array, validate: bool) -> tuple[Rows, Callable[[Extent], Certificate]]:
    """Validate the rows, flatten the batch, and return the way back for results."""
    (q,) = coerce(q, names=("q",))
    if validate:
        check_distribution("q", q)
    xp, dtype, batch, width = namespace(q), q.dtype, tuple(q.shape[:-1]), q.shape[-1]
    rows = xp.reshape(xp.astype(q, xp.float64), (math.prod(batch), width))

    def back(found: Extent) -> Certificate:
        values = (xp.reshape(found.lower, batch), xp.reshape(found.upper, batch))
        draft = xp.reshape(found.vertex, (*batch, width))
        return Certificate(*(xp.astype(v, dtype, copy=False) for v in (*values, draft)))

    return Rows(xp, rows, batch, dtype), back

"""The front door: the exact law of one step of any rule, of one or of many on the same rows."""

from __future__ import annotations

from collections.abc import Iterable

from theory.arrays import SUM_TOLERANCE, Array, check_elementwise
from theory.law import OneStep, as_probability
from theory.pair import Pair
from theory.rules import Rule

__all__ = ["one_step", "one_steps"]


def one_step(
    rule: Rule,
    p: Array,
    q: Array,
    *,
    p_raw: Array | None = None,
    q_raw: Array | None = None,
    validate: bool = True,
) -> OneStep:
    r"""Return the exact law of one round of a rule: acceptance ``[...]`` and output ``[..., V]``.

    acceptance = Σ_n p_n b_n,  output(x) = p_x b_x + Σ_n p_n (1 − b_n) g⁽ⁿ⁾_x.

    Exact for every rule (no sampling): target and accept-set rules in O(V), candidate rules and the
    frontier in O(V log V), rules without a closed law by enumeration in O(V²).

    Parameters
    ----------
    rule : Rule
        From :func:`theory.make_rule`, or an instance of a class of :data:`theory.RULES`.
    p, q : array [..., V]
        Draft and verifier distributions, float32 or float64; computed in float64, returned in the
        dtype of the input.
    p_raw, q_raw : array [..., V], optional
        Distributions before temperature and filters, read by the cascades only.
    validate : bool
        False skips the checks.

    Raises
    ------
    ValueError
        For invalid distributions: argument, row and value are named. For a rule of one's own that
        accepts with what is no probability.
    """
    return one_steps([rule], p, q, p_raw=p_raw, q_raw=q_raw, validate=validate)[0]


def one_steps(
    rules: Iterable[Rule],
    p: Array,
    q: Array,
    *,
    p_raw: Array | None = None,
    q_raw: Array | None = None,
    validate: bool = True,
) -> list[OneStep]:
    """Return the law of many rules (or many values of one) on the same rows.

    The support is compressed, validated and sorted once for all of them. Parameters and errors are
    those of :func:`one_step`.
    """
    rules = list(rules)
    for rule in rules:
        if isinstance(rule, type) or not hasattr(rule, "needs_order"):
            raise ValueError(f"rule must come from make_rule or be a Rule, got {rule!r}")
    sort = any(rule.needs_order for rule in rules)
    pair = Pair.prepare(p, q, p_raw=p_raw, q_raw=q_raw, validate=validate, sort=sort)
    return [_restored(pair, rule, validate) for rule in rules]


def _restored(pair: Pair, rule: Rule, validate: bool) -> OneStep:
    """Return the law of a rule in the shape of the input; the acceptance is a probability."""
    law = rule.law(pair)
    if validate:
        most = 1.0 + SUM_TOLERANCE["float32"]
        check_elementwise(f"acceptance by {rule!r}", law.acceptance, 0.0, most)
    acceptance = as_probability(pair.xp, law.acceptance)
    return OneStep(pair.restore(acceptance), pair.expand(law.output))

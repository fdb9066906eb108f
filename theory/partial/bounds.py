"""Two-sided bounds of every rule on partial rows: the one door from a rule to its envelope."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any

import numpy as np

from theory.divergences.kinds import resolve_divergence
from theory.partial.accepted import accept_set
from theory.partial.candidates import candidate, target_only
from theory.partial.envelope import Between, Envelope
from theory.partial.kept import kept_and_residual, strict
from theory.partial.rows import PartialRows
from theory.partial.targets import (
    divergence_between,
    frontier,
    mixture,
    priced,
    switch,
    token_cascade,
)
from theory.partial.truncated import synthetic, truncated
from theory.rules import candidate as candidates
from theory.rules import cascades, fixed_rate, thresholds
from theory.rules import target as targets
from theory.rules.base import AcceptSetRule, Rule
from theory.rules.truncated import TruncatedRule

TIE = 1e-12  # a comparison closer than this may fall either way, in another order of summation


def partial_law(rule: Rule, rows: PartialRows) -> Envelope:
    """Return two-sided bounds of a rule's law on every completion of partial rows.

    Parameters
    ----------
    rule : Rule
        From :func:`theory.make_rule`. A rule of another's is taken to do anything: its bounds are
        true and say nothing.
    rows : PartialRows
        Listed tokens of draft and verifier, at the temperature and filters that both sample with.

    Returns
    -------
    Envelope
        ``acceptance`` (lower, upper), [R] each, and ``divergence(kind)`` likewise, in nats; inf is
        an honest upper bound where unlisted tokens may cost as much. Where nothing is missing the
        two coincide, but for rounding. The rest is 1 − Σ in float64: what it means to a steep
        divergence (χ², power, KL(q‖π)) has as many digits as the rest has.

    Raises
    ------
    ValueError
        Where ``rule`` is no rule, and where the rest of a verifier row exceeds what the other
        tokens can hold.

    Sources: claims 36 to 38 of the ledger.
    """
    if not isinstance(rule, Rule):
        raise ValueError(f"rule must come from make_rule or be a Rule, got {rule!r}")
    # A class derived from one of these may do anything else, whatever its base does.
    ours = type(rule).__module__.startswith("theory.rules.")
    found = envelope(rule, rows) if ours else anything(rows)
    at, settled = rows.settled()
    return found if settled is None else found.either(at, partial_law(rule, settled))


def anything(rows: PartialRows) -> Envelope:
    """The envelope of a rule that nothing is known of: acceptance in [0, 1], any law."""
    nothing = np.zeros((len(rows.p), 1, rows.p.shape[-1]))
    free = np.zeros(nothing.shape[:2]), np.full(nothing.shape[:2], math.inf)
    acceptance = Between(np.zeros(len(rows.p)), np.ones(len(rows.p)))
    return Envelope(rows, acceptance, nothing, nothing + 1.0, free)


@singledispatch
def envelope(rule: Rule, rows: PartialRows) -> Envelope:
    """What is known of the law of one of theory's rules on every completion of the rows."""
    return anything(rows)


@envelope.register
def _(rule: targets.SpS, rows: PartialRows) -> Envelope:
    return strict(rows)


@envelope.register
def _(rule: targets.Lenience, rows: PartialRows) -> Envelope:
    share = rule.l

    def kept(p: Any, q: Any) -> Any:
        return np.minimum(p, np.minimum(q, share) / share)

    most = kept(rows.p_outside, rows.q_outside)
    return kept_and_residual(rows, kept, most, overlap_share=share, largest_ratio=1.0 / share)


@envelope.register
def _(rule: targets.Ears, rows: PartialRows) -> Envelope:
    if rule.tau == 0:
        return strict(rows)
    slack = rule.tau * (1.0 - rows.q_max)

    def kept(p: Any, q: Any) -> Any:
        return np.minimum(p, q + p * (slack[:, None] if np.ndim(p) == 2 else slack))

    inside = kept(rows.p_outside, rows.q_outside)
    # Of p alone slack·p is kept where q = 0: the part outside A is never below it.
    found = kept_and_residual(
        rows, kept, inside, overlap_share=0.0, largest_ratio=np.where(slack > 0, math.inf, 1.0)
    )
    sure = np.minimum(found.acceptance.lower + slack * rows.p_outside, found.acceptance.upper)
    return Envelope(rows, Between(sure, found.acceptance.upper), found.low, found.high, found.ratio)


@envelope.register
def _(rule: thresholds.RatioThreshold, rows: PartialRows) -> Envelope:
    share = rule.threshold

    def kept(p: Any, q: Any) -> Any:
        return np.where((q >= share * p) & (q > 0), p, np.minimum(p, q))

    most = np.minimum(rows.q_outside, share) / share
    return kept_and_residual(rows, kept, most, overlap_share=share, largest_ratio=1.0 / share)


@envelope.register
def _(rule: thresholds.ConstantThreshold, rows: PartialRows) -> Envelope:
    share = rule.threshold

    def kept(p: Any, q: Any) -> Any:
        return np.where((q >= share * p) & (q > 0), p, 0.0)

    most = np.minimum(rows.q_outside, share) / share
    return kept_and_residual(
        rows, kept, most, overlap_share=share, largest_ratio=1.0 / share, least_ratio=0.0
    )


@envelope.register
def _(rule: targets.Interpolation, rows: PartialRows) -> Envelope:
    return mixture(rows, float(rule.alpha))


@envelope.register
def _(rule: targets.Mentored, rows: PartialRows) -> Envelope:
    return frontier(rows, rule.level, resolve_divergence("reverse_kl"), on_support=True)


@envelope.register
def _(rule: targets.Frontier, rows: PartialRows) -> Envelope:
    return frontier(rows, rule.level, resolve_divergence(rule.divergence))


@envelope.register
def _(rule: targets.FrontierCorpus, rows: PartialRows) -> Envelope:
    return priced(rows, rule.multiplier, resolve_divergence(rule.divergence))


@envelope.register
def _(rule: cascades.CascadeChow, rows: PartialRows) -> Envelope:
    trusted = rows.p_max >= 1.0 - rule.alpha
    return switch(rows, trusted, trusted)


@envelope.register
def _(rule: cascades.CascadeDiff, rows: PartialRows) -> Envelope:
    trusted = rows.p_max >= rows.q_max - rule.alpha
    return switch(rows, trusted, trusted)


@envelope.register
def _(rule: cascades.CascadeOpt, rows: PartialRows) -> Envelope:
    distance = divergence_between(rows, resolve_divergence("total_variation"))
    ends = []
    for value in distance:
        apart = value > 0  # inf·0 would be NaN
        allowance = np.where(apart, rule.alpha * np.where(apart, value, 1.0), 0.0)
        ends.append(rows.p_max - (rows.q_max - allowance))
    return switch(rows, np.minimum(*ends) >= TIE, np.maximum(*ends) >= -TIE)


@envelope.register
def _(rule: cascades.Fuzzy, rows: PartialRows) -> Envelope:
    apart = divergence_between(rows, resolve_divergence(rule.divergence))
    return switch(
        rows,
        apart.upper * (1.0 + TIE) <= rule.threshold,
        apart.lower * (1.0 - TIE) <= rule.threshold,
    )


@envelope.register
def _(rule: cascades.CascadeTokenV1, rows: PartialRows) -> Envelope:
    least = (rows.q_max - rule.alpha)[:, None]
    return _by_token(rows, least, rows.p, rows.p_known, rows.p_cap)


@envelope.register
def _(rule: cascades.CascadeTokenV2, rows: PartialRows) -> Envelope:
    least = (rows.q_max - rule.alpha)[:, None]
    return _by_token(rows, least, rows.q, rows.q_known, rows.q_cap)


@envelope.register
def _(rule: cascades.CascadeTokenV3, rows: PartialRows) -> Envelope:
    least = ((1.0 - rule.alpha) * rows.q_max)[:, None]
    return _by_token(rows, least, rows.q, rows.q_known, rows.q_cap)


def _by_token(rows: PartialRows, least: Any, values: Any, known: Any, cap: Any) -> Envelope:
    """Trust tokens whose value is at least ``least`` [R, 1]; an unlisted one is below its cap."""
    sure = np.where(known, values >= least, least <= 0)
    may = np.where(known, values >= least, cap[:, None] >= least)
    return token_cascade(rows, sure, may, cap >= least[:, 0])


@envelope.register
def _(rule: candidates.CandidateRule, rows: PartialRows) -> Envelope:
    return strict(rows) if rule.parameters["delta"] == 0 else candidate(rows, rule)


@envelope.register
def _(rule: candidates.TargetOnlyRule, rows: PartialRows) -> Envelope:
    return target_only(rows, rule)


@envelope.register
def _(rule: TruncatedRule, rows: PartialRows) -> Envelope:
    return truncated(rows, rule)


@envelope.register
def _(rule: fixed_rate.Synthetic, rows: PartialRows) -> Envelope:
    return synthetic(rows, rule)


@envelope.register
def _(rule: AcceptSetRule, rows: PartialRows) -> Envelope:
    return accept_set(rows, rule)

"""Right samplers, for every rule: what an audit has to pass."""

from typing import Any

from sim.audit.samplers.calling import Sampler
from sim.checks import unknown_name
from sim.rounds.blocks import NO_TOKEN
from theory import Rule, one_step
from theory.arrays import namespace, one_hot
from theory.blocks import VERIFICATIONS

__all__ = ["drawn", "finished", "reference_sampler", "uniforms"]


def reference_sampler(rule: Rule, verification: str = "token") -> Sampler:
    """A sampler of the rule that follows its law, for numpy and torch, as its rows come.

    `verification` is "token" or "block" (2403.10444, of what the rule emits). Randomness comes from
    the generator alone, in double precision. Raises ValueError for another verification.
    """
    if verification not in VERIFICATIONS:
        raise unknown_name("verification", str(verification), VERIFICATIONS)
    by_token = verification == "token"

    def sampler(p: Any, q: Any, drafted: Any, generator: Any) -> tuple[Any, Any]:
        return (_by_token if by_token else _by_block)(
            rule, _doubles(p), _doubles(q), drafted, generator
        )

    return sampler


def uniforms(generator: Any, shape: tuple[int, ...], like: Any) -> Any:
    """Uniform numbers in [0, 1), float64, of the library and device of `like`."""
    if hasattr(generator, "random"):
        return generator.random(shape)
    return like.new_empty(shape, dtype=namespace(like).float64).uniform_(generator=generator)


def drawn(rows: Any, uniform: Any) -> Any:
    """One token of each row [B, V] by inversion: never one of probability zero."""
    mass = rows.cumsum(-1)
    return (mass <= uniform[:, None] * mass[:, -1:]).sum(-1)


def finished(drafted: Any, accepted: Any, token: Any) -> tuple[Any, Any]:
    """accepted [B] and tokens [B, m + 1]: the drafts that are kept, the token behind them, −1."""
    xp = namespace(drafted)
    place = xp.arange(drafted.shape[1] + 1, device=drafted.device)
    wide = xp.concat([drafted, drafted[:, :1]], axis=1)
    end = accepted[:, None]
    tokens = xp.where(place < end, wide, xp.where(place == end, token[:, None], NO_TOKEN))
    return accepted, tokens


def _doubles(rows: Any) -> Any:
    xp = namespace(rows)
    return xp.astype(rows, xp.float64, copy=False)


def _by_token(rule: Rule, p: Any, q: Any, drafted: Any, generator: Any) -> tuple[Any, Any]:
    """u < b_i(x_i), place by place; the recovery of the first rejection, or the bonus."""
    count, places = drafted.shape
    chance = _at(rule.accept_prob(p, q[:, :-1], validate=False), drafted)
    passed = uniforms(generator, (count, places), p) < chance
    accepted = passed.cumprod(-1).sum(-1)
    row, rejected = namespace(p).arange(count, device=p.device), accepted < places
    law = q[row, accepted]
    if rejected.any():
        at = row[rejected], accepted[rejected]
        law[rejected] = rule.recovery(p[at], q[at], drafted[at], validate=False)
    return finished(drafted, accepted, drawn(law, uniforms(generator, (count,), p)))


def _by_block(rule: Rule, p: Any, q: Any, drafted: Any, generator: Any) -> tuple[Any, Any]:
    """The last place whose test U ≤ c passes; the tests are made from the first place on."""
    xp, (count, places) = namespace(p), drafted.shape
    h = one_step(rule, p, q[:, :-1], validate=False).output
    ratio = _at(h, drafted) / _at(p, drafted)
    scale = xp.ones((count,), dtype=p.dtype, device=p.device)
    accepted = xp.zeros_like(drafted[:, 0])
    law = xp.clip(h[:, 0] - p[:, 0], 0.0, None)
    uniform = uniforms(generator, (count, places + 1), p)
    for place in range(1, places + 1):
        scale = xp.clip(scale * ratio[:, place - 1], None, 1.0)
        if place < places:
            residual = xp.clip(scale[:, None] * h[:, place] - p[:, place], 0.0, None)
            left = residual.sum(-1)
            passed = uniform[:, place - 1] * (left + 1 - scale) <= left
        else:
            residual, passed = q[:, place], uniform[:, place - 1] < scale
        accepted = xp.where(passed, place, accepted)
        law = xp.where(passed[:, None], residual, law)
    return finished(drafted, accepted, drawn(law, uniform[:, -1]))


def _at(rows: Any, drafted: Any) -> Any:
    """The entries of rows [B, m, V] at one token each, [B, m]."""
    count, places, vocab = rows.shape
    flat = rows.reshape(count * places, vocab)
    marked = one_hot(namespace(rows), drafted.reshape(-1), flat)
    return (flat * marked).sum(-1).reshape(count, places)

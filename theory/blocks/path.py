r"""Block verification along one drafted path (2403.10444), for any target kernel.

A round drafts x₁ … x_m, x_i from the row p_i that stands behind x₁ … x_{i−1}; h_i is the target row
there: the verifier's, or what any rule emits. A(x₁…x_i) is the probability that the prefix x₁ … x_i
or a longer one is accepted. Every verification with the law h has A(vy) ≤ p(vy) and A(vy) ≤
A(v) h(y|v) (claim 21); block verification takes both bounds,

    A(vy) = min(p(vy), A(v) h(y|v)),

and so accepts the most at every length at once (claim 22). Token by token A(vy) = A(v) min(p, h).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from theory.arrays import (
    Array,
    check_distribution,
    check_elementwise,
    check_same_place,
    coerce,
    namespace,
    normalised_or,
    quotient,
    take_rows,
)

__all__ = ["VERIFICATIONS", "BlockTest", "alive", "block_residual", "block_test"]

VERIFICATIONS = ("token", "block")


class BlockTest(NamedTuple):
    """How to verify one drafted path: accept as far as the last i with U_i < accept_i.

    accept : [..., m], the chance that is tested behind each draft. U_i is uniform on [0, 1); an
             accept of 0 is never met and one of 1 always.
    scale  : [..., m + 1], s_i = A(x₁…x_i)/p(x₁…x_i), from s₀ = 1 on. Behind the last accepted
             draft τ < m the next token is drawn from `block_residual(s_τ, p, h)`.
    """

    accept: Array
    scale: Array


def block_test(p: Array, h: Array, drafted: Array, *, validate: bool = True) -> BlockTest:
    r"""Return the tests of block verification along drafted paths.

    s_i = min(1, s_{i−1} h_i(x_i)/p_i(x_i)),  R_i = Σ_y (s_i h_{i+1}(y) − p_{i+1}(y))₊,
    c_i = R_i/(R_i + 1 − s_i) for i < m and c_m = s_m; the accepted length is the largest i with
    U_i < c_i. Where R_i = 0 and s_i = 1 the round never ends at i, and c_i = 1.

    Parameters
    ----------
    p, h : array [..., m, V]
        What each draft was drawn from, and the target row at its place; float32 or float64.
    drafted : integer array [..., m]
        The drafted tokens. A token that p_i does not give is a ValueError.
    validate : bool
        False skips the checks.

    Returns
    -------
    BlockTest
        accept [..., m] and scale [..., m + 1], float64; exact up to rounding.
    """
    p, h = coerce(p, h, names=("p", "h"))
    xp = namespace(p, h)
    if validate:
        _check(p, h, drafted)
    p, h = (xp.astype(rows, xp.float64, copy=False) for rows in (p, h))
    p_at, h_at = (_taken(xp, rows, drafted) for rows in (p, h))
    scale = [xp.ones_like(p_at[..., 0])]
    for place in range(p_at.shape[-1]):
        ratio = quotient(xp, scale[-1] * h_at[..., place], p_at[..., place], 0.0)
        scale.append(xp.minimum(ratio, 1.0))
    scales = xp.stack(scale, axis=-1)
    kept = scales[..., 1:-1, None] * h[..., 1:, :] - p[..., 1:, :]
    residual = xp.sum(xp.maximum(kept, 0.0), axis=-1)
    test = quotient(xp, residual, residual + 1.0 - scales[..., 1:-1], 1.0)
    return BlockTest(xp.concat([test, scales[..., -1:]], axis=-1), scales)


def block_residual(scale: Array, p: Array, h: Array) -> Array:
    """Return norm((s·h − p)₊) ``[..., V]`` for s ``[...]``: the next token behind a rejection.

    Where nothing is left, which block verification reaches with probability 0, it is h.
    """
    p, h, scale = coerce(p, h, scale, names=("p", "h", "scale"))
    xp = namespace(p, h)
    return normalised_or(xp, xp.maximum(scale[..., None] * h - p, 0.0), h)


def alive(
    p_at: Array, h_at: Array, verification: str = "block", *, over: Array | None = None
) -> Array:
    r"""Return A(x₁…x_i)/w(x₁…x_i) ``[..., m]`` along paths x that were drawn from w.

    The mean over paths is the probability that at least i drafts are accepted; the sum over i of
    the means is the accepted length. A path of the draft, of the verifier or of any other law w
    that reaches what p and h do serves alike.

    Parameters
    ----------
    p_at, h_at : array [..., m]
        Draft and target probability of the tokens of a path, each at its place.
    verification : str
        "block" for min(p(vy), A(v) h(y|v)), "token" for A(v) min(p, h).
    over : array [..., m], optional
        Probability w of the tokens, > 0; that of the draft where it is left out.

    Raises
    ------
    ValueError
        For an unknown verification, shapes that differ, values outside [0, 1], and a token that
        cannot be on a path of w.
    """
    if verification not in VERIFICATIONS:
        known = ", ".join(VERIFICATIONS)
        raise ValueError(f"no verification {verification!r}; there are {known}")
    p_at, h_at, over = coerce(
        p_at, h_at, p_at if over is None else over, names=("p_at", "h_at", "over")
    )
    xp = namespace(p_at, h_at)
    for name, values in (("p_at", p_at), ("h_at", h_at), ("over", over)):
        check_elementwise(name, values, 0.0, 1.0 + 1e-4)
    if bool(xp.any(over == 0)):
        raise ValueError("over is 0 at a token: no path of that law has it")
    drawn, kept = p_at / over, h_at / over
    if verification == "token":
        return xp.cumulative_prod(xp.minimum(drawn, kept), axis=-1)
    reach = xp.cumulative_prod(drawn, axis=-1)
    found, before = [], xp.ones_like(reach[..., 0])
    for place in range(reach.shape[-1]):
        before = xp.minimum(before * kept[..., place], reach[..., place])
        found.append(before)
    return xp.stack(found, axis=-1)


def _taken(xp: Any, rows: Array, tokens: Array) -> Array:
    flat = xp.reshape(rows, (-1, rows.shape[-1]))
    index = xp.reshape(xp.asarray(tokens, dtype=xp.int64), (-1, 1))
    return xp.reshape(take_rows(xp, flat, index), tuple(rows.shape[:-1]))


def _check(p: Array, h: Array, drafted: Array) -> None:
    xp = namespace(p, h)
    if p.ndim < 2 or p.shape[-2] < 1:
        raise ValueError(f"p has shape {tuple(p.shape)}; rows [..., m, V] of m >= 1 places")
    check_same_place(("p", "h"), (p, h))
    for name, rows in (("p", p), ("h", h)):
        check_distribution(name, rows)
    tokens = xp.asarray(drafted)
    if tuple(tokens.shape) != tuple(p.shape[:-1]):
        raise ValueError(f"drafted has shape {tuple(tokens.shape)}, p has {tuple(p.shape)}")
    if not xp.isdtype(tokens.dtype, "integral"):
        raise ValueError(f"drafted must hold integer token indices, got dtype {tokens.dtype}")
    if bool(xp.any((tokens < 0) | (tokens >= p.shape[-1]))):
        wrong = int(tokens[(tokens < 0) | (tokens >= p.shape[-1])][0])
        raise ValueError(f"drafted holds {wrong}, no token index in [0, {p.shape[-1] - 1}]")
    mass = _taken(xp, p, tokens)
    if bool(xp.any(mass == 0)):
        wrong = int(tokens[mass == 0][0])
        raise ValueError(f"p gives no mass to the drafted token {wrong}")

r"""Draws without replacement of three and more candidates: an exponential race and its integral.

Token i arrives at rate p_i and the first K are drawn. A set S is drawn, x last, with
∫ p_x e^{−t} Π_{S∖x} (e^{p_i t} − 1) dt. Summed over all S whose last token in the order is j, and
over x, this is the increment

    g_j = ∫ e^{−t} (p_j e_{K−1} + z_j d_{K−1}) dt,   z = e^{pt} − 1,

e_k and d_k the sums over the k-sets S of tokens before j of Π_S z and Σ_{x∈S} p_x Π_{S∖x} z.
Everything is positive. The tokens are of two kinds, and both sums are products over them:

* the *head*: the K − 1 likeliest, which set the time scale, and all others of more than a share ε
  of what these leave. There are at most K − 1 + 1/ε of them, and their z is taken at every node of
  a quadrature over log t;
* the *tail*, all others: z = pt + (pt)²/2 + …, so that e_k and d_k are polynomials in t. Their
  coefficients are running sums in the order, and ∫ e^{−t} t^m (sums of the head) dt are a few
  numbers between two tokens of the head.

**What the series leaves out.** Measure time in 1/rate of all but the K − 1 likeliest. Beside the
coefficient of its series a set with x last has the factor w(t) = e^{−ct} t^m Π (1 − e^{−pt}) with
c ≥ 1, the product over its tokens of the head but x, m the number of those of the tail but x. Every
1 − e^{−pt} is t times something that falls, so that w is e^{−ct} t^{K−1} times something that falls
and ∫ t^r w ≤ ∫ w · (K − 1 + r)!/(K − 1)!. The coefficient of t^r in Π (e^{pt} − 1)/pt is at most
(Kε)^r/r!. Terms of order r are therefore at most (Kε)^r C(K + r, r) of the first one, token by
token, and ε is such that the first that is left out is 10⁻¹² at most; the sum of all that are left
out is less than 1.02 times it. Measured against fractions they are near 10⁻¹⁴.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["race"]

STEP = 0.15  # of the quadrature in log t; the error falls by a square where it is halved
TERMS = 4  # of the series of the tail
BLOCK = 8192  # tokens of the tail that are worked at once
LEFT_OUT = 1e-12  # of an increment, by the series


def race(p: Any, count: int) -> Any:
    """Return the increments ``[V]`` of K ≥ 3 draws without replacement from ``p [V]`` > 0, V > K.

    Relative error about 10⁻¹² for every token; O(V) and a quadrature over the head.
    """
    big = np.argpartition(-p, count - 2)[: count - 1]
    is_big = np.zeros(len(p), dtype=bool)
    is_big[big] = True
    rest = float(np.sum(p[~is_big]))  # the rate of what ends the race at the latest
    with np.errstate(over="ignore"):  # one that comes 10³⁰⁰ times sooner than others comes first
        share = np.minimum(p / rest, 1e300)
    is_head = is_big | (share > _edge(count))
    places = np.flatnonzero(is_head)
    # Analytic in log t and falling on both sides: the trapezoid rule converges geometrically.
    times = np.exp(np.arange(np.log(1e-17) / count + np.log(rest), np.log(50.0), STEP))
    head = _Head.of(share[places], is_big[places], times, count)
    slots = np.diff(np.concatenate([[-1], places, [len(p)]])) - 1  # of the tail in each gap
    g = np.empty(len(p))
    g[~is_head], e, d = _tail_in_blocks(share[~is_head], slots, head, count)
    g[places] = head.own(e, d, count)
    return g


def _edge(count: int) -> float:
    """The share ε of a token from which on it belongs to the head."""
    ways = math.comb(count + TERMS, TERMS)
    return float((LEFT_OUT / ways) ** (1 / TERMS) / count)


def _tail_in_blocks(p: Any, slots: Any, head: _Head, count: int) -> tuple[Any, Any, Any]:
    """Increments of the tail, and its e and d before each token of the head.

    A block of the tail stays in the fast memory of a processor; its sums go on in the next.
    """
    found, gap = np.empty(len(p)), np.repeat(np.arange(len(slots)), slots)
    reached = np.cumsum(slots)[:-1]
    moments = [head.moments(count - size) for size in range(1, count + 1)]
    sums: Any = [([0.0] * TERMS, [0.0] * TERMS) for _ in range(count)]
    before = []
    for start in range(0, max(len(p), 1), BLOCK):
        block = slice(start, start + BLOCK)
        own = reached[(reached >= start) & (reached < start + BLOCK)] - start
        if start + BLOCK >= len(p):
            own = reached[reached >= start] - start
        total, here = 0.0, []
        for size, (more_e, more_d, e, d) in enumerate(_tail_sums(p[block], sums, count)):
            of_e, of_d = moments[size]
            for more, weights in ((more_e, of_d), (more_d, of_e)):
                for x, weight in zip(more, weights):
                    total = total + x * weight[gap[block]]
            here.append(([x[own] for x in e], [x[own] for x in d]))
            sums[size] = [x[-1] for x in e], [x[-1] for x in d]
        found[block] = total
        before.append(here[:-1])
    return found, *_joined(before, len(reached))


def _joined(blocks: list[Any], places: int) -> Any:
    """e and d at all places, sets of 0 … K − 1 tokens, from those of each block."""
    joined: Any = ([[np.ones(places)]], [[]])
    for size in range(len(blocks[0])):
        for side in (0, 1):
            pieces = zip(*(here[size][side] for here in blocks))
            joined[side].append([np.concatenate(x) for x in pieces])
    return joined


def _tail_sums(p: Any, sums: Any, count: int) -> Iterator[tuple[Any, ...]]:
    """For sets of 1 … K tokens, what each token adds to e and d, and both before each and at last.

    A polynomial is the list of its coefficients: of t^k and on for e_k, of t^{k−1} for d_k.
    ``sums`` is what they are before the first token.
    """
    z = [p]
    for n in range(2, TERMS + 1):
        z.append(z[-1] * (p / n))
    e: list[Any] = [1.0]
    d: list[Any] = []
    for size in range(count - 1):
        more_e, more_d = _product(z, e), _sum(_product(z, d), _product([p], e))
        sums_e, sums_d = (
            [_running(x, first) for x, first in zip(more, start)]
            for more, start in zip((more_e, more_d), sums[size])
        )
        yield more_e, more_d, sums_e, sums_d
        e, d = [x[:-1] for x in sums_e], [x[:-1] for x in sums_d]
    # Sets of K tokens have none of the head, whose e₀ is 1 and d₀ is 0.
    yield [], _sum(_product(z, d), _product([p], e)), [], []


def _running(values: Any, first: float) -> Any:
    """``first`` and the entries before each, summed, and the sum of all."""
    sums = np.empty(len(values) + 1)
    sums[0], sums[1:] = first, values
    return np.cumsum(sums, out=sums)


def _product(a: list[Any], b: list[Any]) -> list[Any]:
    """The product of two polynomials, as far as the series goes."""
    size = min(TERMS, len(a) + len(b) - 1) if a and b else 0
    found = []
    for n in range(size):
        first, *others = [i for i in range(len(a)) if 0 <= n - i < len(b)]
        total = a[first] * b[n - first]
        for i in others:
            total += a[i] * b[n - i]
        found.append(total)
    return found


def _sum(a: list[Any], b: list[Any]) -> list[Any]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return [x + shorter[n] if n < len(shorter) else x for n, x in enumerate(longer)]


@dataclass(frozen=True, eq=False)
class _Head:
    """The sums over the head before each of its n tokens and behind the last, at T times.

    e, d : of sets of 0 … K − 1 tokens ``[K, T, n + 1]``, with the chance that all others wait, but
    for the likeliest behind. The z of the K − 1 likeliest would overflow: of them the chances
    1 − e^{−pt} and e^{−pt} are used.
    """

    times: Any
    e: Any
    d: Any
    arrived: Any  # [T, n]: z, or the chance
    rate: Any  # [T, n]
    waiting: Any  # [T, n]: of the likeliest behind a token
    ahead: Any  # [T, n + 1]: of the likeliest that are not before a gap

    @classmethod
    def of(cls, p: Any, is_big: Any, times: Any, count: int) -> _Head:
        t = times[:, None]
        stays = np.exp(-p[is_big] * t)
        arrived = np.expm1(np.where(is_big, 0.0, p) * t)
        rate = np.broadcast_to(np.where(is_big, 0.0, p), arrived.shape).copy()
        e, d = _sums_before(arrived, rate, count)
        arrived[:, is_big], rate[:, is_big] = -np.expm1(-p[is_big] * t), p[is_big] * stays
        big_e, big_d = _sums_of_likeliest(arrived[:, is_big], rate[:, is_big], stays, count)
        before = np.append(0, np.cumsum(is_big))
        both = range(count)
        chosen = np.exp(-t)
        big_e, big_d = big_e[..., before] * chosen, big_d[..., before] * chosen
        mixed_e = [sum(big_e[b] * e[a - b] for b in range(a + 1)) for a in both]
        mixed_d = [
            sum(big_e[b] * d[a - b] + big_d[b] * e[a - b] for b in range(a + 1)) for a in both
        ]
        last = np.ones((len(times), 1))
        behind = np.concatenate([np.cumprod(stays[:, ::-1], axis=-1)[:, ::-1], last], axis=-1)
        waiting, ahead = behind[:, before[1:]], behind[:, before]
        return cls(times, np.array(mixed_e), np.array(mixed_d), arrived, rate, waiting, ahead)

    def moments(self, left: int) -> tuple[Any, Any]:
        """∫ t^m e dt and ∫ t^{m+1} d dt ``[TERMS, n + 1]`` of sets with ``left`` of the head.

        m = K − 1 − left and on; as a sum over the nodes, of t·STEP.
        """
        size = len(self.e) - left
        powers = self.times ** np.arange(size, size + TERMS + 1)[:, None] * STEP
        e, d = self.e[left] * self.ahead, self.d[left] * self.ahead
        return powers[:-1] @ e, powers[1:] @ d

    def own(self, tail_e: list[Any], tail_d: list[Any], count: int) -> Any:
        """Increments of the tokens of the head, the tail before each being given."""
        t, last = self.times[:, None], count - 1
        e = d = 0.0
        for size in range(count):
            of_e = sum((c * t ** (size + r) for r, c in enumerate(tail_e[size])), 0.0)
            of_d = sum((c * t ** (size - 1 + r) for r, c in enumerate(tail_d[size])), 0.0)
            head_e, head_d = self.e[last - size, :, :-1], self.d[last - size, :, :-1]
            e, d = e + head_e * of_e, d + head_d * of_e + head_e * of_d
        flow = STEP * t * self.waiting * (self.rate * e + self.arrived * d)
        return np.sum(flow, axis=0)


def _sums_before(z: Any, p: Any, count: int) -> tuple[list[Any], list[Any]]:
    """e_k and d_k ``[T, n + 1]``, k < K, of the tokens before each and of all."""

    def running(values: Any) -> Any:
        return np.concatenate([np.zeros((len(z), 1)), np.cumsum(values, axis=-1)], axis=-1)

    shape = (len(z), z.shape[1] + 1)
    e, d = [np.ones(shape)], [np.zeros(shape)]
    for _ in range(count - 1):
        before_e, before_d = e[-1][:, :-1], d[-1][:, :-1]
        e.append(running(z * before_e))
        d.append(running(p * before_e + z * before_d))
    return e, d


def _sums_of_likeliest(arrived: Any, rate: Any, stays: Any, count: int) -> tuple[Any, Any]:
    """The same of the likeliest ``[k, T, their number before]``, others of them waiting."""
    e, d = (np.zeros((count, len(arrived), count)) for _ in range(2))
    e[0, :, 0] = 1.0
    for n in range(1, count):
        come, now, stay = arrived[:, n - 1], rate[:, n - 1], stays[:, n - 1]
        e[..., n], d[..., n] = e[..., n - 1] * stay, d[..., n - 1] * stay
        e[1:, :, n] += come * e[:-1, :, n - 1]
        d[1:, :, n] += now * e[:-1, :, n - 1] + come * d[:-1, :, n - 1]
    return e, d

"""Rounds by enumeration, from the algorithms as they are written: nothing of theory.blocks is used.

A kernel is a function of a prefix; numbers of any kind go through, fractions too. A test says at
which lengths a drafted path may stop: the accepted length is the largest i with U_i < c_i.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

Prefix = tuple[int, ...]
Kernel = Callable[[Prefix], Any]
Tests = Callable[[Any, Any, Prefix], tuple[list[Any], list[Any]]]  # (c_1 … c_m, s_0 … s_m)


def token_tests(p: Any, h: Any, path: Prefix) -> tuple[list[Any], list[Any]]:
    """Token by token as tests of lengths: s_i is the product of min(1, h/p)."""
    scale = [1]
    for place, n in enumerate(path):
        scale.append(scale[-1] * min(1, h[place][n] / p[place][n]))
    return [], scale


def block_tests(p: Any, h: Any, path: Prefix) -> tuple[list[Any], list[Any]]:
    """Block verification (2403.10444): s_i = min(1, s_{i−1} h/p), c_i = R_i/(R_i + 1 − s_i)."""
    scale = [1]
    for place, n in enumerate(path):
        scale.append(min(1, scale[-1] * h[place][n] / p[place][n]))
    return [*_inner(p, h, scale), scale[-1]], scale


def whole_block_tests(p: Any, h: Any, path: Prefix) -> tuple[list[Any], list[Any]]:
    """The rule of claim 24: the last test takes the ratio of the whole block, never capped."""
    tests, scale = block_tests(p, h, path)
    ratio = 1
    for place, n in enumerate(path):
        ratio *= h[place][n] / p[place][n]
    return [*tests[:-1], min(1, ratio)], scale


def _inner(p: Any, h: Any, scale: Any) -> list[Any]:
    found = []
    for place in range(1, len(p)):
        over = sum(max(scale[place] * b - a, 0) for a, b in zip(p[place], h[place]))
        rest = over + 1 - scale[place]
        found.append(over / rest if rest != 0 else 1)
    return found


def rounds(
    draft: Kernel, target: Kernel, drafts: int, tests: Tests, bonus: Kernel
) -> dict[Prefix, Any]:
    """E(v, ·) as lists by prefix v, from all paths, with the uniforms integrated out."""
    tokens = range(len(draft(())))
    found: dict[Prefix, Any] = {}
    for path in itertools.product(tokens, repeat=drafts):
        p, h = ([kernel(path[:i]) for i in range(drafts)] for kernel in (draft, target))
        weight = 1
        for place, n in enumerate(path):
            weight *= p[place][n]
        if weight == 0:
            continue
        accept, scale = tests(p, h, path)
        for length, chance in enumerate(_lengths(accept, scale)):
            row = bonus(path) if length == drafts else _residual(scale, accept, p, h, length)
            old = found.get(path[:length], [0] * len(tokens))
            found[path[:length]] = [o + weight * chance * r for o, r in zip(old, row)]
    return found


def _lengths(accept: list[Any], scale: list[Any]) -> list[Any]:
    """P(τ = 0), …, P(τ = m) of one path."""
    if not accept:  # token by token: each test by itself
        return [a - b for a, b in zip(scale, [*scale[1:], 0])]
    found, left = [], 1
    for test in reversed(accept):
        found.append(left * test)
        left *= 1 - test
    return [*reversed([*found, left])]


def _residual(scale: Any, accept: Any, p: Any, h: Any, length: int) -> list[Any]:
    """norm((s·h − p)₊) at the place behind the accepted prefix; token by token s is 1."""
    s = scale[length] if accept else 1
    left = [max(s * b - a, 0) for a, b in zip(p[length], h[length])]
    total = sum(left)
    return [x / total for x in left] if total > 0 else list(h[length])


def accepted_length(ends: dict[Prefix, Any]) -> Any:
    """E τ."""
    return sum(len(prefix) * sum(row) for prefix, row in ends.items())


def text_law(ends: dict[Prefix, Any], kernel: Kernel, length: int) -> dict[Prefix, Any]:
    """The law of the first tokens, those behind the round drawn from a kernel."""
    law: dict[Prefix, Any] = {}
    stack = [((*v, n), mass) for v, row in ends.items() for n, mass in enumerate(row) if mass != 0]
    while stack:
        text, mass = stack.pop()
        if len(text) >= length:
            law[text[:length]] = law.get(text[:length], 0) + mass
        else:
            stack += [((*text, n), mass * share) for n, share in enumerate(kernel(text))]
    return law


def distance(law: dict[Prefix, Any], kernel: Kernel) -> Any:
    """TV of a law of texts from the product of a kernel."""
    length = len(next(iter(law)))
    total = 0
    for text in itertools.product(range(len(kernel(()))), repeat=length):
        mass = 1
        for place, n in enumerate(text):
            mass *= kernel(text[:place])[n]
        total += abs(law.get(text, 0) - mass)
    return total / 2

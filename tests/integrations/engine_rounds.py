"""Rounds of vLLM's rejection sampling on plain tensors: its call, and its output's exact law."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import torch
from scipy.stats import chi2

V, K = 5, 2  # vocabulary, drafts a round
BONUS = 3  # the token that the engine has drawn behind the drafts
rng = np.random.default_rng(5)
P = rng.dirichlet(np.full(V, 0.6), size=K)
Q = rng.dirichlet(np.full(V, 0.6), size=K)
FALSE_FAIL = 1e-6


def metadata(requests, *, temperature=1.0, generators=None):
    """What the engine says of a batch; `temperature` is one number or one for each request."""
    temperatures = torch.tensor(np.broadcast_to(np.float32(temperature), (requests,)).copy())
    greedy = temperatures == 0
    return SimpleNamespace(
        temperature=None if bool(greedy.all()) else temperatures,
        all_greedy=bool(greedy.all()),
        all_random=not bool(greedy.any()),
        generators=generators or {},
    )


def call(sampler, tokens, p, logits, said=None, bonus=None):
    """The sampler on one list of drafts per request; p and logits flat, as the engine has them."""
    counts = [len(drafted) for drafted in tokens]
    flat = [token for drafted in tokens for token in drafted]
    bonus = [BONUS] * len(tokens) if bonus is None else bonus
    return sampler(
        torch.tensor(flat, dtype=torch.int32),
        counts,
        max(counts),
        torch.tensor(np.cumsum(counts), dtype=torch.int32),
        p,
        logits,
        torch.tensor(bonus)[:, None],
        said or metadata(len(tokens)),
    )


def rounds(sampler, count, p=P, q=Q, generator=None):
    """`count` requests with K drafts each, drawn from p, tested on q; int [count, K + 1]."""
    generator = generator or np.random.default_rng(17)
    tokens = np.stack([generator.choice(V, size=count, p=row) for row in p], axis=1)
    flat = torch.tensor(np.tile(p, (count, 1)), dtype=torch.float32)
    logits = torch.tensor(np.tile(np.log(q), (count, 1)), dtype=torch.float32)
    torch.manual_seed(3)
    return call(sampler, tokens.tolist(), flat, logits).numpy()


def exact(rule, p=P, q=Q):
    """The probability of every row of output, by the definition: {(token, …, −1): probability}."""
    accept = [rule.accept_prob(p[i], q[i]) for i in range(K)]
    law: dict[tuple[int, ...], float] = {}
    for drafted in product(range(V), repeat=K):
        before = 1.0
        for place, n in enumerate(drafted):
            before *= p[place][n]
            recovery = rule.recovery(p[place], q[place], n)
            later = np.prod([p[i][drafted[i]] for i in range(place + 1, K)])
            for token in range(V):
                row = (*drafted[:place], token, *[-1] * (K - place))
                mass = before * (1 - accept[place][n]) * recovery[token] * later
                law[row] = law.get(row, 0.0) + mass
            before *= accept[place][n]
        law[*drafted, BONUS] = law.get((*drafted, BONUS), 0.0) + before
    return law


def p_value(found, law):
    """Of Pearson's test of rows of output against their law; cells of fewer than 5 are joined.

    0 where something was emitted that the law forbids.
    """
    rows, counts = np.unique(found, axis=0, return_counts=True)
    observed = {tuple(row): n for row, n in zip(rows.tolist(), counts.tolist())}
    expected = {row: mass * len(found) for row, mass in law.items() if mass > 0}
    if set(observed) - set(expected):
        return 0.0
    pairs = [(observed.get(row, 0), mean) for row, mean in expected.items()]
    large = [(seen, mean) for seen, mean in pairs if mean >= 5]
    small = [(seen, mean) for seen, mean in pairs if mean < 5]
    if small:
        large.append(tuple(map(sum, zip(*small))))
    if len(large) == 1:  # certain
        return 1.0
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in large)
    return float(chi2.sf(statistic, len(large) - 1))

"""The rule's step where the host would have to wait for numbers: all drafts at once, one answer.

What decides is computed on the device for every draft; which draft is the first to be rejected,
which rows the next token comes from, and the token itself are indices on the device too. Host and
device meet once, where accepted lengths and tokens are read. The law is that of `by_token`.
"""

from typing import Any

import numpy as np
import torch

from real_models.decoding.verifying.candidates import Candidates, Verdict
from real_models.decoding.verifying.placed_rules import PlacedRules
from theory import Pair

__all__ = ["verify_at_once"]


def verify_at_once(
    rules: PlacedRules, candidates: Candidates, uniforms: np.ndarray
) -> list[Verdict] | None:
    """Test all drafts, and draw the token behind the first rejection of each text.

    Arguments are those of `by_token.verify`. None where there are no drafts, and where a row or an
    acceptance is no probability: place by place that is found, and named.
    """
    lengths = [len(ids) for ids in candidates.tokens]
    places = [(text, place) for text, count in enumerate(lengths) for place in range(count)]
    if not places:
        return None
    put = _Putter(candidates.p.device)
    drafted = put(candidates.drafted_at(places))
    verified = put([candidates.row(text, place) + text for text, place in places])
    pair = _prepared(candidates, slice(None), verified)
    accept = _by_rule(rules, put([place for _, place in places]),
        lambda rule: rule.accept_at(pair, drafted))  # fmt: skip
    mass = pair.p.gather(1, drafted[:, None])[:, 0]
    tests = put([uniforms[text, place, 0] for text, place in places])
    accepted = _accepted(tests * mass < accept * mass, candidates, put)
    texts = put(range(len(lengths)))
    starts = put([candidates.row(text, 0) for text in range(len(lengths))])
    row = (starts + accepted).clamp(max=len(places) - 1)  # behind a whole draft it is not read
    ending = _prepared(candidates, row, starts + texts + accepted)
    recovered = _by_rule(rules, accepted, lambda rule: rule.recover(ending, drafted[row]))
    law = torch.where((accepted < put(lengths))[:, None], recovered, ending.q)
    token, usable = _drawn(law, put(uniforms[:, :, 1]).gather(1, accepted[:, None]))
    fine = ((mass > 0) & (accept >= 0) & (accept <= 1 + 1e-9)).all() & usable.all()
    found = torch.stack([accepted, token, fine.expand_as(token)]).tolist()  # the one wait
    if not all(found[2]):
        return None
    return [Verdict(count, new) for count, new in zip(*found[:2])]


class _Putter:
    """Numbers of the host as a tensor of a device: integers, or double precision."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, values: Any) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), device=self.device)


def _prepared(candidates: Candidates, drafted: Any, verified: torch.Tensor) -> Pair:
    """Rows as a rule reads them, of the whole vocabulary: which tokens have mass is not asked."""
    rows = candidates.rows(drafted, verified)
    return Pair.prepare(**rows, validate=False, sort=False, compress=False)


def _by_rule(rules: PlacedRules, places: torch.Tensor, compute: Any) -> torch.Tensor:
    """What each place's own rule says, [places] or [places, V]."""
    last = len(rules.rules) - 1
    found = compute(rules.rules[0])
    for number, rule in enumerate(rules.rules[1:], start=1):
        own = (places >= number) if number == last else (places == number)
        found = torch.where(own.reshape(-1, *[1] * (found.ndim - 1)), compute(rule), found)
    return found


def _accepted(passed: torch.Tensor, candidates: Candidates, put: _Putter) -> torch.Tensor:
    """How many drafts of each text pass before the first that does not, [texts]."""
    longest, behind = max(map(len, candidates.tokens)), len(passed)
    grid = [
        [candidates.row(text, place) if place < len(ids) else behind for place in range(longest)]
        for text, ids in enumerate(candidates.tokens)
    ]
    wide = torch.cat([passed, passed.new_zeros(1)])
    return wide[put(grid)].cumprod(-1).sum(-1)


def _drawn(law: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens at quantiles [texts, 1] of rows, and whether a row has a mass to draw from."""
    cdf = law.double().cumsum(-1)
    # Sums in parallel round differently: without this a token without mass could gain some.
    cdf = torch.where(law > 0, cdf, 0.0).cummax(-1).values
    total = cdf[:, -1:]
    usable = (total > 0) & (total < torch.inf)
    return torch.searchsorted(cdf, uniforms * total, right=True)[:, 0], usable

"""The rule's step of a decoding round: test the drafted tokens, and correct the first rejection.

A candidate n is accepted iff u·p_n < b_n·p_n. Behind the first rejection nothing counts; the
rejected token is replaced by one of the rule's recovery distribution. Where all drafts are accepted
the bonus token is drawn from q. Any registered rule runs here through `accept_at` and `recover`.
One that accepts whatever strict sampling accepts is asked only where u·p_n ≥ q_n.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from real_models.decoding.verifying.at_once import verify_at_once
from real_models.decoding.verifying.candidates import (
    Candidates,
    Place,
    Verdict,
    check_mass,
    check_rows,
    take,
)
from real_models.decoding.verifying.placed_rules import PlacedRules
from real_models.laws.distributions import sample_tokens
from theory import Pair, Rule
from theory.arrays import free_to_ask, take_rows

__all__ = ["verify"]


def verify(rule: Rule | PlacedRules, candidates: Candidates, uniforms: np.ndarray) -> list[Verdict]:
    """Test the drafts of every text and draw the token that follows the accepted ones.

    rule : one for all places, or a schedule of them.
    uniforms : [texts, m + 1, 2] in [0, 1), m at least the longest draft: for the test of the draft
    at each place, and for the token drawn there. Which of them are read depends on what happens;
    what each one means does not.

    Raises ValueError for a draft that was not drawn from its row of p: an id outside the
    vocabulary, or one to which p gives no mass; and for rows that are not one for each draft.
    """
    check_rows(candidates)
    rules = PlacedRules.of(rule)
    if not free_to_ask(candidates.p):
        found = verify_at_once(rules, candidates, uniforms)
        if found is not None:
            return found
    texts = range(len(candidates.tokens))
    open_ = _open_places(rules, candidates, uniforms)
    ended: dict[int, Verdict] = {}
    while any(open_):  # one place of each text after another: nothing is tested behind a rejection
        places = [(text, place) for text in texts for place in open_[text][:1]]
        for rule, group in rules.groups(places):
            ended |= _rejections(rule, candidates, [places[i] for i in group], uniforms)
        open_ = [[] if text in ended else open_[text][1:] for text in texts]
    whole = [(text, len(candidates.tokens[text])) for text in texts if text not in ended]
    if whole:
        law = candidates.bonus([text for text, _ in whole])
        for (text, count), token in zip(whole, sample_tokens(law, _at(uniforms, whole, 1))):
            ended[text] = Verdict(count, token)
    return [ended[text] for text in texts]


def _open_places(
    rules: PlacedRules, candidates: Candidates, uniforms: np.ndarray
) -> list[list[int]]:
    """The places of each text that only the rule can decide."""
    lengths = [len(drafted) for drafted in candidates.tokens]
    places = [(text, place) for text, count in enumerate(lengths) for place in range(count)]
    if not places:
        return [[] for _ in lengths]
    p, q = candidates.probabilities(places)
    check_mass(candidates, places, p)
    if not all(rule.keeps_strict for rule in rules.rules):
        return [list(range(count)) for count in lengths]
    kept = _beside(_at(uniforms, places, 0), p) * p < q
    open_: list[list[int]] = [[] for _ in lengths]
    for (text, place), settled in zip(places, kept.tolist()):
        if not settled:
            open_[text].append(place)
    return open_


def _rejections(
    rule: Rule, candidates: Candidates, places: list[Place], uniforms: np.ndarray
) -> dict[int, Verdict]:
    """The verdict of each text that a draft at one of these places is rejected in."""
    pair, drafted = candidates.pair(places), candidates.drafted_at(places)
    index = pair.locate(_beside(drafted, pair.q))
    passed = _test(rule, pair, index, drafted, _at(uniforms, places, 0))
    first: dict[int, int] = {}  # by text, the row of its first rejection
    for row, ((text, _), kept) in enumerate(zip(places, passed)):
        if not kept:
            first.setdefault(text, row)
    if not first:
        return {}
    rows = list(first.values())
    law = torch.as_tensor(take(rule.recover(pair, index), rows))
    drawn = sample_tokens(law, _at(uniforms, [places[row] for row in rows], 1))
    tokens = pair.token[rows, drawn].tolist()
    return {text: Verdict(places[row][1], new) for (text, row), new in zip(first.items(), tokens)}


def _test(
    rule: Rule, pair: Pair, index: Any, drafted: list[int], uniforms: list[float]
) -> list[bool]:
    """u·p_n < b_n·p_n for one drafted token n per row; ValueError where b_n is no probability."""
    probability = rule.accept_at(pair, index)
    wrong = ~((probability >= 0) & (probability <= 1 + 1e-9))
    if bool(wrong.any()):
        row = wrong.tolist().index(True)
        raise ValueError(
            f"{rule!r} accepts token {drafted[row]} with {float(probability[row])}, which is no "
            "probability"
        )
    mass = take_rows(pair.xp, pair.p, index[:, None])[:, 0]
    return (_beside(uniforms, mass) * mass < probability * mass).tolist()


def _at(uniforms: np.ndarray, places: Sequence[Place], purpose: int) -> list[float]:
    texts, where = zip(*places)
    return uniforms[list(texts), list(where), purpose].tolist()


def _beside(values: list[Any], rows: Any) -> Any:
    """Numbers as an array of the kind of the rows, in double precision or as integers.

    Never by way of single precision, in which a uniform just below 1 is 1.
    """
    array = np.array(values)  # Python's numbers: float64 or int64
    return array if isinstance(rows, np.ndarray) else torch.as_tensor(array, device=rows.device)

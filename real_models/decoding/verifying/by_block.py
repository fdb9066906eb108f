"""Block verification of a round's drafts (2403.10444): the longest prefix that one test keeps.

The kernel h is what the rule emits at each place, `theory.one_step(...).output`; for `sps` it is q.
A draft counts as far as the last place whose test is passed, whatever failed before it. The next
token comes from norm((s·h − p)₊) with s of `theory.blocks.block_test`, and behind a whole block
from q, as token by token. A prefix with one more place is always emitted by the same h: the law of
the text is that of the places that are visited, and no text is more divergent than they are.

"scaled" is a block whose kernel knows what was over-supplied before: at a scale s = A(v)/p(v) the
clip(p/s, b·q, a·q) in the place of clip(p, b·q, a·q), for `frontier_corpus` and KL (claim 33).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from real_models.decoding.verifying.candidates import Candidates, Place, Verdict, check_drafts
from real_models.decoding.verifying.placed_rules import PlacedRules
from real_models.errors import UserError
from real_models.laws.distributions import native, sample_tokens
from theory import Rule
from theory.arrays import coerce
from theory.blocks import BlockTest, block_residual, block_test, scaled_clip

__all__ = [
    "LARGEST_ENUMERATED",
    "VERIFICATIONS",
    "block_acceptance",
    "block_kernel",
    "check_scaled",
    "verify_blocks",
]

VERIFICATIONS = ("token", "block", "scaled")
"""How a decoder verifies the drafts of a round."""

LARGEST_ENUMERATED = 1024
"""Tokens of a row up to which a law is enumerated, which takes the square of them."""


def check_scaled(rule: Rule | PlacedRules) -> None:
    """Raise UserError for rules that have no scaled clip, with the reason."""
    for one in PlacedRules.of(rule).rules:
        multiplier = getattr(one, "multiplier", None)
        if one.name != "frontier_corpus" or one.parameters["divergence"] != "kl":
            told = f"{one.name}({one.parameters.get('divergence', '')})".replace("()", "")
            raise UserError(
                "verification 'scaled' is the clip of frontier_corpus at a multiplier of KL; "
                f"{told} has none: take 'block'"
            )
        if multiplier == np.inf:
            raise UserError("verification 'scaled' needs a finite multiplier, got inf")


def verify_blocks(
    rule: Rule | PlacedRules, candidates: Candidates, uniforms: np.ndarray, *, scaled: bool = False
) -> list[Verdict]:
    """Test the drafts of every text as one block, and draw the token that follows.

    uniforms : [texts, m + 1, 2] in [0, 1), as those of `by_token.verify`: for the test behind
    the draft of each place, and for the token drawn at it.

    Raises ValueError for drafts that are not of their rows, and UserError for a rule whose law is
    known by enumeration only, on more than `LARGEST_ENUMERATED` tokens.
    """
    check_drafts(candidates)
    texts = range(len(candidates.tokens))
    kernel = block_kernel(rule, candidates, scaled=scaled)
    verdicts = []
    for text in texts:
        count = len(candidates.tokens[text])
        test = _test(candidates, kernel, text)
        passed = [i + 1 for i in range(count) if uniforms[text, i, 0] < float(test.accept[i])]
        accepted = max(passed, default=0)
        if accepted == count:
            law = candidates.bonus([text])
        else:
            row = candidates.row(text, accepted)
            p, h = native(candidates.p)[row], kernel[row]
            law = torch.as_tensor(block_residual(test.scale[accepted], p, h))[None]
        token = sample_tokens(law, uniforms[text, accepted, 1:].tolist())[0]
        verdicts.append(Verdict(accepted, token))
    return verdicts


def block_acceptance(kernel: Any, candidates: Candidates, places: Sequence[Place]) -> np.ndarray:
    """The chance that one draft more is accepted at visited places: Σ_y min(p/s, h), [places]."""
    p = native(candidates.p)
    tests = {text: _test(candidates, kernel, text) for text in {text for text, _ in places}}
    found = []
    for text, place in places:
        row, scale = candidates.row(text, place), float(tests[text].scale[place])
        # A visited prefix has s > 0; s·h ≤ p keeps a tiny s from a division.
        kept = float((scale * kernel[row]).clip(max=p[row]).sum()) / scale
        found.append(min(kept, 1.0))
    return np.array(found)


def block_kernel(rule: Rule | PlacedRules, candidates: Candidates, *, scaled: bool = False) -> Any:
    """What each drafted place emits, [Σ k_i, V], in the order of p."""
    rules = PlacedRules.of(rule)
    places = [(i, at) for i, drafted in enumerate(candidates.tokens) for at in range(len(drafted))]
    if not places:
        return native(candidates.p)
    if scaled:
        return _scaled_kernel(rules, candidates)
    groups = list(rules.groups(places))
    found = [_output(one, candidates, [places[i] for i in group]) for one, group in groups]
    if len(found) == 1:
        return found[0]
    kernel = coerce(native(candidates.p))[0] * 0.0
    for (_, group), rows in zip(groups, found):
        kernel[group] = rows
    return kernel


def _output(rule: Rule, candidates: Candidates, places: list[Place]) -> Any:
    """What a rule emits at some places, [places, V]."""
    pair = candidates.pair(places, sort=rule.needs_order)
    support = pair.p.shape[-1]
    if type(rule).law is Rule.law and support > LARGEST_ENUMERATED:
        raise UserError(
            f"verification 'block' needs the law of {rule.name}, which is known by enumeration "
            f"only: {support} tokens of a row, at most {LARGEST_ENUMERATED} are enumerated"
        )
    return pair.expand(rule.law(pair).output)


def _scaled_kernel(rules: PlacedRules, candidates: Candidates) -> Any:
    """The clip at the scale of each place, from the first place of all texts to the last."""
    p = native(candidates.p)
    kernel = coerce(p)[0] * 0.0
    scale = dict.fromkeys(range(len(candidates.tokens)), 1.0)
    for place in range(max(map(len, candidates.tokens))):
        texts = [text for text, drafted in enumerate(candidates.tokens) if len(drafted) > place]
        where = [(text, place) for text in texts]
        law = _scaled_clip(candidates, where, [scale[text] for text in texts], rules.at(place))
        for text, h in zip(texts, law):
            row, token = candidates.row(text, place), candidates.tokens[text][place]
            kernel[row] = h
            scale[text] = min(1.0, scale[text] * float(h[token]) / float(p[row, token]))
    return kernel


def _scaled_clip(
    candidates: Candidates, places: list[Place], scales: list[float], rule: Any
) -> Any:
    """clip(p/s, b·q, a·q) at some places, [places, V]; behind a scale of 0 nothing is visited."""
    pair = candidates.pair(places, sort=True)
    scale = coerce(pair.p, [[s or 1.0] for s in scales])[1]
    if rule.multiplier == 0:
        return pair.expand(pair.q)
    clip = scaled_clip(pair, scale, scale * 0.0 + rule.multiplier)
    xp, lowest, highest = pair.xp, clip.below * pair.q, clip.above * pair.q
    return pair.expand(xp.minimum(xp.maximum(pair.p / scale, lowest), highest))


def _test(candidates: Candidates, kernel: Any, text: int) -> BlockTest:
    """The test of the whole draft of a text; of no draft there is none."""
    drafted = candidates.tokens[text]
    if not drafted:
        return BlockTest(np.zeros(0), np.ones(1))
    first = candidates.row(text, 0)
    rows = slice(first, first + len(drafted))
    p, h = native(candidates.p)[rows], kernel[rows]
    tokens = np.array(drafted) if isinstance(p, np.ndarray) else torch.tensor(drafted).to(p.device)
    # Every row comes from one function of logits, which has checked them, or from a rule's law.
    return block_test(p, h, tokens, validate=False)

"""Block verification of a round's drafts (2403.10444): the longest prefix that one test keeps.

The kernel h is what the rule emits at each place, `theory.one_step(...).output`; for `sps` it is q.
A draft counts as far as the last place whose test is passed, whatever failed before it. The next
token comes from norm((s·h − p)₊) with s of `theory.blocks.block_test`, and behind a whole block
from q, as token by token. A prefix with one more place is always emitted by the same h: the law of
the text is that of the places that are visited, and no text is more divergent than they are.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from real_models.decoding.verification import Candidates, Place, Verdict, check_drafts
from real_models.errors import UserError
from real_models.laws.distributions import native, sample_tokens
from theory import Rule
from theory.blocks import BlockTest, block_residual, block_test

__all__ = ["LARGEST_ENUMERATED", "block_acceptance", "verify_blocks"]

LARGEST_ENUMERATED = 1024
"""Tokens of a row up to which a law is enumerated, which takes the square of them."""


def verify_blocks(rule: Rule, candidates: Candidates, uniforms: np.ndarray) -> list[Verdict]:
    """Test the drafts of every text as one block, and draw the token that follows.

    uniforms : [texts, m + 1, 2] in [0, 1), as those of `verification.verify`: for the test behind
    the draft of each place, and for the token drawn at it.

    Raises ValueError for drafts that are not of their rows, and UserError for a rule whose law is
    known by enumeration only, on more than `LARGEST_ENUMERATED` tokens.
    """
    check_drafts(candidates)
    texts = range(len(candidates.tokens))
    kernel = _kernel(rule, candidates)
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


def block_acceptance(rule: Rule, candidates: Candidates, places: Sequence[Place]) -> np.ndarray:
    """The chance that one draft more is accepted at visited places: Σ_y min(p/s, h), [places]."""
    kernel, p = _kernel(rule, candidates), native(candidates.p)
    tests = {text: _test(candidates, kernel, text) for text in {text for text, _ in places}}
    found = []
    for text, place in places:
        row, scale = candidates.row(text, place), float(tests[text].scale[place])
        # A visited prefix has s > 0; s·h ≤ p keeps a tiny s from a division.
        kept = float((scale * kernel[row]).clip(max=p[row]).sum()) / scale
        found.append(min(kept, 1.0))
    return np.array(found)


def _kernel(rule: Rule, candidates: Candidates) -> Any:
    """What the rule emits at each drafted place, [Σ k_i, V], in the order of p."""
    places = [(i, at) for i, drafted in enumerate(candidates.tokens) for at in range(len(drafted))]
    if not places:
        return native(candidates.p)
    pair = candidates.pair(places, sort=rule.needs_order)
    support = pair.p.shape[-1]
    if type(rule).law is Rule.law and support > LARGEST_ENUMERATED:
        raise UserError(
            f"verification 'block' needs the law of {rule.name}, which is known by enumeration "
            f"only: {support} tokens of a row, at most {LARGEST_ENUMERATED} are enumerated"
        )
    return pair.expand(rule.law(pair).output)


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

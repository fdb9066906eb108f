"""The law of the first tokens of decoded texts, enumerated round by round from its definition.

A(vy) = A(v)·p·b token by token and min(p(vy), A(v)·h) in blocks (claim 22); no test, no residual,
no cache and no random stream.
"""

from collections import Counter
from itertools import product

import numpy as np
import torch
from scipy import stats

from real_models.laws.distributions import SamplingSettings
from real_models.prompts import Prompt
from theory import one_step

TOKENS, VOCABULARY, END = 3, 10, 0
PROMPT = (4, 7, 5)
SETTINGS = SamplingSettings()


def prompts(pair, count):
    words = " ".join(pair.tokenizer.convert_ids_to_tokens(list(PROMPT)))
    return [Prompt(words, str(i)) for i in range(count)]


def rows(model, settings=SETTINGS):
    """Probabilities behind the prompt and every text shorter than three tokens, no cache."""
    texts = [t for n in range(TOKENS) for t in product(range(VOCABULARY), repeat=n) if END not in t]
    with torch.no_grad():
        found = [model(torch.tensor([[*PROMPT, *text]])).logits[0, -1] for text in texts]
    return {text: settings.probabilities(logits).numpy() for text, logits in zip(texts, found)}


def exact_law(pair, rule, drafts, verification="block", draft_law=lambda p, q: p):
    """Text of three tokens (fewer behind an end token) → its probability.

    draft_law : of what a draft is that is tested, from the rows of the draft and of the verifier.
    """
    p, q = rows(pair.draft), rows(pair.verifier)
    p = {text: draft_law(p[text], q[text]) for text in q}
    h = {text: one_step(rule, p[text], q[text]).output for text in q}
    accepted = {text: p[text] * rule.accept_prob(p[text], q[text]) for text in q}
    law, starts = Counter(), {(): 1.0}
    while starts:
        start, mass = starts.popitem()
        going = {start: (mass, mass)}  # prefix → A and p of it, from the start of the round
        while going:
            text, (alive, drafted) = going.popitem()
            last = len(text) - len(start) == drafts
            for token in range(VOCABULARY):
                longer, done = (*text, token), token == END or len(text) + 1 == TOKENS
                kept, reach = 0.0, drafted * p[text][token]
                if not last and verification == "block":
                    kept = min(reach, alive * h[text][token])
                elif not last:
                    kept = alive * accepted[text][token]
                emitted = alive * (q if last else h)[text][token] - kept
                if done:
                    law[longer] += kept + emitted
                else:
                    starts[longer] = starts.get(longer, 0.0) + emitted
                    if kept:
                        going[longer] = kept, reach
    return law


def p_value(found, law):
    """Of the chi-square test; texts of small expectation are one cell."""
    texts = sorted(law)
    expected = found.total() * np.array([law[text] for text in texts])
    observed = np.array([found[text] for text in texts])
    assert observed.sum() == found.total()
    small = expected < 5
    pool = [np.append(v[~small], v[small].sum()) for v in (observed, expected)]
    keep = pool[1] > 0
    return stats.chisquare(pool[0][keep], pool[1][keep]).pvalue

"""The law of the first tokens of decoded texts, enumerated round by round from its definition.

A(vy) = A(v)·p·b token by token and min(p(vy), A(v)·h) in blocks (claim 22), where the scaled clip's
h depends on A(v)/p(v); no test, no residual, no cache and no random stream.
"""

from collections import Counter
from itertools import product

import numpy as np
import torch
from scipy import optimize, stats

from real_models.decoding.loop import decode
from real_models.decoding.verifying.placed_rules import PlacedRules
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


def run_tiny(pair, rule, count=4, **more):
    """A run on prompts that are alike: two drafts a round, texts of three tokens."""
    more = {"draft_tokens": 2, "new_tokens": TOKENS, "batch_size": 1000, "seed": 1, **more}
    return decode(pair, prompts(pair, count), rule, compare=False, **more)


def count_texts(pair, rule, count, **more):
    """How often each text was written."""
    return Counter(text.tokens for text in run_tiny(pair, rule, count, measure=False, **more).texts)


def exact_law(pair, rule, drafts, verification="block", draft_law=lambda p, q: p):
    """Text of three tokens (fewer behind an end token) → its probability.

    rule      : one, or one for each place of a round.
    draft_law : of what a draft is that is tested, from the rows of the draft and of the verifier.
    """
    p, q = rows(pair.draft), rows(pair.verifier)
    p = {text: draft_law(p[text], q[text]) for text in q}
    rules = PlacedRules.of(rule)
    law, starts = Counter(), {(): 1.0}
    while starts:
        start, mass = starts.popitem()
        going = {start: (mass, mass)}  # prefix → A and p of it, from the start of the round
        while going:
            text, (alive, drafted) = going.popitem()
            place = len(text) - len(start)
            here, last = rules.at(place), place == drafts
            if last:
                h = q[text]
            elif verification == "scaled":
                h = clip(p[text] * drafted / alive, q[text], here.multiplier)
            else:
                h = one_step(here, p[text], q[text]).output
            accepted = p[text] * here.accept_prob(p[text], q[text])
            for token in range(VOCABULARY):
                longer, done = (*text, token), token == END or len(text) + 1 == TOKENS
                kept, reach = 0.0, drafted * p[text][token]
                if not last and verification != "token":
                    kept = min(reach, alive * h[token])
                elif not last:
                    kept = alive * accepted[token]
                emitted = alive * h[token] - kept
                if done:
                    law[longer] += kept + emitted
                else:
                    if emitted > 0:
                        starts[longer] = starts.get(longer, 0.0) + emitted
                    if kept > 0:
                        going[longer] = kept, reach
    return law


def clip(supply, q, multiplier):
    """clip(p/s, b·q, a·q) with log(a/b) = multiplier and sum 1, b by root finding."""

    def at(below):
        return np.clip(supply, below * q, below * np.exp(multiplier) * q)

    return at(optimize.brentq(lambda b: at(b).sum() - 1, 0, 1, xtol=1e-15, rtol=1e-14))


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

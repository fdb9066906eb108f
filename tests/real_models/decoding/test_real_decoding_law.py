"""The law of the first three emitted tokens, enumerated exactly, against decoded frequencies.

The enumeration reads a rule through `accept_prob` and `recovery` alone and knows nothing of caches,
batches or random streams. Each chi-square test fails a right decoder once in a million; a decoder
with a wrong residual must fail it.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from real_models.decoding.loop import decode, prompt_lookup
from real_models.laws.distributions import SamplingSettings
from real_models.prompts import Prompt
from theory import make_rule
from theory.rules import TargetRule

FALSE_FAIL = 1e-6
TEXTS = 5_000
TOKENS = 3
VOCABULARY = 10
END = 0
PROMPT = (4, 7, 5)

RULES = {
    "sps": make_rule("sps"),
    "cactus": make_rule("cactus", delta=0.2),
    "typical": make_rule("typical", epsilon=0.2, alpha=0.6),
    "frontier": make_rule("frontier", level=0.05),
    "cascade_token_v3": make_rule("cascade_token_v3", alpha=0.3),
    "target_only": make_rule("target_only", threshold_acc=0.5),
    "constant_threshold": make_rule("constant_threshold", threshold=0.6),
    "truncated_top_p": make_rule("truncated_top_p", top_p=0.7),
    "synthetic": make_rule("synthetic", rate=0.6),
}


@dataclass(frozen=True)
class WrongResidual(TargetRule):
    """Strict acceptance that recovers from q itself, as if nothing had been rejected."""

    name = "wrong_residual"

    def target(self, pair):
        return pair.q

    def recover(self, pair, candidate):
        return pair.q


def rows(model):
    """Logits behind the prompt and every text shorter than three tokens, without a cache."""

    def behind(text):
        with torch.no_grad():
            return model(torch.tensor([[*PROMPT, *text]])).logits[0, -1]

    texts = [t for n in range(TOKENS) for t in product(range(VOCABULARY), repeat=n) if END not in t]
    return {text: behind(text) for text in texts}


def steps(rule, p, q, raw):
    """Probability of each token by acceptance and by recovery, each [V]: the definition."""
    accepted = p * rule.accept_prob(p, q, **raw)
    recovered = np.zeros_like(p)
    for n in np.flatnonzero(p - accepted > 0):
        recovered += (p[n] - accepted[n]) * rule.recovery(p, q, int(n), **raw)
    return accepted, recovered


def exact_law(pair, rule, settings, draft_tokens, proposal=None):
    """Text of three tokens (fewer behind an end token) → its probability.

    A state is a text and its place in the block; each emits one token, accepted or recovered.
    """
    draft, verifier, plain = rows(pair.draft), rows(pair.verifier), SamplingSettings()

    @cache
    def moves(text, p):
        logits = {"p_raw": draft[text], "q_raw": verifier[text]}
        raw = {name: plain.probabilities(values).numpy() for name, values in logits.items()}
        drafted = settings.draft_probabilities(draft[text]).numpy() if p is None else np.array(p)
        return steps(rule, drafted, settings.probabilities(verifier[text]).numpy(), raw)

    law, open_ = Counter(), Counter({((), 0): 1.0})
    for length in range(TOKENS):
        for text, place in [state for state in open_ if len(state[0]) == length]:
            mass = open_.pop((text, place))
            p = None if proposal is None else proposal(text, place)
            if place == draft_tokens or (proposal is not None and p is None):
                found = ((settings.probabilities(verifier[text]).numpy(), 0),)
            else:
                accepted, recovered = moves(text, p)
                found = ((accepted, place + 1), (recovered, 0))
            for probabilities, follows in found:
                for token in np.flatnonzero(probabilities):
                    longer = (*text, int(token))
                    whole = len(longer) == TOKENS or token == END
                    target = (law, longer) if whole else (open_, (longer, follows))
                    target[0][target[1]] += mass * probabilities[token]
    return law


def decoded_texts(pair, rule, settings, draft_tokens, batch_size=1000, **more):
    words = " ".join(pair.tokenizer.convert_ids_to_tokens(list(PROMPT)))
    prompts = [Prompt(words, str(i)) for i in range(TEXTS)]
    run = decode(
        pair, prompts, rule, draft_tokens=draft_tokens, new_tokens=TOKENS, settings=settings,
        batch_size=batch_size, measure=False, compare=False, seed=1, **more,
    )  # fmt: skip
    return Counter(text.tokens for text in run.texts)


def p_value(found, law):
    """Of the chi-square test; texts of small expectation are one cell. 0 for an impossible text."""
    if set(found) - set(law):
        return 0.0
    texts = sorted(law)
    expected = TEXTS * np.array([law[text] for text in texts])
    observed = np.array([found[text] for text in texts])
    small = expected < 5
    pool = [np.append(v[~small], v[small].sum()) for v in (observed, expected)]
    keep = pool[1] > 0
    return stats.chisquare(pool[0][keep], pool[1][keep]).pvalue


SETTINGS = {"plain": SamplingSettings(), "filtered": SamplingSettings(0.8, top_k=6)}


@pytest.mark.parametrize("name", RULES)
def test_the_first_tokens_have_the_enumerated_law(pair, name):
    settings = SETTINGS["filtered" if name in ("cascade_token_v3", "cactus") else "plain"]
    law = exact_law(pair, RULES[name], settings, draft_tokens=2)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert p_value(decoded_texts(pair, RULES[name], settings, 2), law) > FALSE_FAIL


def test_strict_sampling_emits_the_verifiers_law(pair):
    settings = SETTINGS["filtered"]
    alone = exact_law(pair, RULES["sps"], settings, draft_tokens=0)
    law = exact_law(pair, RULES["sps"], settings, draft_tokens=2)
    assert law.keys() == alone.keys()
    assert all(law[text] == pytest.approx(alone[text], abs=1e-12) for text in alone)
    for draft_tokens in (0, 1, 5):
        found = decoded_texts(pair, RULES["sps"], settings, draft_tokens)
        assert p_value(found, alone) > FALSE_FAIL


@pytest.mark.parametrize("name", ["sps", "cactus"])
def test_a_greedy_draft_is_tested_as_one_hot(pair, name):
    settings = SamplingSettings(greedy_draft=True)
    law = exact_law(pair, RULES[name], settings, draft_tokens=2)
    assert p_value(decoded_texts(pair, RULES[name], settings, 2), law) > FALSE_FAIL


def test_a_lookup_is_tested_as_one_hot(pair):
    settings = SamplingSettings(0.7)

    def proposal(text, place):
        """What followed the last token of the text at the start of the block where it stood."""
        start = [*PROMPT, *text[: len(text) - place]]
        earlier = [i for i, token in enumerate(start[:-1]) if token == start[-1]]
        ahead = start[earlier[-1] + 1 :][:2] if earlier else []
        if place >= len(ahead) or END in ahead[:place]:
            return None
        return tuple(np.eye(VOCABULARY)[ahead[place]])

    law = exact_law(pair, RULES["cactus"], settings, 2, proposal)
    found = decoded_texts(pair, RULES["cactus"], settings, 2, drafter=prompt_lookup(1))
    assert p_value(found, law) > FALSE_FAIL


def test_a_wrong_residual_fails(pair):
    law = exact_law(pair, RULES["sps"], SETTINGS["plain"], draft_tokens=2)
    assert p_value(decoded_texts(pair, WrongResidual(), SETTINGS["plain"], 2), law) < FALSE_FAIL


def test_a_draft_scored_at_another_temperature_fails(pair, monkeypatch):
    """The control for p: drawn from one distribution, tested against another."""
    sharper = SamplingSettings(0.5)
    law = exact_law(pair, RULES["sps"], SETTINGS["plain"], draft_tokens=2)
    monkeypatch.setattr(
        "real_models.decoding.drafters.by_text",
        lambda steps, lengths: torch.cat(
            [
                sharper.probabilities(rows[:n].log())
                for rows, n in zip(torch.stack(steps, dim=1), lengths)
            ]
        ),
    )
    assert p_value(decoded_texts(pair, RULES["sps"], SETTINGS["plain"], 2), law) < FALSE_FAIL

"""The decoding loop: what it counts, what it observes, and what must not change a text."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch

from real_models.decoding.loop import Decoding, decode, prompt_lookup
from real_models.decoding.metrics import summary
from real_models.decoding.observation import Observation
from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.prompts import Prompt
from real_models.traces.contexts import text_stream
from theory import RULES, Rule, divergence, make_rule, one_step

PROMPTS = [
    Prompt("w4 w5 w6", "a"),
    Prompt("w7 w8", "b"),
    Prompt("w9", "c"),
    Prompt("w9 w4 w9", "d"),
]
CACTUS = make_rule("cactus", delta=0.3)
PARAMETERS = {
    "l": 0.5, "alpha": 0.3, "tau": 0.3, "level": 0.1, "threshold": 0.1, "delta": 0.3, "k": 3,
    "top_p": 0.8, "rate": 0.6, "multiplier": 0.7,
}  # fmt: skip


STRICT_AT_ZERO = {
    *("sps", "lenience", "ears", "mentored", "frontier", "frontier_corpus"),
    *("cactus", "cactus_exact"),
    *("cactus_target_only", "target_only", "typical", "top_n_delta"),
    *("constant_threshold", "ratio_threshold"),
    *("truncated_typical", "truncated_top_k", "truncated_top_p"),
}


def every_rule():
    for name, cls in RULES.items():
        needed = [cls.parameter] if cls.parameter in PARAMETERS else []
        yield make_rule(name, **{parameter: PARAMETERS[parameter] for parameter in needed})


def texts(run):
    return {text.prompt.id: text.tokens for text in run.texts}


@pytest.mark.parametrize("rule", [make_rule("sps"), CACTUS, make_rule("typical")], ids=str)
def test_neither_batch_nor_order_changes_a_text(tiny_pair, rule):
    options = {"draft_tokens": 4, "new_tokens": 30, "compare": False}
    single = texts(decode(tiny_pair, PROMPTS, rule, **options))
    assert single == texts(decode(tiny_pair, PROMPTS, rule, batch_size=4, **options))
    assert single == texts(decode(tiny_pair, PROMPTS[::-1], rule, batch_size=3, **options))
    assert single["a"] == texts(decode(tiny_pair, PROMPTS[:1], rule, measure=False, **options))["a"]
    assert single != texts(decode(tiny_pair, PROMPTS, rule, seed=1, **options))


@pytest.mark.parametrize("rule", list(every_rule()), ids=lambda rule: rule.name)
def test_the_way_of_other_devices_gives_the_same_text(tiny_pair, rule, monkeypatch):
    """Torch rows, all places of a draft tested at once, and nothing asked on the way."""
    options = {"draft_tokens": 4, "new_tokens": 10, "compare": False, "batch_size": 3}
    options["settings"] = SamplingSettings(0.7, top_k=8)
    here = decode(tiny_pair, PROMPTS, rule, **options)
    monkeypatch.setattr("real_models.decoding.verifying.candidates.native", lambda rows: rows)
    monkeypatch.setattr("theory.arrays.basis.HOST", ())
    there = decode(tiny_pair, PROMPTS, rule, **options)
    assert texts(here) == texts(there)
    for one, other in zip(here.texts, there.texts):
        for name, values in vars(one.observed).items():
            np.testing.assert_allclose(values, vars(other.observed)[name], rtol=1e-7, atol=1e-9)


def test_a_round_takes_its_numbers_whether_they_are_used_or_not(tiny_pair, monkeypatch):
    """m + 1 places of three numbers in every round, and none in between."""
    taken = []

    class Watched:
        def __init__(self, stream):
            self.stream = stream

        def random(self, shape):
            taken.append(shape)
            return self.stream.random(shape)

    monkeypatch.setattr(
        "real_models.decoding.loop.text_stream", lambda *key: Watched(text_stream(*key))
    )
    run = decode(tiny_pair, PROMPTS[:1], CACTUS, draft_tokens=4, new_tokens=20, compare=False)
    assert taken == [(5, 3)] * len(run.texts[0].drafted)


def test_the_rounds_account_for_every_token(tiny_pair):
    run = decode(tiny_pair, PROMPTS, CACTUS, draft_tokens=3, new_tokens=25, compare=False)
    for text in run.texts:
        emitted = sum(text.accepted) + len(text.accepted)
        assert len(text.tokens) <= emitted <= len(text.tokens) + 3
        assert all(0 <= kept <= drafted <= 3 for kept, drafted in zip(text.accepted, text.drafted))
        assert text.ended == (text.tokens[-1] == 0)
        assert 0 not in text.tokens[:-1]
        assert len(text.tokens) == 25 or text.ended
        assert all(len(values) == len(text.tokens) for values in vars(text.observed).values())
    assert run.alone_tokens == 0
    assert "speed_up" not in summary(run)


def logits(model, prompt, text, pair):
    ids = [*pair.tokenizer(prompt.prompt).input_ids, *text.tokens]
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -len(text.tokens) - 1 : -1]


@pytest.mark.parametrize("settings", [SamplingSettings(), SamplingSettings(0.7, top_k=8)], ids=str)
@pytest.mark.parametrize("rule", list(every_rule()), ids=lambda rule: rule.name)
def test_what_is_observed_is_the_law_at_each_place(tiny_pair, rule, settings):
    run = decode(
        tiny_pair, PROMPTS[:2], rule, draft_tokens=2, new_tokens=12, settings=settings,
        compare=False, batch_size=2,
    )  # fmt: skip
    for prompt, text in zip(PROMPTS, run.texts):
        ours = logits(tiny_pair.draft, prompt, text, tiny_pair)
        theirs = logits(tiny_pair.verifier, prompt, text, tiny_pair)
        p, q = settings.probabilities(ours), settings.probabilities(theirs)
        raw = {"p_raw": ours.double().softmax(-1), "q_raw": theirs.double().softmax(-1)}
        law = one_step(rule, p, q, **raw)
        seen = text.observed
        tested = np.isfinite(seen.strict)
        expected = divergence("kl", law.output, q).numpy()
        np.testing.assert_allclose(seen.divergence[tested], expected[tested], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(
            seen.acceptance[tested], law.acceptance.numpy()[tested], rtol=0, atol=1e-4
        )
        strict = torch.minimum(p, q).sum(-1).numpy()
        np.testing.assert_allclose(seen.strict[tested], strict[tested], rtol=0, atol=1e-4)
        assert (seen.divergence[~tested] == 0).all()
        chosen = theirs.double().log_softmax(-1).gather(-1, torch.tensor(text.tokens)[:, None])
        np.testing.assert_allclose(seen.surprise, -chosen[:, 0].numpy(), rtol=1e-3, atol=1e-4)


def test_strict_sampling_spends_nothing_and_knows_its_speed(tiny_pair):
    run = decode(tiny_pair, PROMPTS, make_rule("sps"), draft_tokens=3, new_tokens=20)
    figures = summary(run)
    assert figures["kl_per_text"] == pytest.approx(0, abs=1e-12)
    assert figures["acceptance"] == pytest.approx(figures["strict_acceptance"], abs=1e-12)
    assert figures["rejection_vs_sps"] == pytest.approx(0, abs=1e-10)
    assert run.alone_tokens > 0
    spent = sum(s for part, s in run.seconds.items() if part != "measure") / figures["tokens"]
    alone = run.alone_seconds / run.alone_tokens
    assert figures["speed_up"] == pytest.approx(alone / spent, rel=1e-12)


def test_the_verifier_alone(tiny_pair):
    run = decode(tiny_pair, PROMPTS, CACTUS, draft_tokens=0, new_tokens=15, compare=False)
    figures = summary(run)
    assert figures["rounds"] == figures["tokens"]
    assert figures["accepted_length"] == 0
    assert figures["kl_per_token"] == 0
    assert figures["bonus_share"] == 1
    assert "acceptance" not in figures


@pytest.mark.parametrize("rule", list(every_rule()), ids=lambda rule: rule.name)
def test_greedy_text_is_the_verifiers_own_where_the_rule_is_strict_there(tiny_pair, rule):
    """Strict at temperature 0: for two different one-hot rows the law is the verifier's."""
    settings, (p, q) = SamplingSettings(0.0), np.eye(2)
    before = [np.array([0.6, 0.4]), np.array([0.3, 0.7])]  # the filters
    strict = all(
        np.all(one_step(rule, p, q, p_raw=p_raw, q_raw=q_raw).output == q)
        for p_raw, q_raw in product([*before, p, q], repeat=2)
    )
    assert strict or rule.name not in STRICT_AT_ZERO
    run = decode(
        tiny_pair, PROMPTS[:2], rule, draft_tokens=3, new_tokens=20, settings=settings,
        compare=False, measure=False,
    )  # fmt: skip
    same = []
    for prompt, text in zip(PROMPTS, run.texts):
        ids = torch.tensor([tiny_pair.tokenizer(prompt.prompt).input_ids])
        with torch.no_grad():
            alone = tiny_pair.verifier.generate(ids, max_new_tokens=20, do_sample=False)
        same.append(text.tokens == tuple(alone[0, ids.shape[1] :].tolist()))
    assert all(same) or not strict


def observed(**values):
    filled = {"divergence": [0.0], "acceptance": [1.0], "strict": [1.0], "surprise": [0.0]}
    return Observation(*(np.array(values.get(name, filled[name])) for name in filled))


def made_run(tiny_pair):
    """Two texts by hand: rounds (3 of 3, 1 of 3) and (0 of 2)."""
    base = decode(tiny_pair, PROMPTS[:2], CACTUS, new_tokens=1, draft_tokens=1, compare=False)
    nan = float("nan")
    first = observed(
        divergence=[0.1, 0.2, 0.3, 0, 0.4, 0.2], acceptance=[1, 0.8, 0.6, nan, 0.9, 0.7],
        strict=[0.5, 0.5, 0.5, nan, 0.5, 0.5], surprise=[1, 1, 1, 1, 1, 1],
    )  # fmt: skip
    second = observed(divergence=[0.6], acceptance=[0.2], strict=[0.1], surprise=[3.0])
    one = replace(base.texts[0], tokens=(5,) * 6, drafted=(3, 3), accepted=(3, 1), observed=first)
    two = replace(base.texts[1], tokens=(5,), drafted=(2,), accepted=(0,), observed=second)
    seconds = dict.fromkeys(base.seconds, 1.0)
    return Decoding(CACTUS, 3, SamplingSettings(), [one, two], seconds, 7.0, 14)


def test_the_figures_by_hand(tiny_pair):
    figures = summary(made_run(tiny_pair))
    assert figures["parameters"] == {"delta": 0.3}
    assert figures["rounds"] == 3
    assert figures["accepted_length"] == pytest.approx(4 / 3)
    assert figures["tokens_per_round"] == pytest.approx(7 / 3)
    assert figures["acceptance_rate"] == 0.5
    assert figures["acceptance_by_position"] == pytest.approx([2 / 3, 1 / 2, 1])
    assert figures["kept_by_position"] == pytest.approx([2 / 3, 1 / 3, 1 / 2])
    assert figures["kl_per_text"] == pytest.approx((1.2 + 0.6) / 2)
    assert figures["kl_per_text_se"] == pytest.approx(0.3)
    assert figures["kl_per_token"] == pytest.approx(1.8 / 7)
    assert figures["nll_per_token"] == pytest.approx(9 / 7)
    assert figures["acceptance"] == pytest.approx((1 + 0.8 + 0.6 + 0.9 + 0.7 + 0.2) / 6)
    assert figures["strict_acceptance"] == pytest.approx(2.6 / 6)
    assert figures["rejection_vs_sps"] == pytest.approx((6 - 4.2) / (6 - 2.6) - 1)
    assert figures["bonus_share"] == pytest.approx(1 / 7)
    assert figures["seconds_per_token"] == pytest.approx(5 / 7)
    assert figures["speed_up"] == pytest.approx(0.5 / (5 / 7))


def test_an_estimate_of_the_divergence_is_unbiased(tiny_pair):
    """Two-token texts: the mean of the sums against the exact sum over texts and places.

    Five standard errors: a right estimate fails once in about two million seeds.
    """
    settings, prompt = SamplingSettings(), Prompt("w4 w5", "x")
    prompts = [replace(prompt, id=str(i)) for i in range(3000)]
    run = decode(
        tiny_pair, prompts, CACTUS, draft_tokens=1, new_tokens=2, settings=settings,
        batch_size=1000, compare=False,
    )  # fmt: skip
    figures = summary(run)
    start = tiny_pair.tokenizer(prompt.prompt).input_ids
    longer = torch.tensor([[*start, token] for token in range(40)])
    with torch.no_grad():
        p, q = (
            model(longer).logits[:, -2:].double().softmax(-1).numpy()
            for model in (tiny_pair.draft, tiny_pair.verifier)
        )
    law = one_step(CACTUS, p, q)
    spent = divergence("kl", law.output, q)
    # With one draft, a token that was accepted is followed by a bonus token, which spends nothing.
    kept = p[0, 0] * CACTUS.accept_prob(p[0, 0], q[0, 0])
    recovered = law.output[0, 0] - kept
    recovered[0] = 0  # an end token is not followed by anything
    expected = spent[0, 0] + (recovered * spent[:, 1]).sum()
    assert abs(figures["kl_per_text"] - expected) < 5 * figures["kl_per_text_se"] + 1e-6
    assert figures["kl_per_text_se"] < 0.1 * expected


def test_a_lookup_in_the_loop(tiny_pair):
    prompts = [Prompt("w4 w5 w6 w7 w4 w5", "r"), Prompt("w9", "s")]
    options = {
        "draft_tokens": 3,
        "new_tokens": 20,
        "settings": SamplingSettings(0.0),
        "compare": False,
    }
    run = decode(tiny_pair, prompts, make_rule("sps"), drafter=prompt_lookup(2), **options)
    alone = decode(tiny_pair, prompts, make_rule("sps"), **{**options, "draft_tokens": 0})
    assert texts(run) == texts(alone)
    assert run.texts[0].drafted[0] == 3
    assert run.texts[1].drafted[0] == 0
    assert sum(len(t.drafted) for t in run.texts) < sum(len(t.drafted) for t in alone.texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_tokens": -1}, "draft_tokens must be an integer of at least 0, got -1"),
        ({"new_tokens": 0}, "new_tokens must be an integer of at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"draft_tokens": 2.5}, "draft_tokens must be an integer of at least 0, got 2.5"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"new_tokens": 121}, "prompt 'a': 3 tokens and 126 new ones.* limit of 128"),
    ],
)
def test_bad_arguments_are_named(tiny_pair, options, message):
    with pytest.raises(UserError, match=message):
        decode(tiny_pair, PROMPTS, CACTUS, **options)


@dataclass(frozen=True)
class Broken(Rule):
    """A user's rule with a fault in acceptance or in recovery."""

    accepts: float
    recovers: float

    name = "broken"
    family = "mine"

    def accept(self, pair):
        return pair.q * 0 + self.accepts

    def recover(self, pair, candidate):
        return pair.q * self.recovers


def test_a_faulty_rule_is_an_error_and_never_a_token(tiny_pair):
    options = {"draft_tokens": 2, "new_tokens": 4, "compare": False, "measure": False}
    for accepts in (float("nan"), 1.5, -0.1):
        with pytest.raises(
            ValueError, match=r"Broken\(.* accepts token \d+ with .* no probability"
        ):
            decode(tiny_pair, PROMPTS[:1], Broken(accepts, 1.0), **options)
    for recovers in (0.0, float("nan")):
        with pytest.raises(ValueError, match=r"laws row 0 sums to .*: no token can be drawn"):
            decode(tiny_pair, PROMPTS[:1], Broken(0.0, recovers), **options)


def test_what_is_no_rule_and_no_prompt_is_refused(tiny_pair):
    with pytest.raises(UserError, match="rule must come from make_rule or be a Rule, got 'sps'"):
        decode(tiny_pair, PROMPTS, "sps")
    with pytest.raises(UserError, match="there is no prompt"):
        decode(tiny_pair, [], CACTUS)


@pytest.mark.cuda
def test_a_cuda_device_decodes_the_same_greedy_text(tiny_pair):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    moved = replace(
        tiny_pair,
        verifier=type(tiny_pair.verifier)(tiny_pair.verifier.config).cuda().eval(),
        draft=type(tiny_pair.draft)(tiny_pair.draft.config).cuda().eval(),
    )
    for name in ("verifier", "draft"):
        getattr(moved, name).load_state_dict(getattr(tiny_pair, name).state_dict())
    options = {
        "draft_tokens": 4,
        "new_tokens": 30,
        "settings": SamplingSettings(0.0),
        "batch_size": 4,
    }
    for rule in (make_rule("sps"), CACTUS, make_rule("frontier", level=0.1)):
        there, here = (decode(pair, PROMPTS, rule, **options) for pair in (moved, tiny_pair))
        assert texts(there) == texts(here)

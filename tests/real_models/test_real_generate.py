"""Any rule inside transformers' `generate`: greedy and sampled, streamed, stopped, batched."""

import io
from collections import Counter
from contextlib import redirect_stdout

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessor,
    StoppingCriteria,
    TextIteratorStreamer,
    TextStreamer,
)

from real_models.errors import UserError
from real_models.generate import CUSTOM_GENERATE
from real_models.laws.processor_laws import ProcessorLaws, processor_laws
from real_models.laws.settings_laws import SettingsLaws
from theory import make_rule

IDS = torch.tensor([[5, 6, 7, 8]])
STRICT = [("sps", {}), ("cactus", {"delta": 0.3}), ("typical", {}), ("frontier", {"level": 0.2})]


@pytest.fixture(scope="module")
def model(make_model):
    return make_model(seed=0)


@pytest.fixture(scope="module")
def draft(make_model):
    return make_model(seed=1)


@pytest.fixture
def speculate(model, draft):
    """`model.generate` with everything that calls for draft-and-verify."""

    def call(ids=IDS, **options):
        options = {"assistant_model": draft, "draft_tokens": 4, "max_new_tokens": 25, **options}
        return model.generate(
            ids, custom_generate=CUSTOM_GENERATE, trust_remote_code=True, **options
        )

    return call


@pytest.mark.parametrize(("rule", "parameters"), STRICT)
def test_greedy_text_is_the_models_own(model, speculate, rule, parameters):
    alone = model.generate(IDS, max_new_tokens=25, do_sample=False)
    found = speculate(rule=rule, rule_parameters=parameters, do_sample=False)
    assert torch.equal(found, alone)
    assert torch.equal(speculate(rule=make_rule(rule, **parameters), do_sample=False), alone)


def test_a_greedy_text_in_blocks_and_what_is_no_verification(model, speculate):
    alone = model.generate(IDS, max_new_tokens=25, do_sample=False)
    assert torch.equal(speculate(verification="block", do_sample=False), alone)
    sampled = {}
    for name in ("token", "block"):
        torch.manual_seed(3)
        sampled[name] = speculate(verification=name, do_sample=True)
    assert not torch.equal(sampled["token"], sampled["block"])
    with pytest.raises(UserError, match="verification must be token, block or scaled, got 'tree'"):
        speculate(verification="tree")


def test_a_batch_padded_on_the_left(model, speculate):
    ids = torch.tensor([[5, 6, 7, 8], [1, 1, 9, 4], [1, 3, 9, 4]])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]])
    alone = model.generate(ids, attention_mask=mask, max_new_tokens=25, do_sample=False)
    assert torch.equal(speculate(ids, attention_mask=mask, do_sample=False), alone)
    several = speculate(IDS, num_return_sequences=3, do_sample=True)
    assert several.shape[0] == 3


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.9, "top_k": 8},
        {"top_p": 0.8, "top_k": 0},
        {"repetition_penalty": 1.3, "top_k": 0},
        {"min_p": 0.05, "top_k": 0},
    ],
    ids=str,
)
def test_sampled_text_has_the_models_law(model, speculate, options):
    """Two tokens by `sps` against `generate` without a draft; a right one fails once in 10⁶."""
    ids, count = IDS.repeat(1, 1), 1500
    torch.manual_seed(0)
    options = {"do_sample": True, "max_new_tokens": 2, **options}
    batched = options.get("repetition_penalty") is None and options.get("min_p") is None
    repeat = {"num_return_sequences": count} if batched else {}
    runs = 1 if batched else count // 6
    alone = model.generate(ids, num_return_sequences=count, **options)
    found = torch.cat([speculate(ids, draft_tokens=3, **options, **repeat) for _ in range(runs)])
    tables = [Counter(map(tuple, text[:, 4:].tolist())) for text in (alone, found)]
    assert set(tables[1]) <= set(tables[0]) | {t for t in tables[1] if tables[1][t] < 10}
    texts = sorted(set(tables[0]) | set(tables[1]))
    rows = np.array([[table[text] for text in texts] for table in tables])
    common = rows.sum(0) >= 20
    rows = np.column_stack([rows[:, common], rows[:, ~common].sum(-1)])
    rows = rows[:, rows.sum(0) > 0]
    assert stats.chi2_contingency(rows).pvalue > 1e-6


def test_a_seed_repeats_a_text(speculate):
    texts = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        texts.append(speculate(do_sample=True, rule="cactus", rule_parameters={"delta": 0.1}))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


def test_a_streamer_sees_every_token_once(model, speculate, make_tokenizer):
    tokenizer = make_tokenizer()
    streamed = io.StringIO()
    with redirect_stdout(streamed):
        text = speculate(do_sample=False, streamer=TextStreamer(tokenizer, skip_prompt=True))
    assert streamed.getvalue().split() == tokenizer.decode(text[0, 4:]).split()
    pieces = TextIteratorStreamer(tokenizer, timeout=10)
    text = speculate(do_sample=False, streamer=pieces)
    assert "".join(pieces).split() == tokenizer.decode(text[0]).split()


def test_stopping_criteria_end_a_text_at_the_token_that_meets_them(model, speculate):
    seen = []

    class AfterToken(StoppingCriteria):
        def __init__(self, token):
            self.token = token

        def __call__(self, input_ids, scores, **options):
            seen.append(input_ids.shape[-1])
            return input_ids[:, -1] == self.token

    whole = model.generate(IDS, max_new_tokens=25, do_sample=False)[0]
    token = int(whole[9])
    first = int((whole[4:] == token).nonzero()[0, 0]) + 5
    found = speculate(do_sample=False, stopping_criteria=[AfterToken(token)])
    assert torch.equal(found[0], whole[:first])
    assert seen == list(range(5, first + 1))


def test_stop_strings_reach_their_criterion_with_the_tokenizer(model, speculate, monkeypatch):
    """transformers' criterion itself does not take the tiny tokenizer of words."""
    whole = model.generate(IDS, max_new_tokens=25, do_sample=False)[0]
    token = int(whole[10])
    first = int((whole[4:] == token).nonzero()[0, 0]) + 5

    class LastToken(StoppingCriteria):
        def __init__(self, tokenizer, strings):
            assert (tokenizer, strings) == ("a tokenizer", ["a string"])

        def __call__(self, input_ids, scores, **options):
            return input_ids[:, -1] == token

    monkeypatch.setattr("real_models.generate.StopStringCriteria", LastToken)
    found = speculate(do_sample=False, stop_strings=["a string"], tokenizer="a tokenizer")
    assert torch.equal(found[0], whole[:first])


def test_an_end_token_ends_a_text_and_the_rest_is_padding(model, speculate):
    ids = torch.tensor([[5, 6, 7, 8], [9, 4, 9, 4]])
    whole = model.generate(ids, max_new_tokens=25, do_sample=False)
    end = int(whole[0, 12])
    options = {"do_sample": False, "eos_token_id": end, "pad_token_id": 1}
    alone = model.generate(ids, max_new_tokens=25, **options)
    assert torch.equal(speculate(ids, **options), alone)


def test_a_dictionary_is_returned_where_it_is_asked_for(speculate):
    found = speculate(do_sample=False, return_dict_in_generate=True)
    assert torch.equal(found.sequences, speculate(do_sample=False))


def test_a_lookup_needs_no_assistant(model, speculate):
    ids = torch.tensor([[5, 6, 7, 8, 5, 6]])
    alone = model.generate(ids, max_new_tokens=25, do_sample=False)
    options = {"assistant_model": None, "prompt_lookup": 2, "do_sample": False}
    assert torch.equal(speculate(ids, **options), alone)


class Ban(LogitsProcessor):
    """Bans the token that stands last in the text: depends on the drafts before it."""

    def __call__(self, input_ids, scores):
        return scores.scatter(-1, input_ids[:, -1:], -torch.inf)


def test_a_processor_sees_the_drafts_before_its_place(model, speculate):
    alone = model.generate(IDS, max_new_tokens=25, do_sample=False, logits_processor=[Ban()])
    assert torch.equal(speculate(do_sample=False, logits_processor=[Ban()]), alone)
    torch.manual_seed(0)
    text = speculate(do_sample=True, logits_processor=[Ban()], rule="typical")[0]
    assert bool((text[4:] != text[3:-1]).all())


def test_known_filters_take_the_short_way(model):
    def prepared(**options):
        config = model._prepare_generation_config(None, do_sample=True, **options)[0]
        return model._get_logits_processor(config, 4, IDS)

    laws = processor_laws(prepared(temperature=0.6, top_k=7, top_p=0.9), True, False)
    assert isinstance(laws, SettingsLaws)
    assert laws.settings.label == "T=0.6 top-p 0.9 top-k 7"
    processors = prepared(temperature=0.6, top_k=7, top_p=0.9)
    logits = 4 * torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    slow = ProcessorLaws(processors, True, False)
    texts = [[4], [5], [6]]
    torch.testing.assert_close(laws.verifier(logits, texts), slow.verifier(logits, texts))
    odd = prepared(temperature=0.6, min_p=0.1)
    assert isinstance(processor_laws(odd, True, False), ProcessorLaws)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": None}, "rule must come from make_rule or be a Rule, got None"),
        ({"rule": "cactos"}, "unknown rule 'cactos'; did you mean 'cactus'"),
        ({"rule": "cactus"}, "rule 'cactus' needs the parameter 'delta'"),
        (
            {"rule": make_rule("sps"), "rule_parameters": {"x": 1}},
            "rule_parameters go with the name",
        ),
        ({"draft_tokens": 0}, "draft_tokens must be an integer of at least 1, got 0"),
        ({"draft_tokens": True}, "draft_tokens must be an integer of at least 1, got True"),
        ({"draft_tokens": 10**400}, "draft_tokens must be at most 65536, got 1000"),
        ({"assistant_model": None, "prompt_lookup": 0}, "prompt_lookup must be an integer"),
        ({"assistant_model": None, "prompt_lookup": True}, "prompt_lookup must be an integer"),
        ({"stop_strings": ["w5"]}, "stop_strings need the model's tokenizer"),
        ({"guidance_scale": 1.5}, "guidance_scale runs the model once more"),
        ({"assistant_model": None}, "either an assistant_model or prompt_lookup"),
        ({"prompt_lookup": 2}, "either an assistant_model or prompt_lookup"),
        ({"num_beams": 2}, "no beams, got num_beams = 2"),
        (
            {"output_scores": True, "return_dict_in_generate": True},
            "output_scores is not available",
        ),
    ],
)
def test_what_cannot_be_done_is_said(speculate, options, message):
    with pytest.raises(UserError, match=message):
        speculate(do_sample=False, **options)


def test_batches_that_cannot_be_decoded_are_refused(speculate, make_tokenizer, make_model):
    ids = torch.tensor([[5, 6, 7, 8], [9, 4, 3, 2]])
    with pytest.raises(UserError, match=r"one text at a time, without padding.*Repetition"):
        speculate(ids, repetition_penalty=1.2, do_sample=True)
    with pytest.raises(UserError, match="a streamer takes one text"):
        speculate(ids, do_sample=False, streamer=TextStreamer(make_tokenizer()))
    holes = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1]])
    with pytest.raises(UserError, match="attention_mask row 1 must be zeros, then ones"):
        speculate(ids, attention_mask=holes, do_sample=False)
    with pytest.raises(UserError, match="the model has 40 logits and its assistant 30"):
        speculate(assistant_model=make_model(vocab=30))


def test_the_returned_object_reports_what_the_loop_knows(speculate):
    torch.manual_seed(3)
    found = speculate(
        IDS.repeat(2, 1), do_sample=True, rule="cactus", rule_parameters={"delta": 0.3},
        return_dict_in_generate=True,
    )  # fmt: skip
    torch.manual_seed(3)
    plain = speculate(
        IDS.repeat(2, 1), do_sample=True, rule="cactus", rule_parameters={"delta": 0.3}
    )
    assert torch.equal(found.sequences, plain)
    for report in found.speculation:
        assert report.tokens <= report.accepted + report.rounds
        assert 0 <= report.accepted <= report.drafted
        assert 0 < report.acceptance <= 1
        assert report.kl > 0
        assert report.kl_per_token == report.kl / report.tokens


@pytest.mark.parametrize("options", [{"do_sample": True}, {"do_sample": False}], ids=str)
def test_the_strict_rule_reports_no_divergence(speculate, options):
    (report,) = speculate(rule="sps", return_dict_in_generate=True, **options).speculation
    assert report.kl == pytest.approx(0, abs=1e-12)
    assert report.tokens == 25


@pytest.mark.parametrize(
    ("process", "said"),
    [
        (lambda scores: scores.fill_(-torch.inf), "logits hold no finite value"),
        (lambda scores: scores.fill_(torch.nan), "logits hold nan"),
        (lambda scores: scores[:, :5], r"logits must be \[1, 40\], got \[1, 5\]"),
    ],
)
def test_a_processor_that_leaves_no_distribution_is_named_with_its_place(speculate, process, said):
    class Third(LogitsProcessor):
        """Does harm from the sixth token on."""

        def __call__(self, input_ids, scores):
            return process(scores) if input_ids.shape[-1] > 5 else scores

    named = r"row 0 of input_ids.* position 6: behind Third, TopK.* the draft's " + said
    with pytest.raises(UserError, match=named):
        speculate(do_sample=True, logits_processor=[Third()])


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("lookup", [None, 2])
def test_a_text_may_fill_the_last_place_of_a_table_of_positions(texts, lookup):
    """GPT-2 has no position behind its last one, for a draft neither."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.6)).eval()
    ids, mask = torch.randint(4, 40, (texts, 24)), torch.ones(texts, 24, dtype=torch.long)
    mask[0, : 3 * (texts - 1)] = 0
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    options |= {"pad_token_id": 1, "eos_token_id": None}
    drafts = {"prompt_lookup": lookup} if lookup else {"assistant_model": model}
    found = model.generate(
        ids, custom_generate=CUSTOM_GENERATE, trust_remote_code=True, **drafts, **options
    )
    assert torch.equal(found, model.generate(ids, **options))


@pytest.mark.parametrize("number", [np.int8(3), np.int64(3)])
def test_integers_of_numpy_are_integers(speculate, number):
    assert torch.equal(
        speculate(do_sample=False, draft_tokens=number),
        speculate(do_sample=False, assistant_model=None, prompt_lookup=number),
    )


def test_a_lookup_without_drafts_reports_too(model):
    (report,) = model.generate(
        IDS, custom_generate=CUSTOM_GENERATE, trust_remote_code=True, prompt_lookup=2,
        return_dict_in_generate=True, max_new_tokens=1, do_sample=False,
    ).speculation  # fmt: skip
    assert (report.drafted, report.accepted, report.rounds, report.tokens) == (0, 0, 1, 1)
    assert np.isnan(report.acceptance)

"""Lists of the likeliest tokens: stored, checked, and exact under the settings they decide."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from measured_traces import TOP, V, listed_of, listed_trace, record

from real_models import calibrate, measure
from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.traces.decided import decided, require_decided, tokens_needed
from real_models.traces.format import TraceHeader
from real_models.traces.listing import Listed, check_listed
from real_models.traces.reader import open_trace
from real_models.traces.writer import TraceWriter

CLOSED = ["T=1 top-k 8", "T=0.6 top-p 0.95 top-k 5", "T=1.7 top-k 1", "T=0", "T=0 top-p 0.5",
          "T=0.7 top-k 8 greedy-draft"]  # fmt: skip
OPEN = ["T=1", "T=0.6 top-p 0.95", "T=1 greedy-draft", "T=1 top-k 9"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return record(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def lists(whole, tmp_path_factory):
    return listed_trace(whole, tmp_path_factory.mktemp("lists"))


def some(rows=6, seed=0):
    logits = 2 * torch.randn(rows, V, generator=torch.Generator().manual_seed(seed))
    return logits, listed_of(logits, [3] * rows)


def test_lists_come_back_as_they_were(whole, lists):
    trace = open_trace(lists)
    assert trace.header.listed == TOP
    for chunk, full in zip(trace.chunks, open_trace(whole).chunks):
        for part in ("draft", "verifier"):
            expected = listed_of(full.logits(part), full.next_tokens)
            found = chunk.listed(part)
            np.testing.assert_array_equal(found.tokens, expected.tokens)
            np.testing.assert_array_equal(found.logprobs, expected.logprobs)
            some_rows = chunk.listed(part, 1, 3)
            np.testing.assert_array_equal(some_rows.tokens, expected.tokens[1:3])
        assert chunk.context.tolist() == full.context.tolist()


def test_whole_rows_and_lists_are_asked_for_by_their_names(whole, lists):
    with pytest.raises(UserError, match="lists the 8 likeliest tokens of each row, and has no log"):
        open_trace(lists).chunks[0].logits("draft")
    with pytest.raises(UserError, match="has whole rows, and no lists"):
        open_trace(whole).chunks[0].listed("draft")


def test_a_header_without_lists_is_written_as_before():
    header = open_header({})
    assert b"listed" not in header.to_bytes()
    assert TraceHeader.from_bytes(header.to_bytes(), "here") == header
    assert json.loads(open_header({"listed": 3}).to_bytes())["listed"] == 3


def open_header(changes):
    values = {
        "pair": "x", "verifier": "v", "verifier_revision": "", "draft": "d", "draft_revision": "",
        "tokenizer_hash": "", "contexts": "given", "sampling": None, "seed": 0, "positions": 1,
        "prompts": 1, "prompts_sha256": "", "vocabulary": V, "logit_widths": {}, "end_tokens": [],
    }  # fmt: skip
    return TraceHeader(**(values | changes))


@pytest.mark.parametrize("listed", [0, True, "3", None, 2**31])
def test_a_header_with_a_wrong_number_of_tokens(listed):
    data = json.dumps(json.loads(open_header({}).to_bytes()) | {"listed": listed}).encode()
    with pytest.raises(UserError, match="here: listed must be an integer ≥ 1, got"):
        TraceHeader.from_bytes(data, "here")


def test_mass_rest_and_the_most_of_one_token():
    logits, listed = some()
    p = logits.double().softmax(-1).numpy()
    known = np.zeros((len(p), V), dtype=bool)
    for row, tokens in enumerate(listed.tokens):
        known[row, tokens[tokens >= 0]] = True
    np.testing.assert_allclose(listed.mass, (p * known).sum(-1), rtol=1e-12)
    np.testing.assert_allclose(listed.rest, (p * ~known).sum(-1), rtol=1e-9)
    assert ((p * ~known).max(-1) <= listed.most).all()
    np.testing.assert_array_equal(listed.most, np.minimum(np.exp(listed.least), listed.rest))
    assert (listed.most < listed.rest).any()
    np.testing.assert_allclose(np.exp(listed.least), np.sort(p)[:, -TOP], rtol=1e-12)
    assert listed.counts.tolist() == [TOP] * len(p)


def test_an_even_rest_is_one_of_the_distributions_that_agree():
    logits, listed = some()
    p = logits.double().softmax(-1)
    even = listed.logits_of_an_even_rest().softmax(-1)
    np.testing.assert_allclose(even.amax(-1), p.amax(-1), rtol=1e-12)
    for row, tokens in enumerate(listed.tokens):
        seen = tokens[tokens >= 0]
        np.testing.assert_allclose(even[row, seen], p[row, seen], rtol=1e-12)
        others = np.delete(even[row].numpy(), seen)
        np.testing.assert_allclose(others, listed.rest[row] / len(others), rtol=1e-9)
        assert others.max() <= listed.most[row]


@pytest.mark.parametrize("label", CLOSED)
def test_a_decided_setting_gives_the_law_of_the_whole_row(label):
    sampling = SamplingSettings.parse(label)
    logits, listed = some(rows=40)
    assert decided(sampling, listed).all()
    for law in (sampling.probabilities, sampling.draft_probabilities):
        full = law(logits.double()).numpy()
        np.testing.assert_allclose(law(listed.logits_of_the_list()), full, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("label", OPEN)
def test_an_open_setting_does_not(label):
    """The negative control: under these the list by itself gives another law."""
    sampling = SamplingSettings.parse(label)
    logits, listed = some(rows=40)
    assert not decided(sampling, listed).any()
    full = sampling.probabilities(logits.double())
    assert (sampling.probabilities(listed.logits_of_the_list()) - full).abs().max() > 1e-3


def test_a_list_of_all_tokens_decides_every_setting():
    logits, _ = some()
    listed = listed_of(logits, [3] * len(logits), top=V)
    assert all(decided(SamplingSettings.parse(label), listed).all() for label in OPEN + CLOSED)


def test_ties_at_the_edge_are_decided_where_the_list_shows_their_end():
    logits = torch.tensor([[5.0, 4, 3, 3, 3, 2, 1, 0, -1, -2]])
    two, three = (SamplingSettings(top_k=k) for k in (2, 3))
    for top, expected in ((2, [True, False]), (3, [True, True]), (4, [True, False]),
                          (5, [True, False]), (6, [True, True])):  # fmt: skip
        listed = listed_of(logits, [0], top)
        assert [bool(decided(s, listed)[0]) for s in (two, three)] == expected, top
    law = three.probabilities(listed_of(logits, [0], 6).logits_of_the_list())
    np.testing.assert_allclose(law, three.probabilities(logits.double()), rtol=1e-12)


def test_what_a_setting_needs():
    needed = {label: tokens_needed(SamplingSettings.parse(label)) for label in (*CLOSED, *OPEN)}
    assert list(needed.values()) == [8, 5, 1, 1, 1, 8, None, None, None, 9]


def fault(change):
    """The message for a list of which one thing is wrong."""
    _, listed = some()
    tokens, logprobs = listed.tokens.copy(), listed.logprobs.copy()
    vocabulary = change(tokens, logprobs) or V
    with pytest.raises(UserError) as caught:
        check_listed(Listed(tokens, logprobs, vocabulary), lambda row: f"row {row}")
    return str(caught.value)


def test_a_list_that_is_none_names_row_and_value():
    def put(array, row, column, value):
        array[row, column] = value

    assert fault(lambda t, _: put(t, 2, 1, V)) == (
        f"row 2: token id {V} is outside the vocabulary of {V}"
    )
    assert fault(lambda _, p: put(p, 3, 0, np.nan)) == "row 3: a log-probability is nan"
    assert fault(lambda _, p: put(p, 3, 0, np.inf)) == "row 3: a log-probability is inf"
    assert fault(lambda t, _: put(t, 4, 2, -1)) == "row 4: token id -1"
    assert "row 1: token id" in fault(lambda t, _: put(t, 1, 1, t[1, 0]))
    assert "is listed twice" in fault(lambda t, _: put(t, 1, 1, t[1, 0]))
    assert "row 5: the log-probability" in fault(lambda _, p: put(p, 5, 3, p[5, 2] + 0.1))
    assert "no token is listed that can come" in fault(
        lambda t, p: (put(t, 0, slice(None), -1), put(p, 0, slice(None), -np.inf))[0]
    )
    _, listed = some()
    row = int(np.flatnonzero(listed.tokens[:, -1] >= 0)[0])
    assert f"row {row}: the text's own token has the log-probability -0.0001" in fault(
        lambda _, p: put(p, row, -1, -0.0001)
    )
    assert "row 0: the listed probabilities sum to 1." in fault(
        lambda _, p: put(p, 0, slice(None), p[0] - np.log(np.exp(p[0]).sum()) + 2e-4)
    )
    assert f"does not go into the {V - 8} other tokens" in fault(
        lambda t, p: (put(t, 1, -1, -1), put(p, 1, slice(None), p[1] - 5), put(p, 1, -1, -np.inf))[
            0
        ]
    )


def test_a_sum_that_exceeds_one_by_rounding_leaves_no_rest():
    _, listed = some()
    logprobs = listed.logprobs - np.log(listed.mass)[:, None] + 5e-5
    near = Listed(listed.tokens, logprobs, V)
    check_listed(near, str)
    assert (near.rest == 0).all()
    law = SamplingSettings().probabilities(near.logits_of_an_even_rest())
    np.testing.assert_allclose(law.sum(-1), 1, rtol=1e-12)


def test_shapes_and_contexts_that_do_not_fit(tmp_path):
    _, listed = some()
    writer = TraceWriter(tmp_path, open_header({"listed": TOP}))
    narrow = Listed(listed.tokens[:, 1:], listed.logprobs[:, 1:], V)
    context = np.arange(7)
    for draft, verifier in ((narrow, narrow), (listed, listed.rows(1)), (listed.rows(6),) * 2):
        with pytest.raises(ValueError, match=r"chunk 0: (draft|verifier) must be lists"):
            writer.append_listed(0, "p", "all", context, draft, verifier)
    with pytest.raises(ValueError, match="the header lists 8 tokens a row"):
        writer.append(0, "p", "all", context, *[torch.zeros(6, V)] * 2)
    with pytest.raises(ValueError, match="contexts are 'given'"):
        writer.append_listed(0, "p", "all", None, listed, listed)
    with pytest.raises(ValueError, match="need a context of 6, got 7"):
        writer.append_listed(0, "p", "all", context, listed, listed, headless=True)
    bad = Listed(np.where(listed.tokens == 0, V, listed.tokens), listed.logprobs, V)
    with pytest.raises(UserError, match=rf"text 'p', row \d: the draft: token id {V} is outside"):
        writer.append_listed(0, "p", "all", context, bad, listed)
    assert [path.name for path in tmp_path.iterdir()] == ["header.json"]


# --- measured and calibrated ----------------------------------------------------------------------

SMALL = ["--device", "cpu", "--settings", "T=1 top-k 8", "T=0.6 top-p 0.95 top-k 5", "T=0"]


def tidy(folder, name):
    import pandas as pd

    return pd.read_parquet(folder / f"{name}.parquet")


def assert_same(one, other):
    assert list(one.columns) == list(other.columns)
    assert len(one) == len(other)
    for column in one.columns:
        if one[column].dtype.kind == "f":
            np.testing.assert_allclose(one[column], other[column], rtol=1e-9, atol=1e-9)
        else:
            assert one[column].tolist() == other[column].tolist(), column


def test_measure_gives_what_the_whole_rows_give(whole, lists, tmp_path, tables_only, capsys):
    rules = ["--rules", "sps", "cactus", "typical", "cascade_opt", "cascade_token_v1", "frontier"]
    more = [*SMALL, *rules, "--jobs", "1"]
    for name, trace in (("whole", whole), ("lists", lists)):
        assert measure.main([str(trace), *more, "--out", str(tmp_path / name)]) == 0
    for table in ("tradeoff", "frontier", "groups", "quantiles"):
        assert_same(tidy(tmp_path / "lists", table), tidy(tmp_path / "whole", table))


def test_calibrate_gives_what_the_whole_rows_give(whole, lists, tmp_path, capsys):
    more = [*SMALL, "--rules", "cactus", "lenience", "frontier", "--target", "kl=0.02"]
    for name, trace in (("whole", whole), ("lists", lists)):
        assert calibrate.main([str(trace), *more, "--out", str(tmp_path / name)]) == 0
    assert_same(tidy(tmp_path / "lists", "calibrated"), tidy(tmp_path / "whole", "calibrated"))


@pytest.mark.parametrize("command", [measure, calibrate])
@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("T=0.5", "'T=0.5' is not decided by lists of the 8 likeliest tokens: with top-k 8 or less "
         "it is, as in 'T=0.5 top-k 8'"),
        ("T=0.6 top-p 0.95 top-k 9", "as in 'T=0.6 top-p 0.95 top-k 8'"),
    ],
)  # fmt: skip
def test_an_open_setting_is_refused_with_the_nearest_closed_one(
    lists, tmp_path, capsys, command, label, told
):
    out = ["--out", str(tmp_path / "o")]
    assert command.main([str(lists), "--settings", label, "--rules", "sps", *out]) == 2
    errors = capsys.readouterr().err
    assert told in errors
    assert len([line for line in errors.splitlines() if " error: " in line]) == 1
    assert not (tmp_path / "o").exists()


def test_a_row_that_lists_too_few_is_named(lists, tmp_path):
    trace = open_trace(lists)
    writer = TraceWriter(tmp_path, replace(trace.header, prompts=1))
    chunk = trace.chunks[0]
    draft, verifier = chunk.listed("draft"), chunk.listed("verifier")
    verifier.tokens[2, 6:], verifier.logprobs[2, 6:] = -1, -np.inf
    writer.append_listed(0, "one", "all", chunk.context, draft, verifier)
    cut = open_trace(tmp_path)
    require_decided(cut, [SamplingSettings(top_k=6)])
    with pytest.raises(UserError, match=r"text 'one', row 2: the verifier lists 6 tokens, not 7"):
        require_decided(cut, [SamplingSettings(top_k=7)])
    verifier.logprobs[1, 4:8] = verifier.logprobs[1, 4]
    verifier.tokens[1, 8], verifier.logprobs[1, 8] = -1, -np.inf
    writer = TraceWriter(tmp_path / "tied", replace(trace.header, prompts=1))
    writer.append_listed(0, "one", "all", chunk.context, draft, verifier)
    with pytest.raises(
        UserError, match=r"row 1: the verifier's tokens tie at .* place 6 to the en"
    ):
        require_decided(open_trace(tmp_path / "tied"), [SamplingSettings(top_k=6)])


@pytest.mark.parametrize("command", [measure, calibrate])
def test_rules_that_ask_for_more_are_refused_by_name(lists, tmp_path, capsys, command):
    more = ["--settings", "T=1 top-k 8", "--out", str(tmp_path / "o")]
    assert command.main([str(lists), "--rules", "sps", "cascade_token_v2", *more]) == 2
    assert "cascade_token_v2: the verifier's list need not hold" in capsys.readouterr().err


def test_where_all_rules_are_asked_for_they_are_left_out(lists, tmp_path, tables_only, capsys):
    more = ["--settings", "T=1 top-k 8", "--values", "cactus=0.1", "--jobs", "1"]
    assert measure.main([str(lists), *more, "--out", str(tmp_path)]) == 0
    assert "left out are cascade_token_v2 and cascade_token_v3" in capsys.readouterr().err
    rules = set(tidy(tmp_path, "tradeoff")["rule"])
    assert {"cascade_token_v1", "cascade_opt", "cactus"} <= rules
    assert not {"cascade_token_v2", "cascade_token_v3"} & rules


def test_the_rules_that_are_left_out_differ_from_the_whole_rows(whole, lists):
    """The control: what they ask for is not in the lists, and an even rest gives other laws."""
    from real_models.measuring.corpus import trace_corpus
    from real_models.measuring.parts import Resources
    from sim.tables.grid import Setting

    asked = [Setting("cascade_token_v2", "alpha", value) for value in (0.1, 0.2, 0.3)]
    sampling, with_ = SamplingSettings(top_k=8), Resources("cpu", 1 << 20)
    found = [
        [point.acceptance for point in trace_corpus(open_trace(trace), sampling, with_).points(
            asked, "acceptance")]
        for trace in (whole, lists)
    ]  # fmt: skip
    assert np.abs(np.subtract(*found)).max() > 1e-3

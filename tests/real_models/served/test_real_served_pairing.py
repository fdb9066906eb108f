"""Two servers' rows of one text lie beside each other, or it is said where they do not."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from served_answers import (
    FORMS,
    TEXTS,
    WORDS,
    V,
    chat,
    completions,
    known,
    prompt_logprobs,
    rows,
    sglang,
)

from real_models.errors import UserError
from real_models.served.pairing import pair_texts
from real_models.served.reading.forms import read_texts
from real_models.served.writing import TOKENS_FILE, write_served
from real_models.traces.reader import open_trace

TOP = 4


def texts_of(form, model, top=TOP, **more):
    return [text for ids in TEXTS.values() for text in read_texts(form(model, ids, top, **more))]


def written(folder, form, top=TOP, vocabulary=V, **more):
    paired = pair_texts(texts_of(form, "d", top, **more), texts_of(form, "v", top, **more))
    return write_served(folder, paired, vocabulary, {"draft": "d", "verifier": "v"})


@pytest.mark.parametrize("form", [prompt_logprobs, sglang])
def test_a_trace_holds_the_rows_of_both_servers(tmp_path, form):
    trace = written(tmp_path, form)
    assert (trace.header.listed, trace.header.vocabulary, trace.positions) == (TOP, V, 9)
    assert (trace.header.pair, trace.complete) == ("d for v", True)
    for chunk, ids in zip(trace.chunks, TEXTS.values()):
        assert tuple(chunk.context) == ids
        assert tuple(chunk.next_tokens) == ids[1:]
        for part in ("draft", "verifier"):
            listed = chunk.listed(part)
            for row, (likely, logprobs) in enumerate(known(part[0], ids[:-1], TOP)):
                assert listed.tokens[row, :-1].tolist() == [token for token, _ in likely]
                assert listed.logprobs[row, :-1].tolist() == [value for _, value in likely]
                own = ids[row + 1]
                outside = own not in listed.tokens[row, :-1]
                assert listed.tokens[row, -1] == (own if outside else -1)
                assert listed.logprobs[row, -1] == (logprobs[own] if outside else -np.inf)
                assert listed.rest[row] == pytest.approx(
                    1 - np.exp(logprobs[listed.tokens[row][listed.tokens[row] >= 0]]).sum()
                )


def test_tokens_told_by_texts_get_ids_in_the_order_of_the_texts(tmp_path):
    by_text, by_id = written(tmp_path / "t", completions), written(tmp_path / "i", prompt_logprobs)
    names = json.loads((tmp_path / "t" / TOKENS_FILE).read_text(encoding="utf-8"))
    assert names == sorted(names)
    for one, other in zip(by_text.chunks, by_id.chunks):
        assert [names[token] for token in one.context] == [WORDS[token] for token in other.context]
        ours, theirs = one.listed("draft"), other.listed("draft")
        np.testing.assert_array_equal(ours.logprobs, theirs.logprobs)
        texts = [[names[t] if t >= 0 else "" for t in row] for row in ours.tokens]
        assert texts == [[WORDS[t] if t >= 0 else "" for t in row] for row in theirs.tokens]
    assert by_text.header.tokenizer_hash != by_id.header.tokenizer_hash == ""


def test_a_whole_vocabulary_makes_whole_rows_of_the_very_values(tmp_path):
    trace = written(tmp_path, prompt_logprobs, top=-1)
    assert (trace.header.listed, trace.header.dtype) == (None, "float32")
    for chunk, ids in zip(trace.chunks, TEXTS.values()):
        exact = log_softmax(rows("d", ids[:-1]).astype(float), axis=-1).astype(np.float32)
        assert torch.equal(chunk.logits("draft"), torch.from_numpy(exact))


def test_texts_in_another_order_are_laid_beside_each_other(tmp_path):
    draft, verifier = texts_of(prompt_logprobs, "d"), texts_of(prompt_logprobs, "v")
    straight = pair_texts(draft, verifier, list(TEXTS))
    turned = pair_texts(draft[::-1], verifier, list(TEXTS))
    for one, other in zip(straight, turned):
        assert (one.name, one.tokens, one.position) == (other.name, other.tokens, other.position)
        assert [row.logprobs.tolist() for row in one.draft] == [
            row.logprobs.tolist() for row in other.draft
        ]


def test_the_row_behind_a_text_counts_where_both_tell_it():
    draft, verifier = texts_of(completions, "d", new=1), texts_of(completions, "v", new=1)
    for one, ids in zip(pair_texts(draft, verifier), TEXTS.values()):
        assert len(one.draft) == len(ids)
        assert one.tokens[: len(ids)] == tuple(WORDS[token] for token in ids)


def test_forms_may_differ_between_the_two():
    (one, *_) = pair_texts(texts_of(sglang, "d", new=1), texts_of(prompt_logprobs, "v"))
    assert (one.position, len(one.draft), one.tokens) == (1, 4, TEXTS["a"])


def test_a_first_token_is_taken_from_the_server_that_tells_it(tmp_path):
    untold = texts_of(prompt_logprobs, "v", told=False)
    assert pair_texts(texts_of(sglang, "d"), untold)[0].tokens == TEXTS["a"]
    headless = pair_texts(texts_of(prompt_logprobs, "d", told=False), untold)
    assert headless[0].tokens == TEXTS["a"][1:]
    trace = write_served(tmp_path, headless, V, {})
    assert [chunk.entry.first for chunk in trace.chunks] == [-1, -1, -1]
    assert tuple(open_trace(tmp_path).chunks[0].next_tokens) == TEXTS["a"][1:]


def test_generated_texts_count_as_far_as_they_agree():
    draft, verifier = (read_texts(chat(model, TEXTS["a"], TOP)) for model in ("v", "v"))
    assert len(pair_texts(draft, verifier)[0].draft) == 4
    text = verifier[0]
    other = replace(text, tokens=(*text.tokens[:2], " other", text.tokens[3]))
    (one,) = pair_texts(draft, [other])
    assert (len(one.draft), one.tokens) == (3, (*text.tokens[:2], " other"))


# --- what does not go together --------------------------------------------------------------------


def refused(draft, verifier, names=None):
    with pytest.raises(UserError) as caught:
        pair_texts(draft, verifier, names)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_two_tokenizers_are_told_by_text_position_and_token():
    verifier = texts_of(prompt_logprobs, "v")
    draft = [read_texts(prompt_logprobs("d", (3, 1, 9, 1, 5), TOP))[0], *verifier[1:]]
    assert refused(draft, verifier, list(TEXTS)) == (
        "text 'a', position 2: the token is ' wj' (9) to the draft and ' we' (4) to the "
        "verifier: two tokenizers, or another text"
    )


def test_ids_of_two_texts_are_two_tokenizers():
    verifier = texts_of(prompt_logprobs, "v")
    draft = texts_of(prompt_logprobs, "d")
    shared = next(k for k in draft[0].rows[1].names if k in verifier[0].rows[1].names)
    draft[0].rows[1].names[shared] = " other"
    assert refused(draft, verifier) == (
        f"text 'text-00000', position 2: the token {shared} is ' other' to the draft and "
        f"{WORDS[shared]!r} to the verifier: two tokenizers"
    )
    draft[0].rows[1].names[shared] = "\ufffd"
    assert len(pair_texts(draft, verifier)) == 3


def test_generated_texts_that_are_split_otherwise_are_two_tokenizers():
    (text,) = read_texts(chat("v", TEXTS["a"], TOP))
    joined = "".join(text.tokens)
    other = replace(text, tokens=(joined[:8], joined[8:11], joined[11:], ""))
    assert "two tokenizers" in refused([text], [other])


@pytest.mark.parametrize("cut", ["draft", "verifier"])
def test_a_text_that_was_cut_is_told_with_both_lengths(cut):
    texts = {"draft": texts_of(prompt_logprobs, "d"), "verifier": texts_of(prompt_logprobs, "v")}
    texts[cut][1] = read_texts(prompt_logprobs(cut[0], TEXTS["b"][:3], TOP))[0]
    counts = {"draft": 4, "verifier": 4} | {cut: 3}
    assert refused(texts["draft"], texts["verifier"], list(TEXTS)) == (
        f"text 'b', position 3: the draft was given {counts['draft']} tokens of it and the "
        f"verifier {counts['verifier']}: one cut it, or has another tokenizer"
    )


def test_ids_and_texts_do_not_go_together():
    told = refused(texts_of(completions, "d"), texts_of(prompt_logprobs, "v"))
    assert told.startswith("text 'text-00000', position 0: the token is ' wd' to the draft and")
    assert told.endswith("ask both for token ids")


def test_other_numbers_of_texts_or_names():
    texts = texts_of(prompt_logprobs, "d")
    assert refused(texts[:2], texts) == "the draft was asked about 2 texts, the verifier about 3"
    assert refused(texts, texts, ["a"]) == "1 names for 3 texts"


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda row: row.keys.__setitem__(1, 77),
         "text 'text-00001', position 2: the draft: token id 77 is outside the vocabulary of 24"),
        (lambda row: row.logprobs.__setitem__(0, 0.0005),
         "text 'text-00001', position 2: the draft: the listed probabilities sum to 1."),
        (lambda row: row.logprobs.__imul__(1.6),
         "text 'text-00001', position 2: the draft: the listed probabilities sum to 0."),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_are_refused_before_anything_is_written(tmp_path, spoil, told):
    draft, verifier = texts_of(prompt_logprobs, "d"), texts_of(prompt_logprobs, "v")
    spoil(draft[1].rows[1])
    with pytest.raises(UserError) as caught:
        write_served(tmp_path / "t", pair_texts(draft, verifier), V, {})
    assert told in str(caught.value)
    assert not (tmp_path / "t").exists()


def test_a_token_of_the_text_outside_of_the_vocabulary(tmp_path):
    draft, verifier = texts_of(prompt_logprobs, "d"), texts_of(prompt_logprobs, "v")
    paired = pair_texts(draft, verifier)
    paired[2] = replace(paired[2], tokens=(V, *paired[2].tokens[1:]))
    with pytest.raises(UserError, match=rf"text 'text-00002', position 0: token id {V} is outside"):
        write_served(tmp_path / "t", paired, V, {})
    assert not (tmp_path / "t").exists()


def test_more_texts_of_tokens_than_the_vocabulary_holds(tmp_path):
    with pytest.raises(UserError, match=r"\d\d tokens are told, more than the vocabulary of 3"):
        written(tmp_path / "t", completions, vocabulary=3)


def test_the_forms_of_the_helper_are_all_there():
    assert set(FORMS) == {"prompt_logprobs", "completions", "sglang"}

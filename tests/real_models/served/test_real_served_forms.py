"""Every form of response gives the rows that the server had; what is none is told in one line."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
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
from real_models.served.reading.forms import find_form, read_texts
from real_models.served.reading.saved import read_saved
from real_models.served.reading.texts import Fault

REAL = Path(__file__).resolve().parents[2] / "data/served"
IDS = TEXTS["a"]
TOP = 4


def key_of(form, token):
    return WORDS[token] if form == "completions" else token


@pytest.mark.parametrize("top", [1, TOP, V - 1])
@pytest.mark.parametrize("form", FORMS)
def test_a_form_gives_the_likeliest_tokens_and_the_own_one(form, top):
    response = json.loads(json.dumps(FORMS[form]("m", IDS, top)))
    assert find_form(response) == form
    (text,) = read_texts(response)
    assert text.tokens == tuple(key_of(form, token) for token in IDS)
    assert (text.given, text.first, len(text.rows)) == (5, 1, 4)
    for own, row, (likely, logprobs) in zip(IDS[1:], text.rows, known("m", IDS, top)):
        row = row.narrowed(top)  # vLLM's rank tells where the own token is the next
        assert list(row.keys) == [key_of(form, token) for token, _ in likely]
        assert row.logprobs.tolist() == [value for _, value in likely]
        outside = own not in [token for token, _ in likely]
        assert row.token == key_of(form, own)
        assert row.outside == (logprobs[own] if outside else None)


def test_the_cases_hold_own_tokens_inside_and_outside_of_the_likeliest():
    inside = [own in dict(likely) for own, (likely, _) in zip(IDS[1:], known("m", IDS, TOP))]
    assert set(inside) == {True, False}


def test_a_whole_vocabulary_is_whole():
    (text,) = read_texts(prompt_logprobs("m", IDS, -1))
    assert all(sorted(row.keys) == list(range(V)) for row in text.rows)
    assert all(np.exp(row.logprobs).sum() == pytest.approx(1, abs=1e-6) for row in text.rows)


def test_without_ids_of_the_prompt_its_first_token_is_unknown():
    (text,) = read_texts(prompt_logprobs("m", IDS, TOP, told=False))
    assert text.tokens == (None, *IDS[1:])
    (told,) = read_texts(prompt_logprobs("m", IDS, TOP))
    assert [list(row.keys) for row in text.rows] == [list(row.keys) for row in told.rows]


def test_an_own_token_outside_is_found_where_keys_were_sorted():
    """Tools that sort the keys of JSON take the own token from its first place."""
    response = prompt_logprobs("m", IDS, TOP, told=False)
    entries = response["choices"][0]["prompt_logprobs"]
    entries[1:] = [dict(sorted(entry.items(), reverse=True)) for entry in entries[1:]]
    (text,) = read_texts(response)
    outside = [row.token for row in text.rows if row.outside is not None]
    assert outside
    assert [own for own, row in zip(IDS[1:], text.rows) if row.outside is not None] == outside


@pytest.mark.parametrize("form", [completions, sglang])
def test_what_was_generated_behind_the_text_is_told_apart(form):
    (text,) = read_texts(form("m", IDS, TOP, new=2))
    assert (text.given, len(text.tokens), len(text.rows)) == (5, 7, 6)


def test_ids_written_as_texts_are_ids():
    (text,) = read_texts(completions("m", IDS, TOP, as_ids=True))
    assert text.tokens == IDS
    assert all(row.keys.dtype.kind == "i" for row in text.rows)


@pytest.mark.parametrize("llama", [False, True])
def test_a_chat_is_what_was_generated(llama):
    (text,) = read_texts(chat("m", IDS, TOP, llama))
    ids = list(IDS)
    for token, row in zip(text.tokens, text.rows):
        best = int(rows("m", ids)[-1].argmax())
        assert token == (best if llama else WORDS[best])
        assert row.keys[0] == token
        ids.append(best)
    assert (text.given, text.first, len(text.rows)) == (0, 0, 4)


def test_tokens_of_a_chat_are_known_by_their_bytes():
    response = chat("m", IDS, TOP)
    content = response["choices"][0]["logprobs"]["content"]
    for entry in content[0]["top_logprobs"][:2]:
        entry["token"] = "\ufffd"
    content[0]["top_logprobs"][0]["bytes"], content[0]["top_logprobs"][1]["bytes"] = [240], [159]
    content[0] |= {"token": "\ufffd", "bytes": [240]}
    (text,) = read_texts(response)
    assert text.rows[0].keys[:2] == ["bytes:f0", "bytes:9f"]


def test_an_own_token_that_was_put_into_the_list_of_a_chat_is_none_of_the_likeliest():
    """vLLM lists the own token first and cuts at K: the last of the likeliest may be missing."""
    response = chat("m", IDS, TOP)
    entry = response["choices"][0]["logprobs"]["content"][1]
    likely = entry["top_logprobs"]
    own = {"token": " own", "logprob": -9.5, "bytes": list(b" own")}
    entry |= own | {"top_logprobs": [own, *likely[:-1]]}
    (text,) = read_texts(response)
    assert text.rows[1].keys == [one["token"] for one in likely[:-1]]
    assert (text.rows[1].token, text.rows[1].outside) == (" own", -9.5)
    last = likely[-1]
    entry |= last | {"top_logprobs": likely}  # in its place, it is one of them
    assert read_texts(response)[0].rows[1].keys == [one["token"] for one in likely]
    entry |= last | {"top_logprobs": [likely[1], likely[0], *likely[2:]]}
    assert len(read_texts(response)[0].rows[1].keys) == TOP
    entry |= own | {"top_logprobs": [own]}
    with pytest.raises(Fault, match="holds the text's own token ' own' alone") as caught:
        read_texts(response)
    assert caught.value.position == 1


def test_what_cannot_come_has_probability_zero():
    response = sglang("m", IDS, TOP)
    response["meta_info"]["input_top_logprobs"][1][-1][0] = -3.4028234663852886e38
    assert read_texts(response)[0].rows[0].logprobs[-1] == -np.inf
    response = prompt_logprobs("m", IDS, -1)
    least = min(response["choices"][0]["prompt_logprobs"][1].values(), key=lambda e: e["logprob"])
    least["logprob"] = -9999.0
    assert read_texts(response)[0].rows[0].logprobs[-1] == -np.inf


def test_several_choices_come_in_the_order_of_their_index():
    first, second = prompt_logprobs("m", IDS, 2), prompt_logprobs("m", TEXTS["b"], 2)
    second["choices"][0]["index"] = 1
    both = first | {"choices": second["choices"] + first["choices"]}
    assert [text.tokens for text in read_texts(both)] == [IDS, TEXTS["b"]]


# --- real responses of one server --------------------------------------------------------------


def test_the_real_echo_reads_alike_by_ids_and_by_texts():
    path = REAL / "completions_echo.json"
    (by_id,), (by_text,) = read_saved([path]), read_saved([path], "completions")
    assert by_id.tokens == (504, 2644, 2643)
    assert by_text.tokens == ("The", " cat", " sat", " on")
    assert (by_id.given, by_text.given) == (3, 3)
    for one, other in zip(by_id.rows, by_text.rows):
        assert [one.names[key] for key in one.keys.tolist()] == other.keys
        assert one.logprobs.tolist() == other.logprobs.tolist()
    assert (by_id.rows[0].token, by_id.rows[0].outside) == (2644, -13.98873519897461)
    assert by_text.rows[2].keys == [" on", " at"]
    assert by_text.rows[2].outside is None


def test_the_real_prompt_logprobs_read_without_ids_of_the_prompt():
    (text,) = read_saved([REAL / "prompt_logprobs.json"])
    assert text.tokens == (None, 2644, 2643)
    assert [row.keys.tolist() for row in text.rows] == [[29], [506]]
    assert [(row.token, row.outside) for row in text.rows] == [
        (2644, -13.98873519897461),
        (2643, -9.010259628295898),
    ]
    (generated,) = read_saved([REAL / "prompt_logprobs.json"], "completions")
    assert (generated.tokens, generated.given) == ((335,), 0)


def test_the_real_chat_lists_an_own_token_that_is_none_of_the_likeliest():
    (text,) = read_saved([REAL / "chat.json"])
    assert (text.tokens, text.given) == (("w", "elcome"), 0)
    assert [row.keys for row in text.rows] == [["Hello"], ["elcome", "ow"]]
    assert [row.outside for row in text.rows] == [-3.8578031063079834, None]


# --- what is no response -----------------------------------------------------------------------


def spoiled(response, *path, value):
    """The response with one value replaced; DELETE takes it away."""
    response = copy.deepcopy(response)
    *way, last = path
    place = response
    for step in way:
        place = place[step]
    if value is DELETE:
        del place[last]
    else:
        place[last] = value
    return response


DELETE = object()
PROMPT = ("choices", 0, "prompt_logprobs")
ECHO = ("choices", 0, "logprobs")
OWN = str(IDS[2])


@pytest.mark.parametrize(
    ("response", "path", "value", "told", "position"),
    [
        (prompt_logprobs, (*PROMPT, 0), {}, "null is missing: {}", 0),
        (prompt_logprobs, (*PROMPT, 0), DELETE, "it has 5 prompt_token_ids, 4 prompt_", None),
        (prompt_logprobs, (*PROMPT, 2), None, "null stands where a token is predicted", 2),
        (prompt_logprobs, (*PROMPT, 2, OWN, "logprob"), "x", "the log-probability of 4 is 'x'", 2),
        (prompt_logprobs, (*PROMPT, 2, OWN, "logprob"), 0.5, "is 0.5, above 0", 2),
        (prompt_logprobs, (*PROMPT, 2, OWN, "logprob"), float("nan"), "is nan", 2),
        (prompt_logprobs, (*PROMPT, 2), {}, "no token is listed", 2),
        (prompt_logprobs, (*PROMPT, 2), [1], "prompt_logprobs is [1], not a JSON object", 2),
        (prompt_logprobs, (*PROMPT, 2, "034"), {"logprob": -1},
         "'034' is no token id: 34 is meant, or nothing", 2),
        (prompt_logprobs, (*PROMPT, 2, "no id"), {"logprob": -1}, "'no id' is no token id", 2),
        (prompt_logprobs, (*PROMPT, 2, "77"), {"logprob": -9}, "the token 77 has no rank", 2),
        (prompt_logprobs, ("choices", 0, "prompt_token_ids", 2), 77, "own token 77 is not", 2),
        (prompt_logprobs, ("choices",), [], "neither choices nor meta_info", None),
        (prompt_logprobs, PROMPT, None, "no log-probabilities; they have to be asked for", None),
        (prompt_logprobs, ("error",), {"message": "too long"}, "an error: too long", None),
        (completions, (*ECHO, "token_logprobs", 0), -1.0, "null is missing: -1.0", 0),
        (completions, (*ECHO, "top_logprobs", 0), {}, "null is missing: {}", 0),
        (completions, (*ECHO, "top_logprobs", 3), DELETE, "5 token_logprobs, 4 top_logprobs", None),
        (completions, (*ECHO, "token_logprobs", 3), None, "null stands where", 3),
        (completions, (*ECHO, "token_logprobs", 3), -77.0, "has the log-probability -77.0, and", 3),
        (completions, (*ECHO, "tokens", 3), "\ufffd", "'\ufffd' can stand for several tokens", 3),
        (completions, (*ECHO, "tokens", 3), "", "'' can stand for several tokens", 3),
        (completions, (*ECHO, "tokens", 3), 7, "a token is 7, which is no text", 3),
        (completions, (*ECHO, "tokens"), None, "tokens is None, not a list", None),
        (sglang, ("meta_info", "input_token_logprobs", 0, 0), -1.0, "null is missing: -1.0", 0),
        (sglang, ("meta_info", "input_top_logprobs", 0), [], "null is missing: []", 0),
        (sglang, ("meta_info", "input_top_logprobs", 3), None, "null stands where", 3),
        (sglang, ("meta_info", "input_top_logprobs", 3), [], "no token is listed", 3),
        (sglang, ("meta_info", "input_top_logprobs", 3, 0, 1), 1.5, "1.5 is no token id", 3),
        (sglang, ("meta_info", "input_top_logprobs", 3, 0), [-1.0], "not [logprob, id, text]", 3),
        (sglang, ("meta_info", "input_top_logprobs", 4), DELETE, "the response is cut", None),
        (sglang, ("meta_info",), 3, "meta_info is 3, not a JSON object", None),
        (chat, (*ECHO, "content", 1, "top_logprobs"), None, "top_logprobs is None, not a list", 1),
        (chat, (*ECHO, "content", 1, "bytes"), ["x"], "the bytes of a token are", 1),
        (chat, (*ECHO, "content", 1), "x", "a token is 'x', not a JSON object", 1),
    ],
)  # fmt: skip
def test_a_fault_names_position_and_value(response, path, value, told, position):
    with pytest.raises(Fault) as caught:
        read_texts(spoiled(response("m", IDS, TOP), *path, value=value))
    assert told in str(caught.value)
    assert caught.value.position == position


def test_two_tokens_of_one_text_are_not_taken_for_one():
    """Of two tokens that read alike an object of texts keeps one, and the row is one short."""
    response = completions("m", IDS, TOP)
    tops = response["choices"][0]["logprobs"]["top_logprobs"]
    place = next(place for place, top in enumerate(tops) if top and len(top) == TOP)
    del tops[place][min(tops[place], key=tops[place].get)]
    with pytest.raises(Fault, match="3 tokens are listed where other positions list 4") as caught:
        read_texts(response)
    assert caught.value.position == place


@pytest.mark.parametrize("form", ["completions", "prompt_logprobs"])
def test_a_key_that_is_there_twice_is_noticed(form, tmp_path):
    response = FORMS[form]("m", IDS, TOP)
    choice = response["choices"][0]
    entries = choice.get("prompt_logprobs") or choice["logprobs"]["top_logprobs"]
    name, value = next(iter(entries[1].items()))
    text = json.dumps(response)
    once = f'"{name}": {json.dumps(value)}'
    path = tmp_path / "r.json"
    path.write_text(text.replace(once, f"{once}, {once}", 1), encoding="utf-8")
    with pytest.raises(UserError, match=r"r\.json: text 0, position 1: the token .* listed twice"):
        read_saved([path])


def test_saved_files_are_read_in_their_order(tmp_path):
    responses = [prompt_logprobs("m", ids, 2) for ids in TEXTS.values()]
    (tmp_path / "list.json").write_text(json.dumps(responses))
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(one) + "\n\n" for one in responses))
    (tmp_path / "folder").mkdir()
    for number, one in enumerate(responses):
        kept = {"request": {}, "response": one}
        (tmp_path / f"folder/{number}.json").write_text(json.dumps(kept))
    for name in ("list.json", "lines.jsonl", "folder"):
        texts = read_saved([tmp_path / name])
        assert [text.tokens for text in texts] == list(TEXTS.values())


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"choices": [{"prompt_logprobs": [null, {"1"', "not JSON, or cut"),
        ("[]", "no response is there"),
        ("3", "a response must be a JSON object, got 3"),
        ("[" * 100_000, "nested too deeply"),
        (b"\xff", "not JSON, or cut"),
    ],
)
def test_files_that_hold_no_response(tmp_path, content, told):
    path = tmp_path / "r.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r"r\.json") as caught:
        read_saved([path])
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_saved([tmp_path / "absent.json"])

"""Two servers on this machine are asked: patiently, never too much at once, and never twice."""

import json
import signal
import threading
import time

import pytest
from served_answers import TEXTS, Engine, ids_of, serving, text_of

from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.prompts import Prompt
from real_models.served.asking import Asking, ask_servers
from real_models.served.client import Manners, Server
from real_models.served.reading.saved import read_saved

PROMPTS = [Prompt(text_of(ids), name, chat=False) for name, ids in TEXTS.items()]
QUICK = Manners(concurrency=2, timeout=5.0, retries=2, pause=0.01)


@pytest.fixture
def engines(monkeypatch):
    """The engines of draft and verifier with their addresses."""
    monkeypatch.setenv("NO_PROXY", "*")
    draft, verifier = Engine("d"), Engine("v")
    with serving(draft) as one, serving(verifier) as two:
        yield {"draft": (draft, one), "verifier": (verifier, two)}


def ask(engines, folder, manners=QUICK, api="vllm", prompts=PROMPTS, **more):
    models = {role: "" if api == "sglang" else role[0] for role in engines}
    asking = Asking({role: url for role, (_, url) in engines.items()}, models, api, **more)
    return ask_servers(prompts, folder, asking, manners)


@pytest.mark.parametrize("api", ["vllm", "echo", "sglang"])
def test_both_servers_are_asked_about_every_text(engines, tmp_path, api):
    asked = ask(engines, tmp_path, api=api, top=3)
    assert asked.written is None
    for role, files in (("draft", asked.draft), ("verifier", asked.verifier)):
        texts = read_saved(files)
        assert len(texts) == 3
        for text, ids in zip(texts, TEXTS.values()):
            assert (text.given, text.rows[0].narrowed(3).logprobs.shape) == (len(ids), (3,))
        requests = [body for path, body in engines[role][0].requests]
        told = [body.get("prompt", body.get("text")) for body in requests]
        assert sorted(told) == sorted(prompt.prompt for prompt in PROMPTS)


def test_answers_are_kept_to_the_byte(engines, tmp_path):
    asked = ask(engines, tmp_path, top=3)
    answer = json.dumps(engines["draft"][0].answer("/completions", json.loads(
        asked.draft[0].read_bytes())["request"]))  # fmt: skip
    assert answer.encode() in asked.draft[0].read_bytes()


def test_what_was_answered_is_not_asked_again(engines, tmp_path):
    ask(engines, tmp_path, top=3)
    (tmp_path / "draft-00001.json").unlink()
    (tmp_path / "verifier-00002.json").write_text('{"request": {}, "resp')
    for engine, _ in engines.values():
        engine.requests.clear()
    ask(engines, tmp_path, top=3)
    assert [body["prompt"] for _, body in engines["draft"][0].requests] == [PROMPTS[1].prompt]
    assert [body["prompt"] for _, body in engines["verifier"][0].requests] == [PROMPTS[2].prompt]
    ask(engines, tmp_path, top=4)
    assert len(engines["draft"][0].requests) == 4


def test_a_server_that_is_busy_is_asked_again(engines, tmp_path):
    draft = engines["draft"][0]
    draft.faults = {0: (503, "starting"), 1: (429, "busy", ("Retry-After", "0")), 2: (500, "x")}
    asked = ask(engines, tmp_path, Manners(1, 5.0, 3, 0.01), top=3)
    assert len(read_saved(asked.draft)) == 3
    assert len(draft.requests) == 6


@pytest.mark.parametrize(
    ("fault", "told", "tries"),
    [
        ((400, '{"error": "max_logprobs is 5"}'), 'status 400: {"error": "max_logprobs is 5"}', 1),
        ((404, "no such model " + "x" * 9000), "status 404: no such model xxx", 1),
        ((401, ""), "status 401: Unauthorized", 1),
        ((503, "starting up"), "status 503: starting up; tried 3 times", 3),
        ((200, '{"choices": [{"text": "hi"}]}'), "no log-probabilities; they have to be asked", 1),
        ((200, '{"choices": [{"prompt_logprobs": [nu'), "not JSON, or cut", 1),
        ((200, "<html>"), "not JSON, or cut", 1),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_a_server_says_is_told_shortly(engines, tmp_path, fault, told, tries):
    draft, url = engines["draft"]
    draft.faults = dict.fromkeys(range(9), fault)
    with pytest.raises(UserError) as caught:
        ask(engines, tmp_path, prompts=PROMPTS[:1])
    assert str(caught.value).startswith(f"the draft at {url}, text 'a'")
    assert told in str(caught.value)
    assert len(str(caught.value)) < 400
    assert len(draft.requests) == tries
    assert not list(tmp_path.glob("draft*"))


def test_a_failure_keeps_what_was_answered_and_asks_no_more(engines, tmp_path):
    prompts = [Prompt(text_of([n % 10, 1, 2]), f"p{n}", chat=False) for n in range(20)]
    engines["draft"][0].faults = {4: (400, "no")}
    engines["draft"][0].pause = 0.01
    with pytest.raises(UserError, match="status 400"):
        ask(engines, tmp_path, prompts=prompts)
    assert 4 <= len(list(tmp_path.glob("draft-*.json"))) <= 8
    assert not list(tmp_path.glob(".*"))


def test_a_server_that_is_not_there(engines, tmp_path):
    engines["draft"] = (engines["draft"][0], "http://127.0.0.1:9")
    with pytest.raises(UserError) as caught:
        ask(engines, tmp_path, prompts=PROMPTS[:1])
    assert "the draft at http://127.0.0.1:9, text 'a': cannot be reached" in str(caught.value)
    assert str(caught.value).endswith("; tried 3 times")


def test_an_answer_that_does_not_come(engines, tmp_path):
    engines["verifier"][0].pause = 0.5
    with pytest.raises(UserError, match=r"no answer within 0\.1 s; tried 2 times"):
        ask(engines, tmp_path, Manners(1, 0.1, 1, 0.01), prompts=PROMPTS[:1])


@pytest.mark.parametrize("concurrency", [1, 3])
def test_so_many_requests_at_a_time_and_no_more(engines, tmp_path, concurrency):
    prompts = [Prompt(text_of([n % 10, 1, 2]), f"p{n}", chat=False) for n in range(12)]
    for engine, _ in engines.values():
        engine.pause = 0.02
    ask(engines, tmp_path, Manners(concurrency, 5.0, 0, 0.01), prompts=prompts)
    assert {engine.most for engine, _ in engines.values()} == {concurrency}


def test_the_model_is_the_first_that_is_served(engines, tmp_path):
    urls = {role: url for role, (_, url) in engines.items()}
    ask_servers(PROMPTS[:1], tmp_path, Asking(urls, {}), QUICK)
    assert [body and body["model"] for _, body in engines["draft"][0].requests] == [None, "d"]
    engines["draft"][0].requests.clear()
    engines["draft"][0].faults = {0: (200, '{"data": []}')}
    with pytest.raises(UserError, match="does not say what it serves; name it with --draft-model"):
        ask_servers(PROMPTS[:1], tmp_path / "x", Asking(urls, {}), QUICK)


def test_the_key_goes_to_the_server_and_into_no_text(engines, tmp_path):
    manners = Manners(key="secret", retries=0)
    assert "secret" not in repr(manners)
    server = Server("draft", "http://127.0.0.1:9/v1/", manners)
    assert server._client().headers["Authorization"] == "Bearer secret"
    assert server.url == "http://127.0.0.1:9/v1"


@pytest.mark.parametrize("waiting", ["for an answer", "to ask again"])
def test_an_interruption_does_not_wait(engines, tmp_path, waiting):
    """Neither for an answer that takes its time, nor for the pause before the next try."""
    verifier, url = engines["verifier"]
    verifier.pause = 1.5 if waiting == "for an answer" else 0.0
    gone = "http://127.0.0.1:9"
    engines["verifier"] = (verifier, url if waiting == "for an answer" else gone)
    started = time.monotonic()
    me = threading.main_thread().ident
    threading.Timer(0.3, signal.pthread_kill, [me, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        ask(engines, tmp_path, Manners(2, 60.0, 3, pause=30.0))
    assert time.monotonic() - started < 1.4


# --- texts that the verifier writes ---------------------------------------------------------------


@pytest.mark.parametrize("api", ["vllm", "sglang"])
def test_the_verifier_writes_and_both_are_asked_about_that(engines, tmp_path, api):
    sampling = SamplingSettings(0.6, top_p=0.95)
    asked = ask(engines, tmp_path, api=api, top=3, new_tokens=2, sampling=sampling, seed=7)
    written = engines["verifier"][0].requests[:3]
    made = [body.get("sampling_params", body) for _, body in written]
    assert {body["temperature"] for body in made} == {0.6}
    assert {body["top_p"] for body in made} == {0.95}
    assert sorted(body.get("seed", body.get("sampling_seed")) for body in made) == [7, 8, 9]
    assert "top_k" not in made[0]
    lengths = [len(ids) for ids in TEXTS.values()]
    assert asked.written == [(n, n + 2) for n in lengths]
    for files in (asked.draft, asked.verifier):
        assert [text.given for text in read_saved(files)] == [n + 2 for n in lengths]
    for engine, _ in engines.values():
        ids = [body.get("prompt", body.get("input_ids")) for _, body in engine.requests[-3:]]
        assert sorted(text[:-2] for text in ids) == sorted(map(list, TEXTS.values()))


def test_chats_are_written_through_the_template_of_the_server(engines, tmp_path):
    prompts = [Prompt(text_of(TEXTS["a"]), "a", chat=True)]
    ask(engines, tmp_path, prompts=prompts, new_tokens=2)
    path, body = engines["verifier"][0].requests[0]
    assert path == "/chat/completions"
    assert body["messages"] == [{"role": "user", "content": prompts[0].prompt}]


def test_what_an_api_cannot_do_is_told_before_anything_is_asked(engines, tmp_path):
    with pytest.raises(UserError, match="--new-tokens: the API 'echo' does not tell the ids"):
        ask(engines, tmp_path, api="echo", new_tokens=2)
    chats = [Prompt("x", "c", chat=True)]
    for more in ({}, {"api": "sglang", "new_tokens": 2}):
        with pytest.raises(
            UserError, match="prompt 'c' is a chat, whose template the server knows"
        ):
            ask(engines, tmp_path, prompts=chats, **more)
    assert not any(engine.requests for engine, _ in engines.values())


def test_a_server_that_writes_nothing(engines, tmp_path):
    empty = {"choices": [{"prompt_token_ids": [1, 2], "token_ids": []}]}
    engines["verifier"][0].faults = {0: (200, json.dumps(empty))}
    with pytest.raises(UserError, match="text 'a': the server wrote nothing"):
        ask(engines, tmp_path, prompts=PROMPTS[:1], new_tokens=2)


def test_the_words_of_the_helper_are_its_own():
    assert [ids_of(prompt.prompt) for prompt in PROMPTS] == [list(ids) for ids in TEXTS.values()]

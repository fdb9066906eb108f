"""Answers of servers in every form, written from rows of logits; a small server that gives them."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from scipy.special import log_softmax

WORDS = [f" w{chr(ord('a') + number)}" for number in range(24)]
V = len(WORDS)
SALT = 4  # with it the own tokens of text a are among the four likeliest here, and not there
TEXTS = {"a": (3, 1, 4, 1, 5), "b": (2, 7, 1, 8), "c": (9, 0, 2)}


def rows(model, ids):
    """Logits [len(ids), V] behind each prefix of a text, decided by model and prefix; float32."""
    found = []
    for end in range(1, len(ids) + 1):
        seed = np.random.SeedSequence([SALT, len(model), *model.encode(), *ids[:end]])
        found.append(2 * np.random.default_rng(seed).normal(size=V))
    return np.array(found, dtype=np.float32)


def known(model, ids, top):
    """Behind each prefix: the `top` likeliest tokens with their log-probabilities, and all of them.

    The log-probabilities are of single precision, as those of servers.
    """
    for logits in rows(model, ids):
        logprobs = log_softmax(logits.astype(float)).astype(np.float32).astype(float)
        order = np.argsort(-logprobs, kind="stable")[: V if top == -1 else top]
        yield [(int(token), float(logprobs[token])) for token in order], logprobs


def prompt_logprobs(model, ids, top, told=True):
    """vLLM's form; the text's own token comes first, with the rank that it has."""
    entries = [None]
    for own, (likely, logprobs) in zip(ids[1:], known(model, ids, top)):
        rank = int((logprobs >= logprobs[own]).sum())
        ranked = [(own, float(logprobs[own]), rank)]
        ranked += [(token, value, place) for place, (token, value) in enumerate(likely, start=1)]
        entries.append({
            str(token): {"logprob": value, "rank": place, "decoded_token": WORDS[token]}
            for token, value, place in ranked
        })  # fmt: skip
    ids = {"prompt_token_ids": list(ids) if told else None}
    return {"model": model, "choices": [{"index": 0, "prompt_logprobs": entries, **ids}]}


def completions(model, ids, top, new=0, as_ids=False):
    """Legacy completions: the text echoed, and the first `new` likeliest tokens behind it."""
    ids = list(ids)
    for _ in range(new):
        ids.append(int(rows(model, ids)[-1].argmax()))
    name = (lambda token: f"token_id:{token}") if as_ids else WORDS.__getitem__
    values, tops = [None], [None]
    for own, (likely, logprobs) in zip(ids[1:], known(model, ids, top)):
        values.append(float(logprobs[own]))
        tops.append({name(token): value for token, value in [(own, values[-1]), *likely]})
    told = {"tokens": [name(token) for token in ids], "token_logprobs": values,
            "top_logprobs": tops}  # fmt: skip
    usage = {"prompt_tokens": len(ids) - new, "completion_tokens": new}
    return {"model": model, "choices": [{"index": 0, "logprobs": told}], "usage": usage}


def chat(model, ids, top, llama=False):
    """The likeliest continuation of a text that is not told, with ids as llama.cpp gives them."""
    ids, start, content = list(ids), len(ids), []
    for _ in range(4):
        ids.append(int(rows(model, ids)[-1].argmax()))
    for own, (likely, logprobs) in list(zip(ids[1:], known(model, ids, top)))[start - 1 :]:
        entry = _chat_token(own, logprobs[own], llama)
        tops = [_chat_token(token, value, llama) for token, value in likely]
        content.append(entry | {"top_logprobs": tops})
    choice = {"index": 0, "logprobs": {"content": content}, "finish_reason": "length"}
    return {"model": model, "object": "chat.completion", "choices": [choice]}


def _chat_token(token, value, llama):
    told = {"token": WORDS[token], "logprob": float(value), "bytes": list(WORDS[token].encode())}
    return {"id": token, **told} if llama else told


def sglang(model, ids, top, new=0):
    ids, given = list(ids), len(ids)
    for _ in range(new):
        ids.append(int(rows(model, ids)[-1].argmax()))
    standing, tops = [[None, ids[0], WORDS[ids[0]]]], [None]
    for own, (likely, logprobs) in zip(ids[1:], known(model, ids, top)):
        standing.append([float(logprobs[own]), own, WORDS[own]])
        tops.append([[value, token, WORDS[token]] for token, value in likely])
    return {"text": "", "meta_info": {
        "prompt_tokens": given,
        "input_token_logprobs": standing[:given], "input_top_logprobs": tops[:given],
        "output_token_logprobs": standing[given:], "output_top_logprobs": tops[given:],
    }}  # fmt: skip


FORMS = {
    "prompt_logprobs": prompt_logprobs,
    "completions": completions,
    "sglang": sglang,
}


def text_of(ids):
    return "".join(WORDS[token] for token in ids)


def ids_of(text):
    return [WORDS.index(f" {word}") for word in text.split()]


class Engine:
    """What a small server does with a request; `faults` maps the number of a request to a reply."""

    def __init__(self, model, faults=None, pause=0.0):
        self.model, self.faults, self.pause = model, dict(faults or {}), pause
        self.requests, self.most, self._now = [], 0, 0
        self._lock = threading.Lock()

    def reply(self, path, body):
        with self._lock:
            number = len(self.requests)
            self.requests.append((path, body))
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            threading.Event().wait(self.pause)
            if number in self.faults:
                return self.faults[number]
            return 200, json.dumps(self.answer(path, body))
        finally:
            with self._lock:
                self._now -= 1

    def answer(self, path, body):
        if path.endswith("/models"):
            return {"data": [{"id": self.model}]}
        if path.endswith("/generate"):
            ids = body.get("input_ids") or ids_of(body["text"])
            new = body["sampling_params"]["max_new_tokens"]
            return sglang(self.model, ids, body.get("top_logprobs_num", 1), new)
        prompt = body.get("prompt") or body["messages"][0]["content"]
        ids = ids_of(prompt) if isinstance(prompt, str) else prompt
        if "prompt_logprobs" in body:
            return prompt_logprobs(self.model, ids, body["prompt_logprobs"])
        if body.get("echo"):
            return completions(self.model, ids, body["logprobs"], body["max_tokens"])
        written = completions(self.model, ids, 1, body["max_tokens"], as_ids=True)["choices"][0]
        tokens = [int(name.removeprefix("token_id:")) for name in written["logprobs"]["tokens"]]
        choice = {
            "index": 0,
            "token_ids": tokens[len(ids) :],
            "prompt_token_ids": tokens[: len(ids)],
        }
        return {"model": self.model, "choices": [choice]}


@contextmanager
def serving(engine):
    """The address of a server on this machine that answers as the engine does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._reply(None)

        def do_POST(self):
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, body):
            status, text, *headers = engine.reply(self.path, body)
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            """Nothing is said of requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

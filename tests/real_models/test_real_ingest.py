"""The command that makes traces: of arrays, of saved answers, of two servers."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from served_answers import TEXTS, Engine, V, known, prompt_logprobs, serving, text_of

from real_models import calibrate, ingest, measure
from real_models.prompts import Prompt
from real_models.traces import open_trace
from real_models.traces.arrays import write_trace
from real_models.traces.writer import TraceWriter
from theory import RULES

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / "tests/data/served"
TOP = 5


@pytest.fixture
def saved(tmp_path):
    """The saved answers of two servers about the same texts."""
    files = {}
    for role in ("draft", "verifier"):
        answers = [prompt_logprobs(role[0], ids, TOP) for ids in TEXTS.values()]
        files[role] = tmp_path / f"{role}.json"
        files[role].write_text(json.dumps(answers))
    return ["responses", "--draft", files["draft"], "--verifier", files["verifier"]]


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(
        json.dumps({"prompt": text_of(ids), "id": name, "domain": f"of {name}", "chat": False})
        + "\n" for name, ids in TEXTS.items()
    ))  # fmt: skip
    return path


def run(*arguments):
    return ingest.main([str(argument) for argument in arguments])


def mistake(capsys, *arguments):
    """The one line of a command that ends with status 2."""
    assert run(*arguments) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if " error: " in line]
    return line.partition(" error: ")[2]


def test_arrays_become_a_trace(tmp_path, capsys):
    rows = np.random.default_rng(0).normal(size=(2, 6, V))
    np.savez(tmp_path / "r.npz", draft=rows[0], verifier=rows[1], prompts=np.arange(6) // 2)
    assert run("arrays", tmp_path / "r.npz", "--out", tmp_path / "t", "--name", "mine") == 0
    assert capsys.readouterr().out == (
        f"{tmp_path / 't'}: 6 positions of 3 prompts, 24 tokens\n"
        "  whole rows: every setting is exact\n"
    )
    trace = open_trace(tmp_path / "t")
    assert (trace.header.pair, trace.positions) == ("mine", 6)
    assert json.loads((tmp_path / "t/manifest.json").read_text())["command"] == "real_models.ingest"
    assert run("arrays", tmp_path / "r.npz", "--out", tmp_path / "t", "--name", "mine") == 0


def test_saved_answers_become_a_trace(saved, texts, tmp_path, capsys):
    more = ["--vocabulary", V, "--texts", texts, "--out", tmp_path / "t"]
    assert run(*saved, *more, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["trace"] == str(tmp_path / "t")
    assert (told["texts"], told["positions"], told["vocabulary"], told["listed"]) == (3, 9, V, TOP)
    trace = open_trace(tmp_path / "t")
    assert [chunk.entry.prompt_id for chunk in trace.chunks] == list(TEXTS)
    assert [chunk.entry.domain for chunk in trace.chunks] == ["of a", "of b", "of c"]
    rests = np.concatenate([chunk.listed("draft").rest for chunk in trace.chunks])
    assert told["rest"]["draft"]["mean"] == pytest.approx(rests.mean())
    assert told["rest"]["draft"]["largest"] == pytest.approx(rests.max())
    assert run(*saved, *more) == 0
    out = capsys.readouterr().out
    assert "9 positions of 3 texts, 24 tokens" in out
    assert "the draft lists the 5 likeliest tokens; the others have" in out
    assert "exact with top-k 5 or less, as in --settings 'T=1 top-k 5'" in out


def test_lists_that_were_filtered_first_are_refused(tmp_path, capsys):
    """Renormalised lists leave nothing to the other tokens, which no model does everywhere."""
    for role in ("draft", "verifier"):
        answers = [prompt_logprobs(role[0], ids, TOP) for ids in TEXTS.values()]
        for answer in answers if role == "verifier" else []:
            for row in answer["choices"][0]["prompt_logprobs"][1:]:
                mass = sum(np.exp(entry["logprob"]) for entry in row.values())
                for entry in row.values():
                    entry["logprob"] -= float(np.log(mass))
        (tmp_path / f"{role}.json").write_text(json.dumps(answers))
    files = ["--draft", tmp_path / "draft.json", "--verifier", tmp_path / "verifier.json"]
    asked = ["responses", *files, "--vocabulary", V, "--out", tmp_path / "t"]
    line = mistake(capsys, *asked)
    assert line.startswith("the verifier's lists sum to 1 within ")
    assert "at all 9 positions: these are probabilities behind a filter" in line
    assert not (tmp_path / "t/header.json").exists()


def test_two_servers_become_the_same_trace(saved, texts, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    more = ["--vocabulary", V, "--texts", texts]
    assert run(*saved, *more, "--out", tmp_path / "saved") == 0
    with serving(Engine("d")) as draft, serving(Engine("v")) as verifier:
        asked = ["servers", "--draft", draft, "--verifier", f"{verifier}/v1/", "--top", TOP]
        assert run(*asked, *more, "--out", tmp_path / "asked") == 0
    one, other = open_trace(tmp_path / "saved"), open_trace(tmp_path / "asked")
    assert one.header == other.header
    assert [c.entry.files for c in one.chunks] == [c.entry.files for c in other.chunks]
    assert len(list((tmp_path / "asked/answers").iterdir())) == 6


def test_what_the_verifier_writes_is_what_counts(texts, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    with serving(Engine("d")) as draft, serving(Engine("v")) as verifier:
        status = run(
            "servers", "--draft", draft, "--verifier", verifier, "--top", TOP, "--texts", texts,
            "--vocabulary", V, "--new-tokens", 3, "--temperature", 0.6, "--out", tmp_path / "t",
        )  # fmt: skip
    assert status == 0
    trace = open_trace(tmp_path / "t")
    assert trace.header.contexts == "verifier"
    assert trace.header.sampling == {"temperature": 0.6, "top_k": None, "top_p": None}
    assert [chunk.positions for chunk in trace.chunks] == [3, 3, 3]
    for chunk, ids in zip(trace.chunks, TEXTS.values()):
        assert tuple(chunk.context[: len(ids)]) == ids
        likely = [dict(found) for found, _ in known("d", chunk.context[:-1].tolist(), TOP)]
        for row, expected in enumerate(likely[len(ids) - 1 :]):
            listed = chunk.listed("draft")
            assert listed.tokens[row, :-1].tolist() == list(expected)


def test_an_interrupted_run_goes_on(texts, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NO_PROXY", "*")
    draft = Engine("d", {2: (400, "out of memory")})
    with serving(draft) as one, serving(Engine("v")) as two:
        asked = ["servers", "--draft", one, "--verifier", two, "--texts", texts, "--top", TOP,
                 "--vocabulary", V, "--out", tmp_path / "t", "--draft-model", "d"]  # fmt: skip
        line = mistake(capsys, *asked, "--concurrency", 1)
        assert line.startswith(f"the draft at {one}/v1, text 'c': status 400: out of memory")
        assert not (tmp_path / "t/header.json").exists()
        assert not (tmp_path / "t/manifest.json").exists()
        draft.requests.clear()
        draft.faults.clear()
        assert run(*asked) == 0
        assert len(draft.requests) == 1
    assert open_trace(tmp_path / "t").complete


def test_the_real_answers_become_a_trace(tmp_path):
    path = REAL / "completions_echo.json"
    more = ["--vocabulary", 49152, "--out", tmp_path / "t"]
    assert run("responses", "--draft", path, "--verifier", path, *more) == 0
    trace = open_trace(tmp_path / "t")
    assert trace.header.pair == "verifier for verifier"
    assert trace.chunks[0].context.tolist() == [504, 2644, 2643]
    listed = trace.chunks[0].listed("draft")
    assert listed.tokens.tolist() == [[29, 28, 2644], [506, 314, 2643]]
    assert listed.rest[0] == pytest.approx(
        1 - np.exp([-13.98873519897461, -0.8654828071594238, -2.65324068069458]).sum()
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["arrays", "--out", "t"], "no file holds the rows of the draft"),
        (["arrays", "r.npz", "--out", "t", "--api", "vllm"], "--api does not go with 'arrays'"),
        (["arrays", "--draft", "a.npy", "b.npy", "--out", "t"], "--draft: one file is needed"),
        (["responses", "--out", "t"], "responses needs --draft"),
        (["responses", "r.json", "--out", "t"], "responses takes no files beside its options, got"),
        (["responses", "--draft", "a", "--verifier", "b", "--out", "t"], "needs --vocabulary"),
        (["responses", "--draft", "a", "--verifier", "b", "--vocabulary", "-1", "--out", "t"],
         "--vocabulary must be at least 1, got -1"),
        (["responses", "--draft", "a", "--verifier", "b", "--vocabulary", 10**9, "--out", "t"],
         "--vocabulary must be at most 16,777,216, got 1,000,000,000"),
        (["responses", "--draft", "a", "--verifier", "b", "--vocabulary", "9", "--out", "t"],
         "a cannot be read: No such file or directory"),
        (["responses", "--draft", "a", "--verifier", "b", "--vocabulary", "9", "--seed", "1",
          "--out", "t"], "--seed does not go with 'responses'"),
    ],
)  # fmt: skip
def test_mistakes_cost_one_line(tmp_path, monkeypatch, capsys, arguments, told):
    monkeypatch.chdir(tmp_path)
    assert told in mistake(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"--draft": "localhost:8000"}, "--draft: one address like http://localhost:8000/v1 is"),
        ({"--draft": "ftp://x"}, "--draft: one address like"),
        ({"--texts": None}, "servers needs --texts"),
        ({"--texts": "absent.jsonl"}, "prompt file absent.jsonl cannot be read"),
        ({"--top": "0"}, "--top must be at least 1, or -1 for all tokens, got 0"),
        ({"--top-p": "2"}, "--top-p must lie in (0, 1], got 2.0"),
        ({"--timeout": "0"}, "--timeout must lie in (0, 1e+06], got 0"),
        ({"--concurrency": "0"}, "--concurrency must be at least 1, got 0"),
        ({"--retries": "-1"}, "--retries must be at least 0, got -1"),
        ({"--key-variable": "NO_SUCH_KEY"}, "--key-variable: the environment has no NO_SUCH_KEY"),
        ({"--kind": "logits"}, "--kind does not go with 'servers'"),
    ],
)
def test_mistakes_with_servers_cost_one_line(texts, tmp_path, monkeypatch, capsys, changes, told):
    monkeypatch.chdir(tmp_path)
    given = {"--draft": "http://127.0.0.1:9", "--verifier": "http://127.0.0.1:9",
             "--texts": str(texts), "--vocabulary": str(V), "--out": "t"} | changes  # fmt: skip
    arguments = [word for option, value in given.items() if value for word in (option, value)]
    assert told in mistake(capsys, "servers", *arguments)
    assert not Path("t").exists()


def test_a_row_that_is_no_distribution_is_named(tmp_path, capsys):
    p = np.full((4, V), 1 / V)
    p[2] *= 1.01
    np.savez(tmp_path / "r.npz", draft=p, verifier=p)
    more = ["--kind", "probabilities", "--out", tmp_path / "t"]
    line = mistake(capsys, "arrays", tmp_path / "r.npz", *more)
    assert line == "draft row 2 sums to 1.01, not to 1 within 1e-07; nothing is renormalised"
    assert not (tmp_path / "t/header.json").exists()


def test_another_trace_in_the_folder_is_not_mixed(saved, tmp_path, capsys):
    assert run(*saved, "--vocabulary", V, "--out", tmp_path / "t") == 0
    line = mistake(capsys, *saved, "--vocabulary", V + 1, "--out", tmp_path / "t")
    assert line.startswith(f"{tmp_path / 't'} holds another trace: ")
    assert open_trace(tmp_path / "t").complete
    assert (tmp_path / "t/manifest.json").exists()


def test_the_help_shows_each_source():
    done = subprocess.run(
        [sys.executable, "-m", "real_models.ingest", "--help"],
        capture_output=True, text=True, encoding="utf-8", check=True, cwd=ROOT,
    )  # fmt: skip
    for source in ("arrays rows.npz", "responses --draft draft.json", "servers --draft http"):
        assert f"python -m real_models.ingest {source}" in done.stdout


# --- two commands from answers to every rule ------------------------------------------------------


def answer_of(logits, context, first, top):
    """vLLM's answer about a text whose last positions have these logits, in double precision."""
    logprobs = logits.double().log_softmax(-1)
    entries = [None] * (first + 1)
    for row, token in zip(logprobs, context[first + 1 :]):
        likely = row.topk(top)
        own = [(int(token), float(row[token]), int((row >= row[token]).sum()))]
        listed = zip(likely.indices.tolist(), likely.values.tolist(), range(1, top + 1))
        entries.append({str(key): {"logprob": value, "rank": place, "decoded_token": None}
                        for key, value, place in [*own, *listed]})  # fmt: skip
    ids = [int(token) for token in context]
    return {"choices": [{"prompt_logprobs": entries[first:], "prompt_token_ids": ids[first:]}]}


@pytest.mark.model
def test_from_the_answers_of_two_servers_to_every_rule_takes_two_commands(tmp_path, capsys):
    """Rows of SmolLM2 at top-k 20, from the 20 likeliest tokens: 1e−9 from the whole rows."""
    from real_models.laws.distributions import SamplingSettings
    from real_models.models.pair import load_pair
    from real_models.record import record, trace_header

    pair, plain = load_pair("smollm2-skip3"), SamplingSettings()
    begun = ["Rivers shape the land in two ways.", "def add(a, b):", "The opposite of hot is"]
    prompts = [Prompt(text, f"p{n}", chat=False) for n, text in enumerate(begun)]
    facts = {"contexts": "verifier", "settings": plain, "seed": 0, "positions": 8}
    writer = TraceWriter(tmp_path / "whole", trace_header(pair, "", len(prompts), **facts))
    record(pair, prompts, writer, settings=plain)
    whole = open_trace(tmp_path / "whole")
    for role in ("draft", "verifier"):
        answers = [answer_of(c.logits(role), c.context, c.entry.first, 20) for c in whole.chunks]
        (tmp_path / f"{role}.json").write_text(json.dumps(answers))
    more = ["--vocabulary", whole.header.vocabulary, "--out", tmp_path / "listed"]
    files = ["--draft", tmp_path / "draft.json", "--verifier", tmp_path / "verifier.json"]
    assert run("responses", *files, *more) == 0
    tables = {}
    labels = ["T=1 top-k 20", "T=0.6 top-p 0.95 top-k 20"]
    rules = [rule for rule in RULES if rule not in ("cascade_token_v2", "cascade_token_v3")]
    for name in ("whole", "listed"):
        asked = [str(tmp_path / name), "--settings", *labels, "--rules", *rules, "--device", "cpu"]
        out = ["--out", str(tmp_path / f"calibrated-{name}")]
        assert calibrate.main([*asked, "--target", "kl=0.05", *out]) == 0
        tables[name] = pd.read_parquet(tmp_path / f"calibrated-{name}/calibrated.parquet")
    assert len(tables["listed"]) == len(labels) * len(rules)
    for column in tables["whole"].select_dtypes("number"):
        one, other = (tables[name][column] for name in ("listed", "whole"))
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=column)
    capsys.readouterr()


def test_whole_vocabularies_are_exact_at_every_setting(tmp_path, tables_only):
    """Servers that tell all tokens give what the same rows give as arrays."""
    for role in ("draft", "verifier"):
        answers = [prompt_logprobs(role[0], ids, -1) for ids in TEXTS.values()]
        (tmp_path / f"{role}.jsonl").write_text("".join(json.dumps(a) + "\n" for a in answers))
    files = ["--draft", tmp_path / "draft.jsonl", "--verifier", tmp_path / "verifier.jsonl"]
    assert run("responses", *files, "--vocabulary", V, "--out", tmp_path / "served") == 0
    rows = {
        role: np.array([all_ for ids in TEXTS.values() for _, all_ in known(role[0], ids[:-1], 1)])
        for role in ("draft", "verifier")
    }
    labels = [f"text-{n:05d}" for n, ids in enumerate(TEXTS.values()) for _ in ids[1:]]
    write_trace(tmp_path / "arrays", prompts=labels, **rows)
    tables = []
    for name in ("served", "arrays"):
        asked = [str(tmp_path / name), "--rules", "sps", "cactus", "--settings", "T=1", "T=0.5"]
        assert measure.main([*asked, "--jobs", "1", "--out", str(tmp_path / f"m-{name}")]) == 0
        tables.append(pd.read_parquet(tmp_path / f"m-{name}/tradeoff.parquet"))
    numbers = [table.select_dtypes("number") for table in tables]
    np.testing.assert_allclose(*numbers, rtol=1e-9, atol=1e-12)


def test_the_helper_of_this_page_tells_what_the_rows_are():
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    answer = answer_of(logits, [0, 1, 2], 0, 2)["choices"][0]
    assert answer["prompt_token_ids"] == [0, 1, 2]
    assert [list(entry) for entry in answer["prompt_logprobs"][1:]] == [["1", "0"], ["2", "1"]]

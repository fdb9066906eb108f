"""The command line that records: runs, resumes, survives a kill, and explains mistakes."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from real_models import record as module
from real_models.models.loading import LoadOptions
from real_models.models.pair import load_pair
from real_models.record import main
from real_models.traces.contexts import Text, score
from real_models.traces.reader import open_trace


@pytest.fixture
def command(tiny_folder, tiny_prompts):
    """Arguments of a small recording, without --out."""
    return [
        "--verifier", str(tiny_folder), "--draft", "skip:1", "--prompts", str(tiny_prompts),
        "--positions", "6", "--device", "cpu",
    ]  # fmt: skip


def record_files(folder):
    """All files but the one that says when and where."""
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.name != "manifest.json"}


@pytest.fixture
def whole(command, tmp_path):
    """An uninterrupted recording."""
    folder = tmp_path / "whole"
    assert main([*command, "--out", str(folder)]) == 0
    return folder


def test_a_recording_holds_what_the_models_say(whole, tiny_folder):
    trace = open_trace(whole)
    assert trace.complete
    assert [c.entry.prompt_id for c in trace.chunks] == [
        "a",
        "b",
        "c",
        "prompt-00003",
        "prompt-00004",
    ]
    assert [c.entry.domain for c in trace.chunks] == ["letters"] * 2 + ["numbers"] * 2 + ["all"]
    assert trace.header.draft == f"{tiny_folder} skip:1"
    pair = load_pair(verifier=str(tiny_folder), draft="skip:1", options=LoadOptions("cpu"))
    for chunk in trace.chunks:
        assert chunk.positions == 6 or chunk.entry.ended
        draft, verifier = score(pair, Text(tuple(chunk.context.tolist()), chunk.positions))
        assert torch.equal(chunk.logits("draft"), draft)
        assert torch.equal(chunk.logits("verifier"), verifier)
    assert trace.chunks[2].context[:4].tolist() == [2, 9, 4, 3]
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["prompts_recorded"] == 5


def test_texts_that_end_early_are_named(tmp_path, tiny_prompts, make_model, make_tokenizer, capsys):
    """A model that ends its texts with any of thirty words ends most of them early."""
    make_model(eos=list(range(4, 34))).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    command = ["--verifier", str(tmp_path / "model"), "--draft", "skip:0", "--positions", "6"]
    assert main([*command, "--prompts", str(tiny_prompts), "--out", str(out)]) == 0
    trace = open_trace(out)
    ended = {c.entry.prompt_id: c.positions for c in trace.chunks if c.entry.ended}
    assert trace.positions < 30
    assert all(set(c.next_tokens[:-1]).isdisjoint(range(4, 34)) for c in trace.chunks)
    form, first, *rest, last = capsys.readouterr().out.splitlines()
    assert form.startswith("1 of 5 prompts go through the chat template of ")
    assert re.fullmatch(r"Recorded 5 prompts in \d+\.\d s\.", last)
    assert first == f"{out}: 5 of 5 prompts, {trace.positions} positions"
    assert rest == [f"  {name}: the text ended after {n} positions" for name, n in ended.items()]
    assert rest


def test_contexts_seed_and_sampling_are_recorded(command, tmp_path):
    def run(name, *more):
        assert main([*command, "--out", str(tmp_path / name), *more]) == 0
        return open_trace(tmp_path / name)

    traces = {
        "plain": run("plain"),
        "seed": run("seed", "--seed", "1"),
        "draft": run("draft", "--contexts", "draft"),
        "greedy": run("greedy", "--temperature", "0"),
        "given": run("given", "--contexts", "given"),
    }
    texts = {name: trace.chunks[0].context.tolist() for name, trace in traces.items()}
    assert len({tuple(text) for text in texts.values()}) == len(texts)
    assert texts["given"] == [4, 5, 6]
    assert traces["given"].header.sampling is None
    assert traces["greedy"].header.sampling == {"temperature": 0.0, "top_k": None, "top_p": None}
    assert [traces[name].header.contexts for name in ("plain", "draft")] == ["verifier", "draft"]


def test_the_number_of_threads_can_be_set(command, tmp_path):
    """In a process of its own: the number is the whole process's, tests that follow included."""
    script = (
        "import sys, torch\nfrom real_models.record import main\n"
        "print(main(sys.argv[1:]), torch.get_num_threads())\n"
    )

    def threads(*more):
        arguments = [sys.executable, "-c", script, *command, "--out", str(tmp_path / "out"), *more]
        environment = os.environ | {"OMP_NUM_THREADS": "2"}
        done = subprocess.run(
            arguments, env=environment, check=True, capture_output=True, text=True
        )
        assert done.stderr in ("", "record: 5 prompts\n")
        return done.stdout.splitlines()[-1]

    assert threads() == "0 2"
    assert threads("--threads", "1", "--resume") == "0 1"


def test_storing_fewer_bits(command, tmp_path, whole):
    assert main([*command, "--out", str(tmp_path / "half"), "--store-dtype", "bfloat16"]) == 0
    half, full = open_trace(tmp_path / "half").chunks[0], open_trace(whole).chunks[0]
    assert torch.equal(half.logits("draft"), full.logits("draft").bfloat16())
    assert np.array_equal(half.context, full.context)


def test_an_interruption_keeps_finished_prompts(command, tmp_path, whole, monkeypatch, capsys):
    folder, calls = tmp_path / "cut", []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, "score", interrupted)
        assert main([*command, "--out", str(folder)]) == 130
    assert "kept" in capsys.readouterr().err
    assert len(open_trace(folder).chunks) == 2
    assert main([*command, "--out", str(folder), "--resume"]) == 0
    assert record_files(folder) == record_files(whole)
    assert json.loads((folder / "manifest.json").read_text())["prompts_recorded"] == 3


KILLED = """
import os, signal, sys
from real_models.traces import writer as trace_writer
from real_models.record import main

calls = 0
digest = trace_writer.sha256_file

def sha256_file(path):
    global calls
    calls += 1
    if calls == int(sys.argv[1]):
        path.with_name("." + path.name + ".part").write_bytes(b"half a file")
        os.kill(os.getpid(), signal.SIGKILL)
    return digest(path)

trace_writer.sha256_file = sha256_file
main(sys.argv[2:])
"""


def test_kill_and_resume_is_byte_identical(command, tmp_path, whole):
    """Killed between the second file of the third prompt and its line in the index."""
    folder = tmp_path / "killed"
    arguments = [sys.executable, "-c", KILLED, "8", *command, "--out", str(folder)]
    done = subprocess.run(arguments, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(open_trace(folder).chunks) == 2
    assert main([*command, "--out", str(folder)]) == 0
    assert record_files(folder) == record_files(whole)


def test_several_processes_share_the_prompts(command, tmp_path, whole, monkeypatch):
    folder = tmp_path / "ranks"
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, chunks in (("1", [1, 3]), ("0", [0, 1, 2, 3, 4])):
        monkeypatch.setenv("RANK", rank)
        assert main([*command, "--out", str(folder)]) == 0
        assert [c.entry.chunk for c in open_trace(folder).chunks] == chunks
    arrays = {name: data for name, data in record_files(whole).items() if name.endswith(".npy")}
    assert arrays.items() <= record_files(folder).items()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--pair", "smollm2-skip33"], "did you mean 'smollm2-skip3'"),
        (["--verifier", "smollm2"], "a verifier and a draft go together"),
        (["--verifier", "./absent", "--draft", "skip:1"], "there is no such folder"),
        (["--prompts", "absent.jsonl"], "prompt file absent.jsonl cannot be read"),
        (["--temperature", "-1"], "--temperature must be finite and ≥ 0"),
        (["--top-k", "0"], "--top-k must be an integer ≥ 1"),
        (["--top-p", "2"], "--top-p must lie in (0, 1]"),
        (["--positions", "0"], "--positions must be at least 1"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--device", "toaster"], "device must be auto, cpu, cuda or cuda:i"),
        (["--resume"], "holds no trace"),
    ],
)
def test_mistakes_are_one_line_and_status_2(more, message, tmp_path, capsys):
    assert main(["--out", str(tmp_path / "out"), *more]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("python -m real_models.record: error: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


def test_another_recording_in_the_same_folder_is_refused(command, whole, capsys):
    assert main([*command, "--out", str(whole), "--seed", "7"]) == 2
    assert "holds another trace: seed: 0 != 7" in capsys.readouterr().err


def test_an_unusable_prompt_stops_before_any_is_recorded(command, tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    prompts.write_text('{"prompt": "w4 w5"}\n{"prompt": "w4", "id": "short"}\n')
    command = [*command, "--prompts", str(prompts), "--out", str(out)]
    assert main([*command, "--contexts", "given"]) == 2
    assert "prompt 'short': a given text needs at least two tokens" in capsys.readouterr().err
    assert main([*command, "--contexts", "given", "--resume"]) == 2
    assert open_trace(out).chunks == ()
    long = ["--out", str(tmp_path / "long")]
    assert main([*command, "--no-chat", "--positions", "127", *long]) == 2
    assert "129 tokens exceed the models' limit of 128" in capsys.readouterr().err
    assert main([*command, "--prompts", str(prompts), *long]) == 0  # the folder is not taken


def test_a_finished_recording_is_left_as_it_is(command, whole, capsys):
    manifest = (whole / "manifest.json").read_bytes()
    assert main([*command, "--out", str(whole)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Nothing was left to record."
    assert (whole / "manifest.json").read_bytes() == manifest


def test_a_file_in_the_place_of_the_folder_is_named(command, tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.write_text("")
    for out in (taken, taken / "below"):
        assert main([*command, "--out", str(out)]) == 2
        assert f"{taken} is a file; a folder is needed there" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--out", "x", "--contexts", "mine"]])
def test_argparse_errors_have_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "python -m real_models.record --pair smollm2-skip3" in capsys.readouterr().out


@pytest.mark.model
def test_the_default_pair_and_prompts(tmp_path):
    from real_models.laws.distributions import distributions

    assert main(["--out", str(tmp_path), "--positions", "4"]) == 0
    trace = open_trace(tmp_path)
    assert trace.header.pair == "smollm2-skip3"
    assert len(trace.chunks) == 10
    acceptance = [
        torch.minimum(distributions(draft), distributions(verifier)).sum(-1)
        for _, _, draft, verifier in trace.batches()
    ]
    # About 0.67 over many positions; the bounds are wide because these are few.
    assert 0.4 < float(torch.cat(acceptance).mean()) < 0.9

"""The command line of decoding."""

import json
import os

import pytest
import torch

from real_models.decode import main
from theory import make_rule


@pytest.fixture
def decode_in(tiny_folder, tiny_prompts):
    """Run the command line on the tiny pair with more arguments; the exit status."""

    def call(*more, draft="skip:0", prompts=True):
        given = ["--prompts", str(tiny_prompts)] if prompts else []
        models = ["--verifier", str(tiny_folder), "--draft", draft, "--device", "cpu"]
        return main([*given, *models, "--new-tokens", "12", *more])

    return call


def test_texts_and_figures_are_told(decode_in, capsys):
    assert decode_in("--rule", "cactus", "--delta", "0.5", "--draft-tokens", "3") == 0
    told = capsys.readouterr().out
    assert told.count("── ") == 5
    for part in (
        "cactus(delta=0.5), T=1, up to 3 drafts a round",
        "accepted length", "accepted by position", "exact acceptance", "an upper bound of KL",
        "the rule takes", "speed-up",
    ):  # fmt: skip
        assert part in told
    assert "nan" not in told


def test_one_json_document_and_nothing_else(decode_in, capsys):
    assert (
        decode_in(
            "--rule", "frontier", "--level", "0.1", "--divergence", "total_variation", "--json"
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    figures = found["summary"]
    assert figures["rule"] == "frontier"
    assert figures["parameters"] == {"level": 0.1, "divergence": "total_variation"}
    assert len(found["texts"]) == figures["texts"] == 5
    assert sum(len(text["tokens"]) for text in found["texts"]) == figures["tokens"]
    assert figures["kl_per_text"] > 0
    assert all(set(map(type, text["divergence"])) <= {float} for text in found["texts"])


def test_the_parameters_in_the_figures_make_the_rule_again(decode_in, capsys):
    assert decode_in("--rule", "typical", "--recovery", "verifier", "--json", "--no-compare") == 0
    figures = json.loads(capsys.readouterr().out)["summary"]
    again = make_rule(figures["rule"], **figures["parameters"])
    assert again == make_rule("typical", recovery="verifier")


def test_a_file_of_lines(decode_in, tmp_path, capsys):
    out = tmp_path / "deep" / "run.jsonl"
    assert decode_in("--out", str(out), "--no-measure", "--no-compare") == 0
    first, *texts = map(json.loads, out.read_text().splitlines())
    assert len(texts) == 5
    assert "kl_per_text" not in first["summary"]
    assert "speed_up" not in first["summary"]
    assert "divergence" not in texts[0]
    assert "speed-up" not in capsys.readouterr().out


def test_settings_reach_the_models(decode_in, capsys):
    options = ("--temperature", "0.7", "--top-k", "5", "--greedy-draft", "--json", "--no-compare")
    assert decode_in(*options, "--batch-size", "5") == 0
    batched = json.loads(capsys.readouterr().out)
    assert batched["summary"]["settings"] == "T=0.7 top-k 5 greedy-draft"
    assert decode_in(*options) == 0
    alone = json.loads(capsys.readouterr().out)
    assert [t["tokens"] for t in batched["texts"]] == [t["tokens"] for t in alone["texts"]]


def test_a_lookup_takes_the_place_of_the_draft(decode_in, capsys):
    assert decode_in("--json", draft="lookup:2") == 0
    figures = json.loads(capsys.readouterr().out)["summary"]
    assert figures["pair"].endswith(" / lookup:2")
    assert figures["seconds"]["draft"] < figures["seconds"]["verify"]


def test_one_prompt_by_hand(decode_in, capsys):
    no_chat = ("--prompt", "w4 w5", "--no-chat", "--json", "--no-compare")
    assert decode_in(*no_chat, prompts=False) == 0
    plain = json.loads(capsys.readouterr().out)
    assert decode_in("--prompt", "w4 w5", "--chat", "--json", "--no-compare", prompts=False) == 0
    assert [t["id"] for t in plain["texts"]] == ["prompt"]
    assert json.loads(capsys.readouterr().out)["texts"] != plain["texts"]


def test_threads(decode_in, capsys):
    before = torch.get_num_threads()
    try:
        assert decode_in("--threads", "1", "--no-compare") == 0
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rule", "cactos"], "--rule cactos: unknown rule 'cactos'; did you mean 'cactus'?"),
        (["--rule", "cactus"], "needs the parameter 'delta'"),
        (["--rule", "cactus", "--alpha", "1"], "rule 'cactus' has no parameter 'alpha'"),
        (["--rule", "cactus", "--delta", "x"], "delta"),
        (["--rule", "cactus", "--delta", "-1"], "delta"),
        (["--draft-tokens", "-1"], "--draft-tokens must be at least 0, got -1"),
        (["--new-tokens", "0"], "--new-tokens must be at least 1, got 0"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--temperature", "-1"], "--temperature must be finite"),
        (["--prompt", "w4"], "either --prompt or --prompts"),
        (["--rule", "sps", "--delta", "1"], "rule 'sps' has no parameter 'delta': it has none"),
        (["--rule", "cactus_target_only", "--delta", "1", "--exact", "maybe"], "True or False"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(decode_in, capsys, arguments, message):
    assert decode_in(*arguments) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_a_file_that_cannot_be_written_is_found_before_any_work(decode_in, capsys, tmp_path):
    assert decode_in("--out", str(tmp_path)) == 2
    assert f"--out {tmp_path} is a folder" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert decode_in("--out", str(tmp_path / "file" / "run.jsonl")) == 2
    assert f"{tmp_path / 'file'} is a file" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")
    assert decode_in("--out", str(tmp_path / "pipe")) == 2
    assert f"--out {tmp_path / 'pipe'} is a device or a pipe" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_stays_one_and_two_processes_write_two_whole_files(decode_in, tmp_path, monkeypatch):
    """The second begins and ends while the first is writing."""
    target, link = tmp_path / "target.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(target)
    wrote, plain = [], os.fsync

    def between(handle):
        if not wrote:
            wrote.append(handle)
            with monkeypatch.context() as second:
                second.setattr(os, "getpid", lambda: 1)
                assert decode_in("--seed", "1", "--out", str(link)) == 0
        plain(handle)

    monkeypatch.setattr(os, "fsync", between)
    assert decode_in("--no-compare", "--out", str(link)) == 0
    assert link.is_symlink()
    assert all(json.loads(line) for line in target.read_text(encoding="utf-8").splitlines())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.jsonl", "target.jsonl"]


def test_arguments_that_do_not_parse_are_one_line(decode_in, capsys):
    with pytest.raises(SystemExit) as ended:
        decode_in("--draft-tokens", "many")
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_bad_lookup_is_refused(decode_in, capsys):
    assert decode_in(draft="lookup:0") == 2
    assert "draft 'lookup:0' is not like 'lookup' or 'lookup:3'" in capsys.readouterr().err

"""The command line that distils: a folder that loads as a draft, or no folder at all."""

import json
import subprocess
import sys

import pytest
import torch
from paused import paused

from real_models import distill as module
from real_models.distill import main
from real_models.models.loading import LoadOptions
from real_models.models.pair import load_pair


@pytest.fixture(scope="module")
def verifier(make_model, make_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("verifier")
    make_model(layers=4, tie_word_embeddings=True).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def command(verifier, tiny_prompts, tmp_path):
    held_out = tmp_path / "held-out.jsonl"
    lines = [json.dumps({"prompt": f"w{number} w{number + 1}"}) for number in range(20, 30)]
    held_out.write_text("\n".join(lines))
    return [
        "--verifier", str(verifier), "--openings", str(tiny_prompts), "--prompts", str(held_out),
        "--texts", "60", "--length", "8", "--positions", "8", "--steps", "40",
        "--learning-rate", "5e-3", "--device", "cpu",
    ]  # fmt: skip


def test_the_folder_is_a_draft(command, verifier, tmp_path, capsys):
    out = tmp_path / "drafts" / "three"
    assert main([*command, "--start", "skip:1", "--out", str(out)]) == 0
    before, after = capsys.readouterr().out.splitlines()
    assert before.startswith(f"{verifier} skip:1: 0.")
    assert after.startswith(f"{out}: 0.")
    facts = json.loads((out / "distillation.json").read_text())
    assert facts["held_out_after"]["mean"] > facts["held_out_before"]["mean"]
    assert facts["loss_last"] < facts["loss_first"]
    assert facts["steps"] == 40
    assert facts["texts"] == 60
    pair = load_pair(verifier=str(verifier), draft=str(out), options=LoadOptions("cpu"))
    assert pair.draft.config.num_hidden_layers == 3
    assert facts["verifier_revision"] == pair.verifier_revision
    assert [path.name for path in out.parent.iterdir()] == ["three"]
    start = load_pair(verifier=str(verifier), draft="skip:1", options=LoadOptions("cpu")).draft
    ids = torch.tensor([[4, 5, 6]])
    with torch.inference_mode():
        assert not torch.allclose(pair.draft(ids).logits, start(ids).logits, atol=1e-2)


def test_a_folder_can_be_trained_further(command, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert main([*command, "--layers", "2", "--out", str(first)]) == 0
    assert main([*command, "--start", str(first), "--out", str(second)]) == 0
    one, two = (json.loads((f / "distillation.json").read_text()) for f in (first, second))
    assert one["start"].endswith(" skip:1,2")
    assert two["start"] == str(first)
    assert two["held_out_before"] == pytest.approx(one["held_out_after"], abs=1e-5)


def test_json_is_one_document_and_nothing_else(command, tmp_path, capsys):
    out = tmp_path / "draft"
    assert main([*command, "--layers", "3", "--json", "--out", str(out)]) == 0
    assert capsys.readouterr().out == (out / "distillation.json").read_text()


@pytest.mark.parametrize("fault", [RuntimeError("disk"), KeyboardInterrupt()])
def test_an_interruption_leaves_no_folder(command, tmp_path, monkeypatch, fault):
    """Weights and configuration are written by then; the tokenizer is not."""
    out = tmp_path / "drafts" / "draft"

    def fail(self, folder):
        assert any(folder.iterdir())
        raise fault

    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.save_pretrained", fail)
    if isinstance(fault, KeyboardInterrupt):
        assert main([*command, "--layers", "3", "--out", str(out)]) == 130
    else:
        with pytest.raises(RuntimeError, match="disk"):
            main([*command, "--layers", "3", "--out", str(out)])
    assert list(out.parent.iterdir()) == []


def test_a_draft_that_another_process_makes_is_refused_before_any_work(command, tmp_path, capsys):
    out = tmp_path / "draft"
    command = [*command, "--texts", "4", "--steps", "1", "--layers", "3", "--out", str(out)]
    with paused("real_models.distill", "real_models.distill.distill", *command) as first:
        assert main(command) == 2
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1
        assert f"draft.making is being written by process {first.pid} on " in said[0]
        first.communicate("\n")
        assert first.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draft", "held-out.jsonl"]
    assert load_pair(verifier=command[1], draft=str(out), options=LoadOptions("cpu"))


def test_what_is_there_already_is_kept(command, tmp_path, capsys):
    assert main([*command, "--layers", "3", "--out", str(tmp_path)]) == 2
    assert f"--out: {tmp_path} is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "1"], "cannot keep 1 of 4 layers: 2 of them are vital"),
        (["--layers", "5"], "cannot keep 5 of 4 layers"),
        (["--start", "skip:9"], "cannot skip layer 9"),
        (["--layers", "3", "--texts", "0"], "--texts must be at least 1, got 0"),
        (["--layers", "3", "--steps", "0"], "--steps must be at least 1, got 0"),
        (["--layers", "3", "--learning-rate", "-1"], "learning_rate must be positive"),
        (["--layers", "3", "--learning-rate", "nan"], "learning_rate must be positive"),
        (["--layers", "3", "--learning-rate", "1e300"], "learning_rate must be below 1e+31"),
        (["--layers", "9" * 400], "--layers must be at most 2147483647, got 9999"),
        (["--layers", "3", "--threads", "9" * 400], "--threads must be 1 to 1024, got 9999"),
        (["--layers", "3", "--length", "200"], "exceed the models' limit of 128"),
        (["--layers", "3", "--openings", "absent.jsonl"], "absent.jsonl cannot be read"),
    ],
)
def test_mistakes_are_one_line_and_status_2(command, tmp_path, capsys, arguments, message):
    assert main([*command, *arguments, "--out", str(tmp_path / "draft")]) == 2
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1]
    assert captured.err.count("error") == 1
    assert not (tmp_path / "draft").exists()


def test_prompts_that_are_trained_on_are_not_held_out(command, tiny_prompts, tmp_path, capsys):
    arguments = [*command, "--prompts", str(tiny_prompts), "--layers", "3"]
    assert main([*arguments, "--out", str(tmp_path / "draft")]) == 2
    assert "prompt 'a' of --prompts is in --openings: not held out" in capsys.readouterr().err


def test_minutes_are_the_usual_limit(command, tmp_path, capsys):
    command = [arg for arg in command if arg not in ("--steps", "40")]
    arguments = [*command, "--layers", "3", "--minutes", "0.01", "--out", str(tmp_path / "draft")]
    assert main(arguments) == 0
    facts = json.loads((tmp_path / "draft" / "distillation.json").read_text())
    assert facts["training"]["minutes"] == 0.01
    assert facts["training"]["steps"] is None
    assert facts["seconds"] >= 0.6
    for minutes in ("0", "nan"):
        assert main([*arguments[:-2], "--minutes", minutes, "--out", str(tmp_path / "next")]) == 2
        assert "minutes must be positive" in capsys.readouterr().err


def test_one_start_is_needed(command, tmp_path, capsys):
    for arguments in ([], ["--layers", "3", "--start", "skip:1"]):
        with pytest.raises(SystemExit) as caught:
            main([*command, *arguments, "--out", str(tmp_path / "draft")])
        assert caught.value.code == 2
    assert "--start" in capsys.readouterr().err


def test_the_vital_layers_of_the_bundled_verifier():
    assert module._VITAL["smollm2"] == (0, 1, 2, 11, 28, 29)


def test_help_shows_an_example():
    done = subprocess.run(
        [sys.executable, "-m", "real_models.distill", "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "python -m real_models.distill --layers 20 --texts 200" in done.stdout

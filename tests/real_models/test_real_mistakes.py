"""What a user can get wrong on the command lines of real models costs one line, not a traceback."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from real_models import decode, distill, record, search_layers
from real_models.errors import UserError
from real_models.models.pair import load_pair
from real_models.traces.reader import open_trace

HUGE = "9" * 400


@pytest.fixture
def tiny(tiny_folder, tiny_prompts):
    return ["--verifier", str(tiny_folder), "--prompts", str(tiny_prompts), "--device", "cpu"]


def mistake(capsys, main, arguments):
    """The error of a command that ends with status 2: the last line, behind those of progress."""
    capsys.readouterr()
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as end:  # an argument that cannot be parsed
        status = end.code
    assert status == 2
    *others, line = capsys.readouterr().err.strip().splitlines()
    assert all(" error: " not in other and "Traceback" not in other for other in others)
    assert " error: " in line
    return line


def save(model, tokenizer, folder, value=float("nan")):
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = value
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def sick(tmp_path, make_model, make_tokenizer):
    return save(make_model(seed=3), make_tokenizer(), tmp_path / "sick")


@pytest.mark.parametrize("role", ["verifier", "draft"])
def test_nan_logits_name_model_prompt_and_position(
    sick, tiny_folder, tiny_prompts, tmp_path, capsys, role
):
    models = {"verifier": tiny_folder, "draft": tiny_folder} | {role: sick}
    named = ["--verifier", models["verifier"], "--draft", models["draft"], "--device", "cpu"]
    line = mistake(capsys, decode.main, [*named, "--prompt", "w4 w7 w5", "--no-chat"])
    assert f"prompt 'prompt', position 2: the {role}'s logits hold nan" in line
    common = [*named, "--prompts", tiny_prompts, "--positions", "4"]
    line = mistake(capsys, record.main, [*common, "--out", tmp_path / "t"])
    assert "prompt 'b', position " in line
    assert f"the {role}'s logits hold nan" in line
    given = [*common, "--contexts", "given", "--out", tmp_path / "g"]
    assert f"the {role}'s logits hold nan" in mistake(capsys, record.main, given)


def test_nan_logits_while_a_draft_is_made(sick, tiny_prompts, tmp_path, capsys):
    other = tmp_path / "held.jsonl"
    other.write_text('{"prompt": "w20 w21", "id": "h"}\n')
    line = mistake(
        capsys, distill.main,
        ["--verifier", sick, "--layers", "2", "--openings", tiny_prompts, "--prompts", other,
         "--steps", "1", "--device", "cpu", "--out", tmp_path / "d", "--length", "4"],
    )  # fmt: skip
    assert "the verifier's logits hold nan" in line
    line = mistake(
        capsys, search_layers.main,
        ["--verifier", sick, "--drop", "1", "--prompts", tiny_prompts, "--device", "cpu"],
    )  # fmt: skip
    assert "prompt 'b', position " in line


def test_nan_logits_inside_generate(make_model):
    from real_models.generate import CUSTOM_GENERATE

    model = make_model(seed=3)
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = torch.nan
    with pytest.raises(UserError, match=r"row 0 of input_ids.* position 2: the verifier's logits"):
        model.generate(
            torch.tensor([[4, 7, 5]]), max_new_tokens=3, custom_generate=CUSTOM_GENERATE,
            trust_remote_code=True, prompt_lookup=2,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--prompt", "w4 \udcff"], "--prompt"),
        (["--prompts", "."], "prompt file"),
        (["--prompts", "a\0b"], "prompt"),
        (["--new-tokens", HUGE], "--new-tokens"),
        (["--draft-tokens", HUGE], "--draft-tokens"),
        (["--batch-size", HUGE], "--batch-size"),
        (["--seed", HUGE], "--seed"),
        (["--temperature", HUGE], "--temperature"),
        (["--draft", f"lookup:{HUGE}"], "lookup"),
        (["--draft", "lookup:" + "9" * 5000], "lookup"),
        (["--draft", "skip:" + "9" * 5000], "skip"),
        (["--draft", "round:" + "9" * 5000], "round"),
        (["--draft", f"skip:{HUGE}"], "skip"),
        (["--draft", f"round:{HUGE}"], "round"),
        (["--draft", f"round:4,group={HUGE}"], "round"),
        (["--device", f"cuda:{HUGE}"], "device"),
        (["--out", "/dev/null/x"], "/dev/null"),
        (["--verifier", "a\0b", "--draft", "skip:1"], "verifier"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistakes_of_decode(tiny, capsys, arguments, named):
    known = tiny[:2] + tiny[4:] if "--prompt" in arguments else tiny
    draft = [] if "--draft" in arguments else ["--draft", "skip:1"]
    line = mistake(capsys, decode.main, [*known, *draft, *arguments])
    assert named in line
    assert len(line) < 400


@pytest.mark.parametrize("out", ["/dev/null", "/dev/null/x", "/proc/nothing", "x" * 300])
def test_a_trace_needs_a_folder_that_can_be_made(tiny, capsys, out):
    line = mistake(capsys, record.main, [*tiny, "--draft", "skip:1", "--out", out])
    assert out[:9] in line


@pytest.mark.parametrize(
    "header",
    ["[" * 100_000, "{}", "[]", "9" * 5000, '{"format": 1}', '{"format": ' + "9" * 5000 + "}"],
    ids=lambda text: text[:12],
)
def test_a_header_that_is_none(tmp_path, header):
    (tmp_path / "header.json").write_text(header)
    with pytest.raises(UserError, match=r"header\.json") as caught:
        open_trace(tmp_path)
    assert len(str(caught.value)) < 600 + len(str(tmp_path))


def test_an_unknown_model_is_one_line_and_quick(capfd, monkeypatch):
    command = [sys.executable, "-m", "real_models.decode", "--verifier", "nobody/knows-this",
               "--draft", "skip:1", "--prompt", "x"]  # fmt: skip
    started = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 2
    lines = [text for text in done.stderr.splitlines() if "loading PyTorch" not in text]
    assert len(lines) == 1
    assert "verifier 'nobody/knows-this'" in lines[0]
    assert time.monotonic() - started < 60


def test_an_unknown_pair_says_how_any_two_models_are_named():
    with pytest.raises(UserError, match=r"verifier=.*draft=.*--verifier and --draft"):
        load_pair("Qwen/Qwen3-0.6B")


def test_the_form_of_the_prompts_is_told_and_can_be_chosen(tiny_folder, tmp_path, capsys):
    path = tmp_path / "mine.txt"
    path.write_text("w4 w5\nw6\n")
    known = ["--verifier", str(tiny_folder), "--draft", "skip:1", "--device", "cpu"]
    known += ["--prompts", str(path), "--new-tokens", "3", "--no-compare"]
    told = {}
    for option in ("", "--chat", "--no-chat"):
        assert decode.main([*known, *filter(None, [option])]) == 0
        told[option] = capsys.readouterr().out.splitlines()[0]
    assert told[""] == told["--chat"] == f"prompts go through the chat template of {tiny_folder}"
    assert told["--no-chat"] == "prompts as raw text"
    recorded = {}
    for option in ("", "--chat", "--no-chat"):
        out = tmp_path / f"trace{option}"
        arguments = [*known[:-3], "--positions", "2", "--out", str(out), *filter(None, [option])]
        assert record.main(arguments) == 0
        assert capsys.readouterr().out.splitlines()[0] == told[option]
        recorded[option] = open_trace(out).chunks[0].context[:4].tolist()
    assert recorded[""] == recorded["--chat"] == [2, 4, 5, 3]
    assert recorded["--no-chat"][:2] == [4, 5]


def test_the_cut_mass_is_recorded_and_told(make_model, make_tokenizer, tmp_path, capsys):
    """A padded verifier whose columns beyond the tokenizer have next to no mass, or too much."""
    folders = {}
    for name, size, low in (("wide", 48, True), ("narrow", 44, True), ("bad", 48, False)):
        model = make_model(seed=size, vocab=size)
        if low:  # where the first coordinate of every state is 1, a weight there is a bias
            lowered(model)
        model.save_pretrained(tmp_path / name)
        make_tokenizer().save_pretrained(tmp_path / name)
        folders[name] = str(tmp_path / name)
    known = ["--draft", folders["narrow"], "--allow-padded-vocab", "--device", "cpu"]
    prompts = tmp_path / "p.txt"
    prompts.write_text("w4 w5\n")
    common = ["--verifier", folders["wide"], *known, "--prompts", str(prompts)]
    assert record.main([*common, "--positions", "3", "--out", str(tmp_path / "t")]) == 0
    assert "of the verifier's probability" in capsys.readouterr().out
    cut = open_trace(tmp_path / "t").chunks[0].entry.cut
    assert set(cut) == {"draft", "verifier"}
    assert 0 < cut["verifier"]["mean"] <= cut["verifier"]["largest"] < 1e-3
    assert decode.main([*common, "--new-tokens", "3", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["summary"]
    assert 0 < figures["cut"]["verifier"]["largest"] < 1e-3
    bad = ["--verifier", folders["bad"], *known, "--prompts", str(prompts)]
    assert "drops 0." in mistake(capsys, decode.main, [*bad, "--new-tokens", "3"])
    assert "drops 0." in mistake(capsys, record.main, [*bad, "--out", tmp_path / "u"])


def lowered(model):
    """Give the columns beyond 40 a logit of −12: a state that all tokens share, of weight −12."""
    with torch.no_grad():
        norm, head = model.model.norm, model.lm_head.weight
        model.model.embed_tokens.weight[:, 0] = 40.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        norm.weight[0] = 1.0
        head[40:] = 0
        head[40:, 0] = -5.0
        head[:40, 0] = 0.0

"""The greedy search for layers: brute force at every step, and the command line."""

import json
import os
import subprocess
import sys

import pytest

from real_models import search_layers as module
from real_models.derived.layer_skip import parse_skip, skip_layers
from real_models.drafts.texts import acceptance, calibrate
from real_models.errors import UserError
from real_models.models.pair import make_pair
from real_models.prompts import read_prompts
from real_models.search_layers import main, search_layers

LAYERS = 5


@pytest.fixture(scope="module")
def verifier(make_model):
    """Layers of very different weight: the search has something to find."""
    model = make_model(layers=LAYERS)
    for place, scale in enumerate((1.0, 0.1, 0.7, 0.02, 0.4)):
        layer = model.model.layers[place]
        for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
            projection.weight.data *= scale
    return model


@pytest.fixture(scope="module")
def folder(verifier, make_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("five-layers")
    verifier.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def calibration(verifier, make_tokenizer, tiny_prompts):
    pair = make_pair(verifier, verifier, make_tokenizer())
    return calibrate(pair, read_prompts(tiny_prompts)[0], positions=6)


def accepted(verifier, calibration, layers):
    return acceptance(skip_layers(verifier, layers), calibration).mean


def test_every_step_is_the_best_of_all(verifier, calibration):
    found = search_layers(verifier, calibration, 3)
    dropped = ()
    for step in found.steps:
        brute = {
            layer: accepted(verifier, calibration, [*dropped, layer])
            for layer in range(LAYERS)
            if layer not in dropped
        }
        assert step.layer == max(brute, key=brute.get)
        assert step.tried == brute
        assert step.acceptance.mean == max(brute.values())
        dropped = (*dropped, step.layer)
        assert step.layers == dropped
    assert found.steps[0].layer == 3
    assert parse_skip(found.draft) == tuple(sorted(dropped))
    means = [step.acceptance.mean for step in found.steps]
    assert means == sorted(means, reverse=True)


def test_candidates_restrict_what_may_go(verifier, calibration):
    found = search_layers(verifier, calibration, 2, candidates=[4, 0, 2, 4])
    assert {step.layer for step in found.steps} <= {0, 2, 4}
    assert sorted(found.steps[0].tried) == [0, 2, 4]
    assert sorted(found.steps[1].tried) == sorted({0, 2, 4} - {found.steps[0].layer})


def test_of_equal_layers_the_lowest_goes(verifier, calibration, monkeypatch):
    equal = accepted(verifier, calibration, [])
    real = module.acceptance(verifier, calibration)
    monkeypatch.setattr(module, "acceptance", lambda draft, texts: real)
    found = search_layers(verifier, calibration, 2)
    assert [step.layer for step in found.steps] == [0, 1]
    assert equal == pytest.approx(real.mean)


def test_steps_are_reported_as_they_are_found(verifier, calibration):
    seen = []
    found = search_layers(verifier, calibration, 2, report=seen.append)
    assert tuple(seen) == found.steps


@pytest.mark.parametrize(
    ("drop", "candidates", "message"),
    [
        (0, None, "cannot leave out 0 of 5 layers: 1 … 4"),
        (5, None, "cannot leave out 5 of 5 layers"),
        (1, [5], "candidate 5 is no layer: the verifier has 0 … 4"),
        (1, [-1], "candidate -1 is no layer"),
        (2, [3, 3], "cannot leave out 2 layers of 1 candidates"),
    ],
)
def test_impossible_searches_are_refused(verifier, calibration, drop, candidates, message):
    with pytest.raises(UserError, match=message):
        search_layers(verifier, calibration, drop, candidates)


@pytest.fixture
def command(folder, tiny_prompts):
    return [
        "--verifier", str(folder), "--prompts", str(tiny_prompts), "--positions", "6",
        "--device", "cpu", "--drop", "2",
    ]  # fmt: skip


def test_the_command_line_prints_the_path_and_the_draft(
    command, tmp_path, capsys, verifier, calibration
):
    out = tmp_path / "layers.json"
    assert main([*command, "--out", str(out)]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    found = search_layers(verifier, calibration, 2)
    assert first.split() == ["without", "3:", *str(found.steps[0].acceptance).split(), "skip:3"]
    assert second.endswith(found.draft)
    assert last == f"--draft {found.draft}"
    document = json.loads(out.read_text())
    assert [step["layer"] for step in document["steps"]] == [s.layer for s in found.steps]
    assert document["steps"][1]["acceptance"] == found.steps[1].acceptance.mean
    assert document["draft"] == found.draft
    assert document["texts"] == 5
    assert document["positions"] == calibration.positions


def test_json_is_one_document_and_nothing_else(command, tmp_path, capsys):
    out = tmp_path / "layers.json"
    assert main([*command, "--json", "--candidates", "1-2,4", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed == out.read_text()
    tried = json.loads(printed)["steps"][0]["tried"]
    assert sorted(tried) == ["1", "2", "4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drop", "0"], "--drop must be at least 1, got 0"),
        (["--drop", "9"], "cannot leave out 9 of 5 layers"),
        (["--positions", "0"], "--positions must be at least 1"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--candidates", "3,8"], "candidate 8 is no layer"),
        (["--prompts", "absent.jsonl"], "absent.jsonl cannot be read"),
        (["--verifier", "./absent"], "verifier './absent': there is no such folder"),
        (["--out", "absent/layers.json"], "there is no folder absent"),
        (["--out", "."], "--out . is a folder; name a file"),
        (["--threads", "-1"], "--threads must be 1 to 1024, got -1"),
        (["--threads", "9" * 400], "--threads must be 1 to 1024, got 9999"),
    ],
)
def test_mistakes_are_one_line_and_status_2(command, capsys, arguments, message):
    assert main([*command, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_pipe_is_not_replaced_by_a_file(command, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert main([*command, "--out", str(tmp_path / "pipe")]) == 2
    assert "pipe is a device or a pipe; name a file" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    "text", ["a-b", "", "3-1", "1-2-3", "-1", "0-99999999", "0-" + "9" * 400, "\u0663"]
)
def test_candidates_that_are_no_layers_are_explained_by_the_parser(command, capsys, text):
    with pytest.raises(SystemExit) as caught:
        main([*command, f"--candidates={text}"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "--candidates: expected layers like 3-10,14, got '" in said
    assert said.count("\n") == 1
    assert len(said) < 200


def test_help_shows_an_example():
    done = subprocess.run(
        [sys.executable, "-m", "real_models.search_layers", "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "python -m real_models.search_layers --verifier smollm2 --drop 4" in done.stdout

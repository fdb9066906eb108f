"""The command line of sequences."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from sim.chain import main

SMALL = ["--pairs", "random:states=4", "--rules", "sps", "lenience", "--values", "lenience=0.4"]


def test_a_run_leaves_tables_a_picture_and_its_manifest(tmp_path, capsys):
    out = tmp_path / "out"
    assert main([*SMALL, "--drafts", "2", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "lenience" in told
    assert "chain.png" in told
    table, best = (pd.read_parquet(out / f"{name}.parquet") for name in ("chain", "best"))
    assert len(table) == 4
    assert (out / "chain.png").read_bytes().startswith(b"\x89PNG")
    arguments = json.loads((out / "manifest.json").read_text())["arguments"]
    assert arguments["drafts"] == 2
    tokens = table.set_index(["rule", "verification"])["tokens"]
    assert tokens["sps", "block"] > tokens["sps", "token"]
    assert tokens["lenience", "token"] > tokens["sps", "token"]
    assert best["tokens"].is_monotonic_decreasing


def test_json_is_one_document(tmp_path, capsys):
    assert main([*SMALL, "--verification", "token", "--json", "--out", str(tmp_path / "o")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["rule"] for row in document["runs"]] == ["sps", "lenience"]
    assert document["runs"][0]["kl_per_token"] == pytest.approx(0.0, abs=1e-12)


def test_a_text_of_the_users(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("so it goes, and so it went, and so it will go again. " * 10)
    options = ["--text", str(path), "--tokens", "5", "--rules", "sps", "--out", str(tmp_path / "o")]
    assert main(options) == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--pairs", "zipf"], "unknown pair 'zipf'"),
        (["--pairs", "random:state=3"], "unknown parameter 'state'; did you mean 'states'?"),
        (["--pairs", "random:states=1"], "states must be 2 to 400, got 1"),
        (["--drafts", "0"], "--drafts must be an integer of at least 1, got 0"),
        (["--verification", "tree"], "unknown verification 'tree'"),
        (["--costs", "-1"], "--costs must lie in [0, 1e+06], got -1.0"),
        (["--text", "nowhere.txt"], "No such file or directory: 'nowhere.txt'"),
        (["--pairs", "random:states=60", "--drafts", "8"], "take fewer drafts"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(options, told, tmp_path, capsys):
    assert main([*options, "--rules", "sps", "--out", str(tmp_path / "out")]) == 2
    errors = capsys.readouterr().err
    assert told in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_page_shows_what_the_command_prints(tmp_path, capsys):
    page = (Path(__file__).resolve().parents[3] / "docs/sequences.md").read_text(encoding="utf-8")
    line = re.search(r"python -m sim\.chain (.*--text-tokens 6)", page)[1]
    assert main([*line.split(), "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out.partition("written:")[0].rstrip()
    shown = re.search(r"<!-- chain -->\n```text\n(.*?)\n```", page, re.S)[1]
    assert shown == told


def test_the_python_of_the_page_runs():
    page = (Path(__file__).resolve().parents[3] / "docs/sequences.md").read_text(encoding="utf-8")
    exec(re.search(r"```python\n(.*?)```", page, re.S)[1], {})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--verification", "scaled"], "scaled is of frontier_corpus, which --rules does not name"),
        (["--verification", "scale"], "unknown verification 'scale'"),
        (["--text-tokens", "0"], "--text-tokens"),
        (["--text-tokens", "40"], "more than 200,000 texts"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(more, said, tmp_path, capsys):
    assert main([*SMALL, *more, "--out", str(tmp_path / "out")]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1

"""Two commands on one folder: the second is told who writes, and the first is as if alone."""

import json
from importlib import import_module

import pandas as pd
import pytest
from paused import paused

from real_models import record
from real_models.traces.reader import open_trace


def refused(capsys, main, *arguments):
    """The last line of a command that ends with status 2."""
    assert main([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_a_recording_beside_another_is_refused(tiny_folder, tiny_prompts, tmp_path, capsys):
    """By the same command, which would go on with it, and by one for another trace."""
    out, alone = tmp_path / "out", tmp_path / "alone"
    command = [
        "--verifier", tiny_folder, "--draft", "skip:1", "--prompts", tiny_prompts,
        "--positions", "4", "--device", "cpu",
    ]  # fmt: skip
    with paused("real_models.record", "real_models.record.score", *command, "--out", out) as first:
        for seed in (0, 1):
            said = refused(capsys, record.main, *command, "--out", out, "--seed", seed)
            assert f"out is being written by process {first.pid} on " in said
        first.communicate(5 * "\n")
        assert first.returncode == 0
    assert record.main([str(a) for a in (*command, "--out", alone)]) == 0
    assert len(open_trace(out).chunks) == 5
    for path in alone.glob("[!m.]*"):
        assert (out / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("name", "waits", "table"),
    [
        ("real_models.measure", "real_models.measure.run_cells", "tradeoff"),
        ("real_models.calibrate", "sim.calibrate.run_cells", "calibrated"),
    ],
)
def test_results_beside_others_are_refused(trace, tmp_path, capsys, name, waits, table):
    """By the same command, which resumes, and by one for other rules."""
    out, main = tmp_path / "out", import_module(name).main
    command = [trace, "--settings", "T=1", "--device", "cpu", "--out", out, "--rules", "lenience"]
    with paused(name, waits, *command) as first:
        for more in (["--resume"], ["cactus"]):
            said = refused(capsys, main, *command, *more)
            assert f"out is being written by process {first.pid} on " in said
        first.communicate("\n")
        assert first.returncode == 0
    assert set(pd.read_parquet(out / f"{table}.parquet")["rule"]) == {"lenience"}
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["arguments"]["rules"] == ["lenience"]

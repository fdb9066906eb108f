"""Calibration on a trace: the corpus of a trace is the measured one, kept or prepared anew."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from measured_traces import LABELS, PROMPTS, record, tables

from benchmarks.equal import STUDIED, calibrated_rows
from real_models import calibrate, measure
from real_models.laws.distributions import SamplingSettings
from real_models.measuring.corpus import trace_corpus
from real_models.measuring.parts import Resources
from real_models.traces.reader import open_trace
from sim.tables.grid import Setting
from sim.tables.target import Target
from sim.tables.tradeoff import COLUMNS
from theory import RULES, make_rule

RESOURCES = Resources("cpu", 1 << 20)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """The default folder of the results lies in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def corpus_of(trace, label, keep=1 << 30):
    return trace_corpus(open_trace(trace), SamplingSettings.parse(label), RESOURCES, keep=keep)


@pytest.mark.parametrize("label", LABELS)
def test_means_are_those_of_the_measurement(trace, finished, label):
    table = tables(finished)["tradeoff"]
    rows = table[table["pair"] == label]
    chosen = [Setting(row["rule"], row["parameter"], row["value"]) for _, row in rows.iterrows()]
    points = corpus_of(trace, label).points(chosen, "js")
    assert [p.acceptance for p in points] == pytest.approx(rows["acceptance"].tolist(), rel=1e-12)
    assert [p.realised for p in points] == pytest.approx(rows["js"].tolist(), rel=1e-12)


def test_rows_that_do_not_fit_are_prepared_again_and_give_the_same(trace):
    kept, fresh = (corpus_of(trace, "T=1", keep) for keep in (1 << 30, 0))
    assert isinstance(kept.batches, list)
    assert not isinstance(fresh.batches, list)
    asked = [Setting("cactus", "delta", 0.1), Setting("sps")]
    for _ in range(2):
        assert fresh.points(asked, "tv") == kept.points(asked, "tv")


def test_a_calibrated_trace_measures_as_calibrated(trace, tmp_path, capsys, tables_only):
    arguments = ["--rule", "cactus", "mentored", "--target", "js=0.02", "--settings", "T=1"]
    assert calibrate.main([str(trace), *arguments, "--device", "cpu", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["calibrated"]
    assert [row["rule"] for row in rows] == ["cactus", "mentored"]
    values = [f"{row['rule']}={row['value']!r}" for row in rows]
    measured = ["--rules", "cactus", "mentored", "--values", *values, "--settings", "T=1"]
    out = tmp_path / "measured"
    options = ["--device", "cpu", "--jobs", "1", "--out", str(out)]
    assert measure.main([str(trace), *measured, *options]) == 0
    table = pd.read_parquet(out / "tradeoff.parquet")
    pd.testing.assert_frame_equal(pd.DataFrame(rows)[list(COLUMNS)], table, rtol=1e-9)
    assert all(0.02 * (1 - 1e-3) <= row["js"] <= 0.02 for row in rows)


def test_rows_of_the_study_name_what_a_rule_is_made_with(trace):
    rows = calibrated_rows(open_trace(trace), "T=1", Target("js", 0.02))
    assert [row["rule"] for row in rows] == list(STUDIED)
    corpus = corpus_of(trace, "T=1")
    for row in rows:
        varied = RULES[row["rule"]].parameter or ""
        setting = Setting(row["rule"], varied, row["parameters"].get(varied, 0.0))
        assert setting.build() == make_rule(row["rule"], **row["parameters"])
        (point,) = corpus.points([setting], "js")
        assert (row["acceptance"], row["js"]) == pytest.approx(point, rel=1e-9)
        assert (row["js"] > 0.02 * (1 + 1e-9)) == (row["status"] == "missed")


def test_lines_are_those_of_every_setting(trace, capsys):
    assert calibrate.main([str(trace), "--rule", "sps", "lenience", "--target", "kl=0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if "tiny" in line]
    assert [label in head for label, head in zip(LABELS[:2], heads)] == [True, True]
    assert all("24 tokens, 15 positions: kl ≤ 0.1" in head for head in heads)
    assert len(lines) == 2 * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "kl"], "--target: expected MEASURE=LEVEL"),
        (["--rule", "nothing"], "unknown rule"),
        (["--settings", "T=-1"], "temperature must be"),
        (["--settings", "T=1", "T=1"], "given twice"),
        (["--memory-limit", "much"], "--memory-limit"),
        (["--device", "tpu"], "tpu"),
    ],
)
def test_mistakes_take_one_line(trace, arguments, message, capsys):
    assert calibrate.main([str(trace), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_an_unfinished_trace_is_told(tmp_path, capsys):
    folder = record(tmp_path, PROMPTS[:2])
    few = ["--rule", "sps", "--settings", "T=1", "--device", "cpu", "--json"]
    assert calibrate.main([str(folder), *few]) == 0
    said = capsys.readouterr()
    assert "The trace is not finished: 4 prompts were asked for." in said.err
    assert json.loads(said.out)["calibrated"][0]["positions"] == 8


def test_output_that_nobody_reads_any_more_is_no_mistake(trace, tmp_path):
    """As with `… --json | head -1`: no message, whatever was left to say."""
    command = [sys.executable, "-m", "real_models.calibrate", str(trace), "--rule", "sps", "--json"]
    command += ["--out", str(tmp_path)]
    root, pipe = Path(__file__).parents[2], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, cwd=root) as process:
        process.stdout.close()
        assert process.stderr.read().endswith(b"calibrate: 2 cells\n")
    assert process.returncode == 1


def test_a_folder_without_a_trace_is_refused(tmp_path, capsys):
    assert calibrate.main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
    empty = record(tmp_path / "empty", prompts=[])
    assert calibrate.main([str(empty)]) == 2
    assert "no finished prompt" in capsys.readouterr().err

"""Calibration on lists at T = 1: what keeps the target for certain, and what surely misses it."""

import json

import pandas as pd
import pytest
from measured_traces import listed_trace

from real_models import calibrate, measure

COLUMN = {"kl=0.05": "kl_output_verifier", "tv=0.05": "tv"}
RULES = ["cactus", "lenience", "frontier", "sps", "typical"]


def rows_of(folder, capsys, *arguments):
    found = calibrate.main([str(folder), *arguments, "--device", "cpu", "--json"])
    assert found == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def listed(trace, tmp_path):
    return listed_trace(trace, tmp_path / "listed", 8)


@pytest.mark.parametrize("target", ["kl=0.05", "tv=0.05", "acceptance=0.8"])
def test_the_exact_value_lies_between_the_two(trace, listed, tmp_path, capsys, target):
    asked = ["--rules", *RULES[:3], "--target", target, "--settings", "T=1"]
    whole = rows_of(trace, capsys, *asked, "--out", str(tmp_path / "whole"))["calibrated"]
    found = rows_of(listed, capsys, *asked, "--out", str(tmp_path / "found"))
    assert set(found) == {"target", "bounded"}
    for exact, row in zip(whole, found["bounded"]):
        assert row["rule"] == exact["rule"]
        assert row["status"] == "met"
        if row["beyond"] is None:
            continue
        ends = sorted([row["value"], row["beyond"]])
        assert ends[0] * (1 - 2e-3) <= exact["value"] <= ends[1] * (1 + 2e-3)
        if target.startswith("acceptance"):
            assert row["acceptance_lower"] >= 0.8 - 1e-9
        else:
            assert row[f"{COLUMN[target]}_upper"] <= 0.05 + 1e-9


@pytest.mark.parametrize("target", COLUMN)
def test_where_the_value_is_certain_the_whole_rows_keep_the_target(
    trace, listed, tmp_path, capsys, target
):
    """At the certain value whole rows lie within the bounds; behind the other they miss."""
    asked = ["--target", target, "--settings", "T=1", "--rules", "cactus", "lenience", "frontier"]
    for row in rows_of(listed, capsys, *asked, "--out", str(tmp_path / "found"))["bounded"]:
        kept, missed = (
            exact_at(trace, row["rule"], value, tmp_path)
            for value in (row["value"], row["beyond"] * further(row))
        )
        for name in ("acceptance", COLUMN[target]):
            assert row[f"{name}_lower"] <= kept[name] + 1e-9
            assert kept[name] <= row[f"{name}_upper"] + 1e-9
        assert kept["acceptance"] <= row["best_acceptance"] + 1e-9
        assert kept[COLUMN[target]] <= 0.05 + 1e-9 < missed[COLUMN[target]]


def further(row):
    """A factor that goes a little beyond: laxer for a divergence."""
    return 1.01 if row["beyond"] > row["value"] else 0.99


def exact_at(trace, rule, value, tmp_path):
    """The measured row of one value on whole rows."""
    out = tmp_path / "measured"
    asked = ["--rules", rule, "--values", repr(value), "--settings", "T=1", "--jobs", "1"]
    assert measure.main([str(trace), *asked, "--device", "cpu", "--out", str(out), "--json"]) == 0
    return pd.read_parquet(out / "tradeoff.parquet").iloc[0]


def test_open_and_decided_settings_go_together(listed, tmp_path, capsys):
    out = tmp_path / "both"
    asked = ["--rules", *RULES, "--settings", "T=1", "T=1 top-k 4", "--out", str(out)]
    found = rows_of(listed, capsys, *asked)
    assert [row["rule"] for row in found["calibrated"]] == RULES
    assert [row["rule"] for row in found["bounded"]] == RULES
    for name in ("calibrated", "bounded"):
        assert len(pd.read_parquet(out / f"{name}.parquet")) == len(RULES)
    rows_of(listed, capsys, "--rules", "sps", "--settings", "T=1", "--out", str(out))
    assert not (out / "calibrated.parquet").exists()


def test_what_is_printed_names_both_ends(listed, tmp_path, capsys):
    asked = ["--rules", "lenience", "typical", "--settings", "T=1", "--out", str(tmp_path / "out")]
    assert calibrate.main([str(listed), *asked, "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "; sps accepts 0." in said
    assert "keeps it for certain" in said
    assert " … " in said


@pytest.mark.parametrize(
    ("rule", "value", "target", "said"),
    [
        ("typical", "0.3", "kl=0.0001", "misses it whatever the rest: at least 0."),
        ("sps", None, "acceptance=1", "misses it whatever the rest: at most 0."),
        ("sps", None, "kl=0.05", "has no parameter and gives 0"),
    ],
)
def test_what_cannot_be_kept_is_said(listed, tmp_path, capsys, rule, value, target, said):
    values = ["--values", f"{rule}={value}"] if value else []
    asked = ["--rules", rule, *values, "--target", target, "--settings", "T=1"]
    (row,) = rows_of(listed, capsys, *asked, "--out", str(tmp_path / "out"))["bounded"]
    assert row["note"].startswith(said)

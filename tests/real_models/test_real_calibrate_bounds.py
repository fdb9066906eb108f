"""Calibration on lists at T = 1: what keeps the target for certain, and what surely misses it."""

import json
import math
from dataclasses import replace

import pandas as pd
import pytest
from measured_traces import listed_trace

from real_models import calibrate
from real_models.measuring.calibrated_bounds import sentence
from sim.tables.calibration import Choice
from sim.tables.grid import Setting
from sim.tables.target import Point, Target

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
        side = "acceptance_lower" if target.startswith("acc") else f"{exact_column(target)}_upper"
        level = float(target.split("=")[1])  # a bound may jump over it
        assert (
            row[side] >= level * (1 - 1e-9) if side[0] == "a" else row[side] <= level * (1 + 1e-9)
        )


def exact_column(target):
    return {"kl": "kl_output_verifier", "tv": "tv"}[target.split("=")[0]]


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


def test_a_bound_without_an_end_is_said():
    setting, target = Setting("typical", "epsilon", 0.1), Target("kl", 0.05)
    missed = Choice(setting, Point(0.9, math.inf), "missed", True, 3)
    assert sentence(missed, target).startswith("its bounds say nothing")
    assert (
        sentence(replace(missed, point=Point(0.9, 0.2)), target) == "no value gives less than 0.2"
    )

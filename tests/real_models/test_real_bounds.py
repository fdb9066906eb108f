"""Bounds on traces of lists: measured at T = 1, beside what the whole rows give."""

import json

import numpy as np
import pandas as pd
import pytest
from measured_traces import V, listed_trace, record

from real_models import measure
from real_models.laws.distributions import SamplingSettings
from real_models.measuring.bounds import BOUNDED, SIDES, bound_part, left_open, partial_rows
from real_models.measuring.parts import Resources, make_parts, measure_part
from real_models.models.pair import load_pair
from real_models.prompts import Prompt
from real_models.record import record as recorded
from real_models.record import trace_header
from real_models.traces.listing import Listed
from real_models.traces.reader import open_trace
from real_models.traces.writer import TraceWriter
from sim.tables.grid import settings
from sim.tables.tradeoff import KEYS, MEASURES
from theory import RULES, make_rule, one_step, partial_law

PLAIN = SamplingSettings()
ALL = settings(list(RULES), None)
RESOURCES = Resources("cpu", 1 << 28)
FEW = ["--rules", "sps", "cactus", "typical", "--values", "0.3", "--device", "cpu", "--jobs", "1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return record(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def lists(whole, tmp_path_factory):
    return listed_trace(whole, tmp_path_factory.mktemp("lists"))


def by_position(frame, count):
    return frame.to_numpy().reshape(count, -1, len(MEASURES))


def assert_within(lower, value, upper):
    slack = 1e-9 + 1e-7 * np.where(np.isfinite(value), np.abs(value), 0.0)
    assert not np.isnan(lower).any()
    assert not np.isnan(upper).any()
    with np.errstate(invalid="ignore"):
        assert np.all((lower - slack <= value) | (lower == value))
        assert np.all((value <= upper + slack) | (value == upper))


def assert_bounded(whole, lists, chosen):
    """The law of whole rows lies within the bounds of the lists, position by position."""
    traces = [open_trace(folder) for folder in (whole, lists)]
    exact, bounded = (make_parts(trace, [PLAIN], chosen, RESOURCES) for trace in traces)
    assert exact.keys() == bounded.keys()
    columns = [MEASURES.index(name) for name in BOUNDED]
    for name in exact:
        measured, bounds = measure_part(*exact[name]), bound_part(*bounded[name])
        pd.testing.assert_frame_equal(measured["positions"], bounds["positions"])
        count = len(measured["positions"])
        lower, value, upper = (
            by_position(frame, count)[:, :, columns]
            for frame in (bounds["lower"], measured["measured"], bounds["upper"])
        )
        assert_within(lower, value, upper)
        acceptance = columns.index(MEASURES.index("acceptance"))
        open_by = upper[..., acceptance] - lower[..., acceptance]
        assert np.any(open_by > 1e-3)  # something is left open


def test_every_setting_of_every_rule_lies_within_its_bounds_at_every_position(whole, lists):
    assert_bounded(whole, lists, ALL)


@pytest.mark.model
def test_rows_of_a_real_pair_lie_within_the_bounds_of_their_100_likeliest_tokens(tmp_path):
    pair = load_pair("smollm2-skip3")
    prompts = [Prompt("Rivers shape the land in two ways.", "a"), Prompt("def add(a, b):", "b")]
    facts = {"contexts": "verifier", "settings": PLAIN, "seed": 0, "positions": 6}
    writer = TraceWriter(tmp_path / "whole", trace_header(pair, "", len(prompts), **facts))
    recorded(pair, prompts, writer, settings=PLAIN)
    few = tuple(setting for rule in RULES for setting in settings([rule], None)[::5])
    assert_bounded(tmp_path / "whole", listed_trace(tmp_path / "whole", tmp_path / "l", 100), few)


def test_measure_tells_bounds_at_the_open_setting_and_the_law_at_the_closed_one(
    whole, lists, tmp_path, capsys
):
    both = ["--settings", "T=1", "T=1 top-k 8"]
    assert measure.main([str(lists), *FEW, *both, "--out", str(tmp_path / "lists")]) == 0
    assert "Bounds at 'T=1', for every way to spread" in capsys.readouterr().out
    assert measure.main([str(whole), *FEW, *both, "--out", str(tmp_path / "whole")]) == 0
    exact = pd.read_parquet(tmp_path / "whole" / "tradeoff.parquet")
    closed = pd.read_parquet(tmp_path / "lists" / "tradeoff.parquet")
    assert set(closed["pair"]) == {"T=1 top-k 8"}
    bounds = pd.read_parquet(tmp_path / "lists" / "bounds.parquet")
    joined = bounds.merge(exact, on=list(KEYS))
    assert len(joined) == len(bounds) == len(closed) == 3
    for name in BOUNDED:
        assert_within(
            *(joined[column].to_numpy() for column in (f"{name}_lower", name, f"{name}_upper"))
        )
    best = joined[[f"frontier_acceptance_{side}" for side in SIDES]].to_numpy()
    assert np.all(best[:, 0] <= joined["frontier_acceptance"] + 1e-6)
    assert np.all(best[:, 1] >= joined["frontier_acceptance"] - 1e-6)
    report = (tmp_path / "lists" / "report.html").read_text(encoding="utf-8")
    assert "Bounds where the rest is not listed" in report
    assert (tmp_path / "lists" / "bounds.png").stat().st_size > 10_000


def test_an_open_setting_alone_leaves_bounds_and_no_table(lists, tmp_path, capsys):
    out = tmp_path / "out"
    asked = [str(lists), *FEW, "--settings", "T=1", "--out", str(out), "--json"]
    assert measure.main(asked) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["bounds"]) == 3
    assert sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) == [
        "bounds.parquet", "bounds.png", "bounds_frontier.parquet", "manifest.json",
    ]  # fmt: skip
    first = (out / "bounds.parquet").read_bytes()
    assert measure.main([*asked, "--resume"]) == 0
    assert (out / "bounds.parquet").read_bytes() == first


def test_a_span_needs_a_setting_that_is_decided(lists, tmp_path, capsys):
    span = ["--span", "3", "4", "--settings", "T=1", "--out", str(tmp_path / "out")]
    assert measure.main([str(lists), *FEW, *span]) == 2
    assert "--span needs a setting that the lists decide, not 'T=1'" in capsys.readouterr().err


def test_whole_rows_leave_nothing_open(whole, tmp_path):
    assert left_open(open_trace(whole), [PLAIN]) == []
    everything = listed_trace(whole, tmp_path, V)
    assert left_open(open_trace(everything), [PLAIN]) == []


def test_a_list_that_sums_to_more_than_1_by_rounding_is_not_taken_for_the_whole_row():
    p = np.array([[0.6, 0.2, 0.1, 0.1]])
    q = np.array([[1e-9, 0.9, 0.09, 0.01 - 1e-9]])
    lists = []
    for rows, count in ((p, 4), (q, 3)):
        tokens = np.argsort(-rows, axis=-1)[:, :count]
        told = np.log(np.take_along_axis(rows, tokens, axis=-1)).astype(np.float32) + 1e-7
        lists.append(
            Listed(np.append(tokens, [[-1]], axis=-1), np.append(told, [[-np.inf]], axis=-1), 4)
        )
    assert lists[1].mass[0] > 1
    rule = make_rule("mentored", level=3.0)
    upper = partial_law(rule, partial_rows(*lists)).acceptance.upper[0]
    assert upper >= one_step(rule, p, q).acceptance[0] - 1e-5

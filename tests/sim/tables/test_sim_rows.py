"""Calibration on arrays of one's own: the same numbers as by hand, and mistakes named by row."""

import math

import numpy as np
import pytest

from sim.pairs import generators, make_family
from sim.tables import calibrate_rows
from sim.tables.target import Target
from sim.tables.tradeoff import cluster_labels
from theory import CorpusFrontier, Pair, divergence, make_rule, one_step


def rows(count=40, vocab=64, family="gaussian"):
    batch = make_family(family).sample(count, vocab, next(generators(3, 1)))
    return batch.p, batch.q


def test_the_value_that_is_found_gives_the_divergence_that_was_asked_for():
    p, q = rows()
    found = calibrate_rows(p, q, ["cactus", "lenience", "sps"], "kl=0.05").set_index("rule")
    for name in ("cactus", "lenience"):
        row = found.loc[name]
        law = one_step(make_rule(name, **{row["parameter"]: row["value"]}), p, q)
        spent = float(np.mean(divergence("kl", law.output, q)))
        assert 0.05 * (1 - 3e-3) <= spent <= 0.05
        assert row["kl_output_verifier"] == pytest.approx(spent, rel=1e-9)
        assert row["acceptance"] == pytest.approx(float(np.mean(law.acceptance)), rel=1e-9)
        assert (row["status"], row["positions"], row["vocab"]) == ("met", 40, 64)
    corpus = CorpusFrontier("kl")
    corpus.add(Pair.prepare(p, q))
    best = corpus.acceptance(found.loc["cactus", "kl_output_verifier"])
    assert found.loc["cactus", "best_acceptance"] == pytest.approx(best, rel=1e-9)
    assert found.loc["sps", "status"] == "slack"


def test_rows_may_be_of_another_library_and_more_than_a_batch():
    torch = pytest.importorskip("torch")
    p, q = rows(count=30, vocab=4096, family="zipf")
    asked = (["lenience"], Target("js", 0.01))
    mine = calibrate_rows(p, q, *asked)
    theirs = calibrate_rows(torch.asarray(p), torch.asarray(q), *asked)
    assert mine["positions"].item() == 30
    assert theirs["value"].item() == pytest.approx(mine["value"].item(), rel=1e-6)
    assert 0.01 * (1 - 3e-3) <= mine["js"].item() <= 0.01


def test_errors_are_clustered_by_the_labels_that_are_given():
    p, q = rows(count=6)
    p, q = np.repeat(p, 5, axis=0), np.repeat(q, 5, axis=0)
    labels = np.repeat(np.arange(6), 5)
    alone = calibrate_rows(p[::5], q[::5], ["lenience"], "kl=0.02")["acceptance_se"].item()
    mine = calibrate_rows(p, q, ["lenience"], "kl=0.02", clusters=labels)["acceptance_se"].item()
    naive = calibrate_rows(p, q, ["lenience"], "kl=0.02")["acceptance_se"].item()
    assert mine == pytest.approx(alone, rel=1e-3)
    assert naive < 0.6 * mine


def test_cascades_look_at_the_rows_before_temperature():
    p, q = rows()
    raw = rows(family="zipf")
    plain, given = (
        calibrate_rows(p, q, ["cascade_chow"], "tv=0.1", **more)["acceptance"].item()
        for more in ({}, {"p_raw": raw[0], "q_raw": raw[1]})
    )
    assert plain != given


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": np.full(64, 1 / 64)}, r"p must be rows \[R, V\] with R ≥ 1, got the shape \(64,\)"),
        ({"p": np.zeros((0, 64)), "q": np.zeros((0, 64))}, "got the shape \\(0, 64\\)"),
        ({"clusters": ["a", "b"]}, "clusters must label each of the 40 rows, got 2"),
        ({"rules": ["cactos"]}, "did you mean 'cactus'"),
        ({"target": "kl"}, "^target: expected MEASURE=LEVEL, got 'kl'"),
        ({"target": "kl=-1"}, "^target: target kl_output_verifier must lie in"),
        ({"tolerance": 0}, "tolerance must lie in"),
        ({"grid": {"cactus": [-1.0]}}, "delta must lie in"),
    ],
)
def test_mistakes_are_named(change, message):
    p, q = rows()
    asked = {"p": p, "q": q, "rules": ["cactus"], "target": "kl=0.05"} | change
    with pytest.raises(ValueError, match=message):
        calibrate_rows(**asked)


def test_a_bad_row_is_named_by_its_own_number():
    p, q = rows(count=35, vocab=4096, family="zipf")
    q = q.copy()
    q[33, 7] = np.nan
    with pytest.raises(ValueError, match="q row 33"):
        calibrate_rows(p, q, ["cactus"], "kl=0.05")


def test_labels_of_a_tensor_are_those_of_a_list():
    torch = pytest.importorskip("torch")
    labels = [0, 0, 1, 1, 2, 2]
    assert cluster_labels(torch.tensor(labels), 6) == labels
    assert cluster_labels(list(torch.tensor(labels)), 6) == labels
    assert cluster_labels(np.array(labels, dtype=np.int8), 6) == labels
    assert len(set(cluster_labels(None, 6))) == 6


@pytest.mark.parametrize(
    "clusters",
    [
        {0: "a", 1: "a"},
        ["a", math.nan],
        np.array([1.0, math.nan]),
        [[0], [1]],
        np.array([[0], [1]]),
        np.ma.masked_array([0, 1], [True, False]),
        "ab",
        [0],
    ],
)
def test_what_is_no_label_is_refused(clusters):
    with pytest.raises(ValueError, match="clusters"):
        cluster_labels(clusters, 2)

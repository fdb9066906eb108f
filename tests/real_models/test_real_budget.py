"""The budget of a text on a trace: what is told, what decode is handed, and mistakes."""

import json

import pytest

from real_models import budget
from real_models.decoding.verifying.placed_rules import PlacedRules


def told(trace, capsys, *more):
    assert budget.main([str(trace), "--settings", "T=1", "--device", "cpu", *more]) == 0
    return capsys.readouterr().out


def test_every_way_spends_the_budget(trace, capsys):
    more = ("--kl-per-token", "0.03", "--draft-tokens", "4", "--rules", "sps", "cactus", "frontier")
    found = json.loads(told(trace, capsys, *more, "--json"))
    assert (found["kl_per_token"], found["draft_tokens"]) == (0.03, 4)
    sps, *ways = found["found"][0]["ways"]
    assert sps["kl_per_token"] == 0
    assert all(0.03 * (1 - 1e-3) <= way["kl_per_token"] <= 0.03 * (1 + 1e-9) for way in ways)
    assert max(ways, key=lambda way: way["tokens_per_round"]) == ways[-1]
    assert len(ways[-1]["values"]) == 4


def test_what_decode_is_handed_is_the_schedule(trace, capsys):
    lines = told(trace, capsys, "--draft-tokens", "3").splitlines()
    options = lines[-1].split("schedule: ")[1].split()
    assert options[:3] == ["--rule", "frontier_corpus", "--multiplier"]
    assert options[4:] == ["--draft-tokens", "3"]
    values = [float(value) for value in options[3].split(",")]
    assert len(PlacedRules.make("frontier_corpus", {"multiplier": values}).rules) == 3
    assert lines[-2].split()[1] == f"multiplier={options[3]}"


def test_what_is_far_from_the_budget_is_said(trace, capsys):
    lines = told(trace, capsys, "--kl-per-token", "500", "--draft-tokens", "9").splitlines()
    assert lines[3].split()[0] == "frontier"
    assert lines[3].endswith(("no value comes nearer", "cannot spend more"))
    assert lines[5].split()[1].count(",") == 8  # eight values and a sign that there are more
    assert lines[-1].split()[-3].count(",") == 8


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--kl-per-token", "0"], "--kl-per-token must lie in (0, 1000]"),
        (["--draft-tokens", "0"], "--draft-tokens must be"),
        (["--rules", "cactos"], "'cactos'"),
        (["--settings", "T=1", "T=1"], "given twice"),
    ],
)
def test_a_mistake_is_one_line(trace, capsys, more, said):
    assert budget.main([str(trace), *more]) == 2
    errors = capsys.readouterr().err.splitlines()[-1]
    assert errors.startswith("python -m real_models.budget: error: ")
    assert said in errors

"""Calibration: identities first, then curves that fall, jump, turn round or stay out of reach."""

import json
import math

import numpy as np
import pytest

from sim.calibrate import main
from sim.pairs.families import make_family
from sim.tables.calibration import MET, MISSED, SLACK, _monotone, calibrate
from sim.tables.cells import make_sources, prepared_batches
from sim.tables.corpus import CALIBRATED, Corpus
from sim.tables.grid import Setting
from sim.tables.target import Point, Target
from sim.tables.tradeoff import COLUMNS, Tradeoff
from theory import RULES

KL = "kl_output_verifier"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """The default folder of the results lies in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def corpus():
    """Twelve rows of 64 tokens, four clusters of three."""
    (source,) = make_sources([make_family("zipf", noise=1.0)], [64], 12, 0)
    pairs = list(prepared_batches(source))
    assert [pair.p.shape for pair in pairs] == [(12, 64)]
    return Corpus("zipf", "", 64, [(pairs[0], list("aaabbbcccddd"))])


def found(corpus, rule, target, **options):
    (choice,) = calibrate(lambda s: corpus.points(s, target.measure), [rule], target, **options)
    return choice


def curve(function):
    """An evaluation of made-up rules: value → (acceptance, realised); counts its calls."""
    return lambda settings: [Point(*function(setting.value)) for setting in settings]


# --- identities -------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1e-3, 0.05, 0.0123])
def test_the_frontier_realises_its_level(corpus, level):
    choice = found(corpus, "frontier", Target("kl", level), tolerance=1e-6)
    assert choice.status == MET
    assert choice.point.realised == pytest.approx(level, rel=2e-6)
    assert choice.setting.value == pytest.approx(level, rel=2e-6)


@pytest.mark.parametrize(("rule", "strict"), [("lenience", 1.0), ("interpolation", 0.0)])
def test_no_divergence_is_the_strict_value(corpus, rule, strict):
    choice = found(corpus, rule, Target("kl", 0.0))
    assert choice.setting.value == pytest.approx(strict, abs=1e-6)
    assert choice.point.realised <= 1e-9


@pytest.mark.parametrize("rule", RULES)
def test_any_divergence_is_the_laxest_value(corpus, rule):
    choice = found(corpus, rule, Target("js", math.inf))
    assert choice.status == SLACK
    grid = found(corpus, rule, Target("acceptance", 1.0))
    assert choice.point.acceptance == grid.point.acceptance


def test_sps_has_nothing_to_choose(corpus):
    choice = found(corpus, "sps", Target("kl", 0.05))
    assert (choice.setting, choice.point.realised, choice.status) == (Setting("sps"), 0.0, SLACK)
    assert "no parameter" in choice.sentence(Target("kl", 0.05))


# --- every rule, on rows ----------------------------------------------------------------------


@pytest.mark.parametrize("measure", ["js", "kl_verifier_output"])
@pytest.mark.parametrize("rule", RULES)
def test_a_divergence_is_never_exceeded_unless_the_choice_says_so(corpus, rule, measure):
    target = Target(measure, 0.03)
    choice = found(corpus, rule, target)
    (again,) = corpus.points([choice.setting], measure)
    assert again == choice.point
    assert (again.realised <= 0.03 * (1 + 1e-9)) == (choice.status != MISSED)


@pytest.mark.parametrize("rule", ["cactus", "lenience", "mentored", "fuzzy", "top_k", "ears"])
def test_no_laxer_value_stays_within_the_target(corpus, rule):
    target = Target("js", 0.05)
    choice = found(corpus, rule, target)
    dense = {
        "top_k": np.arange(1, 65),
        "fuzzy": np.geomspace(1e-4, 2, 800),
        "ears": np.linspace(0, 1, 300),
        "lenience": np.geomspace(1e-3, 1, 300),
        "mentored": np.geomspace(1e-3, 1, 40),
    }.get(rule, np.geomspace(1e-5, 5, 300))
    asked = [Setting(rule, RULES[rule].parameter, float(value)) for value in dense]
    within = [p.acceptance for p in corpus.points(asked, "js") if p.realised <= 0.05]
    best = max(within, default=None)
    if best is None:
        assert choice.status == MISSED
    else:
        assert choice.point.acceptance >= best * (1 - 2e-3)


def test_an_acceptance_is_the_least_that_is_enough(corpus):
    for rule in ("cactus", "lenience", "cascade_chow"):
        choice = found(corpus, rule, Target("acceptance", 0.8), tolerance=1e-4)
        assert choice.status == MET
        assert choice.point.acceptance >= 0.8 * (1 - 1e-9)
        if rule != "cascade_chow":  # whose acceptance jumps
            assert choice.point.acceptance == pytest.approx(0.8, rel=2e-4)


def test_typical_moves_both_thresholds(corpus):
    choice = found(corpus, "typical", Target("acceptance", 0.7))
    assert choice.setting.parameters["alpha"] == math.sqrt(choice.setting.value)


# --- curves -----------------------------------------------------------------------------------


def test_rising_and_falling_curves_meet_the_target_from_below():
    rising = calibrate(curve(lambda x: (x / 9, x**2)), ["cactus"], Target("kl", 0.3))[0]
    assert rising.setting.value == pytest.approx(math.sqrt(0.3), rel=1e-3)
    falling = calibrate(curve(lambda x: (1 - x, 1 - x)), ["lenience"], Target("kl", 0.3))[0]
    assert falling.setting.value == pytest.approx(0.7, rel=1e-3)
    for choice in (rising, falling):
        assert 0.3 * (1 - 1e-3) <= choice.point.realised <= 0.3
        assert choice.monotone
        assert choice.evaluations < 30


def test_a_jump_is_taken_from_the_side_that_keeps_the_target():
    step = curve(lambda x: (x, 0.1 if x < 0.37 else math.inf))
    (choice,) = calibrate(step, ["interpolation"], Target("kl", 0.3))
    assert choice.point.realised == 0.1
    assert 0.37 * (1 - 2e-3) < choice.setting.value < 0.37
    (low,) = calibrate(step, ["interpolation"], Target("kl", 0.05))
    assert (low.status, low.point.realised) == (MISSED, 0.1)
    assert "no value gives less than 0.1" in low.sentence(Target("kl", 0.05))


def test_whole_numbers_stay_whole():
    (choice,) = calibrate(curve(lambda k: (k / 300, k / 100)), ["top_k"], Target("kl", 1.379))
    assert choice.setting.value == 137.0
    assert choice.setting.build().k == 137


def test_a_flat_curve_is_met_or_missed_as_a_whole():
    flat = curve(lambda x: (0.5, 0.2))
    (met,) = calibrate(flat, ["cactus"], Target("kl", 0.3))
    (missed,) = calibrate(flat, ["cactus"], Target("kl", 0.1))
    assert (met.status, missed.status) == (SLACK, MISSED)
    assert "no value gives more than 0.2" in met.sentence(Target("kl", 0.3))


def test_a_curve_that_turns_round_gives_its_best_crossing_and_says_so():
    # Within 0.01 on two sides of a hill: below 0.1, and above 0.9, where more is accepted.
    hill = curve(lambda x: (x, x * (1 - x) / 9))
    (choice,) = calibrate(hill, ["interpolation"], Target("kl", 0.01), tolerance=1e-5)
    assert choice.setting.value == 1.0
    assert not choice.monotone
    assert "not monotone" in choice.sentence(Target("kl", 0.01))
    # The same hill where the middle accepts most, and its left side more than its right one.
    bent = curve(lambda x: (x if x < 0.5 else 0.8 * (1 - x), x * (1 - x) / 9))
    (choice,) = calibrate(bent, ["interpolation"], Target("kl", 0.01), tolerance=1e-5)
    assert choice.setting.value == pytest.approx(0.1, rel=1e-4)


def test_values_far_beyond_the_grid_are_tried_where_the_grid_does_not_reach():
    (choice,) = calibrate(curve(lambda x: (x, x)), ["cactus"], Target("kl", 50.0))
    assert (choice.status, choice.setting.value) == (MET, pytest.approx(50, rel=1e-3))
    (choice,) = calibrate(curve(lambda x: (x, x)), ["cactus"], Target("kl", 2e-6))
    assert choice.setting.value == pytest.approx(2e-6, rel=1e-3)


def test_given_values_replace_the_grid():
    asked = []

    def evaluate(settings):
        asked.extend(setting.value for setting in settings)
        return [Point(setting.value, setting.value) for setting in settings]

    calibrate(evaluate, ["interpolation"], Target("kl", 0.5), grid={"interpolation": [0.4, 0.6]})
    assert asked[:2] == [0.4, 0.6]
    assert all(0.4 <= value <= 0.6 for value in asked)


# --- the table --------------------------------------------------------------------------------


def test_the_table_is_the_tidy_one_and_no_rule_is_above_the_best(corpus):
    target = Target("js", 0.02)
    choices = calibrate(lambda s: corpus.points(s, "js"), list(RULES), target)
    table = corpus.table(choices, target)
    assert tuple(table.columns) == (*COLUMNS, *CALIBRATED)
    assert (table["acceptance"] <= table["best_acceptance"] + 1e-7).all()
    assert (table["share"].dropna() <= 1 + 1e-6).all()
    tradeoff = Tradeoff([choice.setting for choice in choices], "zipf", "", 64)
    for pair, labels in corpus.batches:
        tradeoff.add(pair, labels)
    for name in COLUMNS:
        assert table[name].tolist() == tradeoff.rows()[name].tolist()
    sps = table[table["rule"] == "sps"].iloc[0]
    assert sps["acceptance"] == sps["strict_acceptance"]
    assert np.isnan(sps["share"])


def test_the_best_rule_has_the_whole_share_on_one_row():
    (source,) = make_sources([make_family("zipf", noise=1.0)], [64], 1, 0)
    single = Corpus("zipf", "", 64, [(pair, ["a"]) for pair in prepared_batches(source)])
    target = Target("kl", 0.02)
    choices = calibrate(lambda s: single.points(s, KL), ["frontier", "cascade_chow"], target)
    table = single.table(choices, target)
    assert table["share"].iloc[0] == pytest.approx(1.0, abs=1e-4)
    # A cascade emits p or q, on a single row q: nothing can be gained at no divergence.
    assert table["acceptance"].iloc[1] == pytest.approx(table["best_acceptance"].iloc[1])
    assert np.isnan(table["share"].iloc[1])


# --- mistakes, and the command line -------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kl", "--target: expected MEASURE=LEVEL"),
        ("tvv=0.1", "--target: unknown measure of the target 'tvv'; did you mean 'tv'"),
        ("kl=-1", "--target: target kl_output_verifier must lie in"),
        ("js=nan", "--target: target js must lie in"),
        ("acceptance=1.5", "--target: target acceptance must lie in"),
        ("kl=much", "--target: 'kl=much': expected a number, got 'much'"),
    ],
)
def test_a_bad_target_is_refused_by_name(text, message, capsys):
    with pytest.raises(ValueError, match="--target"):
        Target.parse(text)
    assert main(["--target", text]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rule", "catcus"], "did you mean 'cactus'"),
        (["--values", "cactus=-1"], "--values"),
        (["--tolerance", "0"], "--tolerance must lie in"),
        (["--rows", "0"], "--rows"),
        (["--pairs", "zapf"], "did you mean 'zipf'"),
    ],
)
def test_other_mistakes_take_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan, 2.0])
def test_a_tolerance_out_of_range_is_refused(tolerance):
    with pytest.raises(ValueError, match="tolerance"):
        calibrate(curve(lambda x: (x, x)), ["cactus"], Target("kl", 1.0), tolerance=tolerance)


def test_names_of_theory_and_short_names_are_one_measure():
    assert {Target(name, 1).measure for name in ("kl", KL)} == {KL}
    assert {Target(name, 1).measure for name in ("js", "jensen_shannon")} == {"js"}
    assert Target("reverse_kl", 0.5).name == "reverse_kl ≤ 0.5"
    assert Target("acceptance", 0.9).kind == "kl"


SMALL = ["--rule", "cactus", "sps", "--rows", "4", "--vocab", "32", "--target", "kl=0.02"]


def test_the_command_prints_one_line_per_rule(capsys):
    assert main(SMALL) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "zipf" in lines[0]
    assert "kl ≤ 0.02" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["rule", "cactus", "sps"]


def test_json_is_one_document_with_every_source(capsys):
    assert main([*SMALL, "--pairs", "zipf", "gaussian", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["target"] == {"measure": KL, "level": 0.02}
    rows = document["calibrated"]
    assert [(row["source"], row["rule"]) for row in rows] == [
        *(("zipf", rule) for rule in ("cactus", "sps")),
        *(("gaussian", rule) for rule in ("cactus", "sps")),
    ]
    for row in rows:
        assert row["kl_output_verifier"] <= 0.02 * (1 + 1e-9)
        assert row["acceptance"] <= row["best_acceptance"] + 1e-7


def test_a_divergence_that_becomes_infinite_rises():
    assert _monotone([0.0, 0.1, math.inf, math.inf])
    assert _monotone([math.inf, math.inf, 0.2])
    assert not _monotone([0.0, math.inf, 0.1])

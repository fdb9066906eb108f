"""Broken on purpose: each wrong sign, factor or order of arguments must make a fast test fail.

A mutation replaces one snippet in a copy of the package and runs checks on the copy. A snippet that
is no longer in the code, or no longer there once, fails a test of its own: write it anew.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = "tests/theory"
QUICK = (
    "golden.py",
    "divergences.py::test_a_divergence_is_its_textbook_formula",
    "optimum.py::test_gamma_and_complement_lie_in_every_certified_interval",
    "laws.py::test_acceptance_and_recovery_are_those_of_the_plain_definition",
)
THOROUGH = (
    *QUICK,
    "divergences.py::test_near_equal_rows_lose_no_digits",
    "divergences.py::test_the_conventions_at_zeros",
    "divergences.py::test_a_divergence_is_accurate_on_both_sides_of_every_change_of_formula",
    "divergences.py::test_the_slope_is_the_derivative_of_the_summand",
    "divergences.py::test_the_two_point_form_is_the_divergence_of_two_tokens",
    "optimum.py::test_second_order_is_the_published_expression",
    "laws.py::test_a_law_on_thirty_tokens",
    "frontier.py::test_the_level_is_used_up_unless_everything_possible_is_accepted",
    "frontier.py::test_one_multiplier_is_shared_by_all_positions",
    "merging.py::test_long_rows_need_no_sort_and_lose_no_digits",
    "merging.py::test_a_merged_row_has_the_law_of_the_sorted_one",
    "merging.py::test_what_may_not_be_accepted_is_not",
    "merging.py::test_what_is_surely_kept_is_kept",
    "merging.py::test_a_decoder_is_told_of_every_candidate_what_the_target_says",
    "frontier.py::test_a_faint_verifier_token_does_not_hide_the_root",
    "frontier.py::test_rows_with_all_their_mass_apart_use_up_the_level",
    "merging.py::test_a_merged_token_far_from_the_solution_misleads_nobody",
    "bracket.py",
)

# What the code says, and what it must not say. The first ones are part of every run.
ALWAYS = [
    ("copy=False) for x in (h, q)", "copy=False) for x in (q, h)"),
    ("_form(xp, q, rest, 2.0 * budget)", "_form(xp, q, rest, 1.0 * budget)"),
    ("suffix_sums(xp, weight * scale)", "suffix_sums(xp, weight)"),
    ("* order.lifted_from[:, :-1] - order.", "* order.lifted_from[:, :-1] + order."),
]
NIGHTLY = [
    # divergences
    ("return c.h * c.log - c.d", "return c.q * c.log - c.d"),
    ("return c.d - c.q * c.log", "return c.d + c.q * c.log"),
    ("c.remainder + u * u)", "c.remainder - u * u)"),
    ("return -c.q * c.remainder", "return c.q * c.remainder"),
    ("return 0.5 * c.xp.abs(c.d)", "return c.xp.abs(c.d)"),
    ("return 0.5 * root * root", "return root * root"),
    ("(v * c.log + tail)", "(v * c.log - tail)"),
    ("-0.5 * (smaller * c.xp.abs(c.log)", "-0.5 * (larger * c.xp.abs(c.log)"),
    ("self.step + self.remainder", "self.step - self.remainder"),
    ("xp.where(h == 0, q, 0.0)", "xp.where(h == 0, h, 0.0)"),
    ("xp.where(q == 0, h, 0.0)", "xp.where(q == 0, q, 0.0)"),
    ("return c.d * c.relative", "return 2.0 * c.d * c.relative"),
    ("return 2.0 * (t - 1.0)", "return t - 1.0"),
    ("return 0.5 - 0.5 * quotient", "return 0.5 + 0.5 * quotient"),
    ("(math.log(2.0) - xp.log1p(", "(math.log(2.0) + xp.log1p("),
    ("powered - c.q - a * c.d", "powered - c.q + a * c.d"),
    ("xp.expm1(b * log_or_minus_inf(t)) / b", "xp.expm1(b * log_or_minus_inf(t)) * b"),
    ("(series + 1.0 / 3.0) - 1.0", "(series + 1.0 / 3.0) + 1.0"),
    ("self.term(1.0 - gamma, 1.0 - q, -d)", "self.term(1.0 - q, 1.0 - gamma, -d)"),
    # optimum
    ("maximum(slope * tilt, 1e-300)", "maximum(2.0 * slope * tilt, 1e-300)"),
    ("root_rest * cosine - root_q * sine", "root_rest * cosine + root_q * sine"),
    ("xp.minimum(q + reachable, 1.0)", "xp.minimum(q + 2.0 * reachable, 1.0)"),
    ("rest - scaled * q, 0.0)", "rest + scaled * q, 0.0)"),
    ("return -xp.log(q)", "return -xp.log(rest)"),
    ("return kind.term(gamma, q, d) +", "return kind.term(q, gamma, d) +"),
    ("(gain - loss)\n", "(gain + loss)\n"),
    ("scale - xp.log(room / scale)", "scale + xp.log(room / scale)"),
    ("xp.where(upper, small + step, small - step)", "xp.where(upper, small - step, small + step)"),
    # laws
    ("xp.maximum(drafted - value, 0.0)", "xp.maximum(drafted - 2 * value, 0.0)"),
    ("scale = complement / xp.where", "scale = value / xp.where"),
    ("pair.q[:, :span] * raised - pair.p", "pair.q[:, :span] * raised + pair.p"),
    ("self.lifted_below, at) - take_rows", "self.lifted_below, at) + take_rows"),
    ("share = p * complement", "share = q * complement"),
    ("accepted + q * others", "accepted + p * others"),
    ("residual = pair.xp.maximum(self._known_target(pair) - pair.p, 0.0)", "residual = pair.p"),
    # the clipped family
    ("* order.lifted_below[:, :-1] - order.", "* order.lifted_below[:, :-1] + order."),
    ("kind.term(xp.concat([high, low]", "kind.term(2.0 * xp.concat([high, low]"),
    ("xp.where(kept > 0, high, 0.0), UNIT * kept", "xp.where(kept > 0, high, 0.0), kept"),
    ("(point.spent > level) & (trial", "(point.spent > 2.0 * level) & (trial"),
    ("(point.spent > level) & (trial < bracket.high)", "point.spent > level"),
    ("(at_low - level) / (at_low - at_high) *", "(at_low - level) / (at_low + at_high) *"),
    ("(bracket.spent - level) / slope", "1.5 * (bracket.spent - level) / slope"),
    ("xp.minimum(take_rows(xp, point.spent, at_high), level)", "level"),
    (
        "before, behind = _tangent(xp, level, bracket, slope), _chord",
        "before, behind = bracket.low, _chord",
    ),
    # merged rows
    ("(near_a[1], OUTSIDE)),", "(near_a[0], OUTSIDE)),"),
    ("(group < first) | (group >= last)", "(group < first) | (group > last)"),
    ("np.clip(place.masses, bracket.low, bracket.high)", "np.clip(place.masses, -1.0, 2.0)"),
    ("p_from[:-1] -= EDGES[REACH:OUTSIDE]", "p_from[:-1] -= 1.02 * EDGES[REACH:OUTSIDE]"),
    (
        "raised_cost[:-1] += np.cumsum(cost[::-1])",
        "raised_cost[:-1] += 0.9 * np.cumsum(cost[::-1])",
    ),
    ("above = float(EDGES[REACH + behind - 1])", "above = float(EDGES[REACH + behind])"),
    ("np.all((q > 0) & (ratio_of(np, p, q) <= least))", "np.all(ratio_of(np, p, q) >= least)"),
    ("below, 1.0 - mass / family.outside)", "below, mass / family.outside)"),
    ("kind.term(pair.p, pair.q), pair.total", "kind.term(pair.q, pair.p), pair.total"),
    ("minimum(mass + take_rows(xp, order.p_below, j), ", "minimum(mass, "),
    ("mass, UNIT * kept)", "mass, 0.0)"),
    ("[[max(self.level - lacking, 0.0)]]", "[[self.level]]"),
    ("steep - slopes[:, count:]", "steep + slopes[:, count:]"),
    ("OneStep(as_probability(xp, 1.0 - mass)", "OneStep(as_probability(xp, 1.0 - 2.0 * mass)"),
    ("for values in (1.0 - mass, ends)", "for values in (1.0 - 2.0 * mass, ends)"),
    # rules
    ('return resolve_divergence("reverse_kl")', 'return resolve_divergence("kl")'),
    ("self.alpha * pair.p + (1.0 - self.alpha) * pair.q", "self.alpha * pair.q + pair.p"),
    ("self.tau * (1.0 - pair.verifier_max)", "self.tau * (1.0 + pair.verifier_max)"),
    ("xp.minimum(pair.q, self.l) / self.l", "xp.minimum(pair.p, self.l) / self.l"),
    ("pair.q_raw_max - allowance", "pair.q_raw_max + allowance"),
    ("(1.0 - self.alpha) * pair.q_raw_max", "(1.0 + self.alpha) * pair.q_raw_max"),
    ('DIVERGENCES["pearson_chi2"], 2.0 * self', 'DIVERGENCES["pearson_chi2"], 4.0 * self'),
    ("quotient(xp, complement, 1.0 - q_n, 0.0)", "quotient(xp, value, 1.0 - q_n, 0.0)"),
    ("xp.exp(-pair.verifier_entropy)", "xp.exp(pair.verifier_entropy)"),
    ("pair.verifier_max[:, None] - self.delta", "pair.verifier_max[:, None] + self.delta"),
    ("(q >= self.threshold * p)", "(q > 0) & (p >= self.threshold * q)"),
    ("return pair.xp.minimum(p, q)", "return 0.5 * pair.xp.minimum(p, q)"),
    ("xp.where(p < q, q, self._kept(pair, p, q))", "self._kept(pair, q, p)"),
    ("kept * (whole / left)", "kept"),
    ("(1.0 - self.top_p + ROUNDING)", "(self.top_p + ROUNDING)"),
    ("rest * self.recover(pair, pair.verifier_mode)", "rest * pair.q"),
]


def places_of(snippet, root=ROOT):
    """The files of the package that hold a snippet, once for each time."""
    files = [path for path in sorted((root / "theory").rglob("*.py")) if "claim" not in path.name]
    return [path for path in files for _ in range(path.read_text().count(snippet))]


@pytest.fixture
def copied(tmp_path):
    """A copy of the package, its tests and their settings."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("theory", TESTS, "tests/data"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run_checks(folder, checks):
    """The exit status of the checks in a copy, and what they said; 1 is a failed test."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=line"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [_placed(folder, check) for check in checks]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout[-2000:] + done.stderr[-1000:]


def _placed(folder, check):
    """A check with the folder that its file lies in: the tests have the wings of the package."""
    file, *rest = f"test_theory_{check}".split("::")
    (found,) = (folder / TESTS).rglob(file)
    return "::".join([str(found), *rest])


def broken_run(copied, snippet, broken, checks):
    (path,) = places_of(snippet, copied)
    path.write_text(path.read_text().replace(snippet, broken))
    return run_checks(copied, checks)


@pytest.mark.parametrize(("snippet", "broken"), ALWAYS + NIGHTLY)
def test_a_snippet_is_still_in_the_code(snippet, broken):
    assert len(places_of(snippet)) == 1
    assert snippet != broken


def test_the_quick_checks_pass_on_the_code_as_it_is(copied):
    status, said = run_checks(copied, QUICK)
    assert status == 0, said


@pytest.mark.parametrize(("snippet", "broken"), ALWAYS)
def test_a_broken_formula_is_noticed(copied, snippet, broken):
    status, said = broken_run(copied, snippet, broken, QUICK)
    assert status == 1, f"the checks passed, or could not run:\n{said}"


@pytest.mark.nightly
def test_the_thorough_checks_pass_on_the_code_as_it_is(copied):
    status, said = run_checks(copied, THOROUGH)
    assert status == 0, said


@pytest.mark.nightly
@pytest.mark.parametrize(("snippet", "broken"), NIGHTLY)
def test_any_broken_formula_is_noticed(copied, snippet, broken):
    status, said = broken_run(copied, snippet, broken, THOROUGH)
    assert status == 1, f"the checks passed, or could not run:\n{said}"

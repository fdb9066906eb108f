"""Broken on purpose: each wrong sign, factor or order of arguments must make a fast test fail.

A mutation replaces one snippet in a copy of the package and runs the checks below on the copy. A
snippet that is no longer in the code, or no longer there once, fails its test: write it anew.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = "tests/theory"
CHECKS = (
    f"{TESTS}/test_theory_golden.py",
    f"{TESTS}/test_theory_divergences.py::test_a_divergence_is_its_textbook_formula",
    f"{TESTS}/test_theory_divergences.py::test_near_equal_rows_lose_no_digits",
    f"{TESTS}/test_theory_divergences.py::test_the_slope_is_the_derivative_of_the_summand",
    f"{TESTS}/test_theory_optimum.py::test_gamma_and_complement_lie_in_every_certified_interval",
    f"{TESTS}/test_theory_optimum.py::test_second_order_is_the_published_expression",
    f"{TESTS}/test_theory_laws.py::test_a_law_on_thirty_tokens",
    f"{TESTS}/test_theory_laws.py::test_acceptance_and_recovery_are_those_of_the_plain_definition",
    f"{TESTS}/test_theory_frontier.py::test_the_level_is_used_up_unless_everything_possible_is_accepted",
    f"{TESTS}/test_theory_frontier.py::test_one_multiplier_is_shared_by_all_positions",
)

# (file, what it says, what it must not say). The first ones are part of every run.
ALWAYS = [
    (
        "divergences.py",
        "return xp.sum(self.term(h, q), axis=-1)",
        "return xp.sum(self.term(q, h), axis=-1)",
    ),
    (
        "optimum.py",
        "_square_root_form(xp, q, rest, 2.0 * budget)",
        "_square_root_form(xp, q, rest, budget)",
    ),
    ("law.py", "suffix_sums(xp, weight * scale)", "suffix_sums(xp, weight)"),
    (
        "clipped.py",
        "safe * order.lifted_from[:, :-1] - order",
        "safe * order.lifted_from[:, :-1] + order",
    ),
    ("tilting.py", "slope * tilt)  # the Newton step", "slope * tilt) / 2.0  # the Newton step"),
    ("rules/target.py", 'resolve_divergence("reverse_kl")', 'resolve_divergence("kl")'),
]
NIGHTLY = [
    ("divergences.py", "h * _log_ratio(xp, h, q) - d)", "q * _log_ratio(xp, h, q) - d)"),
    ("divergences.py", "log1p_remainder(xp, v) + v * v)", "log1p_remainder(xp, v) - v * v)"),
    ("divergences.py", "d - q * _log_ratio(xp, h, q)", "d + q * _log_ratio(xp, h, q)"),
    ("divergences.py", "close = -q * log1p_remainder", "close = q * log1p_remainder"),
    ("divergences.py", "return 0.5 * xp.abs(d)", "return xp.abs(d)"),
    ("divergences.py", "return 0.5 * root * root", "return root * root"),
    (
        "divergences.py",
        "0.5 * (h * _log_ratio(xp, h, middle)",
        "1.0 * (h * _log_ratio(xp, h, middle)",
    ),
    ("divergences.py", "+ 0.5 * v * v\n", "- 0.5 * v * v\n"),
    ("divergences.py", "return d * u\n", "return 2.0 * d * u\n"),
    ("divergences.py", "return 2.0 * (t - 1.0)", "return t - 1.0"),
    ("divergences.py", "return 0.5 - 0.5 * quotient", "return 0.5 + 0.5 * quotient"),
    ("divergences.py", "(math.log(2.0) - xp.log1p(", "(math.log(2.0) + xp.log1p("),
    ("divergences.py", "- 1.0) - a * d", "- 1.0) + a * d"),
    ("divergences.py", "xp.expm1(b * _log(t)) / b", "xp.expm1(b * _log(t)) * b"),
    (
        "divergences.py",
        "square * (w * series - 1.0 / (1.0 - w))",
        "square * (w * series + 1.0 / (1.0 - w))",
    ),
    (
        "optimum.py",
        "left = root_rest * cosine - root_q * sine",
        "left = root_rest * cosine + root_q * sine",
    ),
    ("optimum.py", "xp.minimum(q + reachable, 1.0)", "xp.minimum(q + 2.0 * reachable, 1.0)"),
    ("optimum.py", "rest - scaled * q, 0.0)", "rest + scaled * q, 0.0)"),
    ("optimum.py", "return -xp.log(q)", "return -xp.log(rest)"),
    (
        "optimum.py",
        "kind.term(gamma, q, d) + kind.term(y, rest, -d) - budget",
        "kind.term(q, gamma, d) + kind.term(y, rest, -d) - budget",
    ),
    (
        "law.py",
        "take_rows(xp, pair.p, donors) - value, 0.0)",
        "take_rows(xp, pair.p, donors) - 2 * value, 0.0)",
    ),
    (
        "law.py",
        "pair.q[:, :span] * raised - pair.p[:, :span] * spent",
        "pair.p[:, :span] * raised - pair.q[:, :span] * spent",
    ),
    ("law.py", "scale = complement / xp.where", "scale = value / xp.where"),
    ("law.py", "share = p * complement", "share = q * complement"),
    (
        "law.py",
        "return OneStep(xp.sum(accepted, axis=-1), accepted + q * others)",
        "return OneStep(xp.sum(accepted, axis=-1), accepted + p * others)",
    ),
    (
        "pair.py",
        "return scale * take_rows(xp, self.lifted_below, at) - take",
        "return scale * take_rows(xp, self.lifted_below, at) + take",
    ),
    (
        "clipped.py",
        "safe * order.lifted_below[:, :-1] - order",
        "safe * order.lifted_below[:, :-1] + order",
    ),
    (
        "clipped.py",
        "self.kind.term(high, UNIT * take_rows(xp, order.lifted_from, i))",
        "self.kind.term(UNIT * take_rows(xp, order.lifted_from, i), high)",
    ),
    (
        "clipped.py",
        "self.kind.term(low, UNIT * take_rows(xp, order.lifted_below, j))",
        "self.kind.term(UNIT * take_rows(xp, order.lifted_below, j), low)",
    ),
    ("clipped.py", "steep - self.kind.slope(b / UNIT)", "steep + self.kind.slope(b / UNIT)"),
    (
        "clipped.py",
        "return OneStep(1.0 - mass, output)",
        "return OneStep(1.0 - 2.0 * mass, output)",
    ),
    (
        "clipped.py",
        "low = mass + take_rows(xp, order.p_below, j)",
        "low = mass - take_rows(xp, order.p_below, j)",
    ),
    ("clipped.py", "cost = kind.term(pair.p, pair.q)", "cost = kind.term(pair.q, pair.p)"),
    ("frontier.py", "1.0 - mass))", "1.0 - 2.0 * mass))"),
    ("tilting.py", "(gain - loss)\n", "(gain + loss)\n"),
    ("tilting.py", "scale - xp.log(room / scale)", "scale + xp.log(room / scale)"),
    (
        "tilting.py",
        "small = xp.where(upper, small + step, small - step)",
        "small = xp.where(upper, small - step, small + step)",
    ),
    (
        "tilting.py",
        "slope = (kind.slope(gamma / q) - kind.slope(y / rest)) * gamma * y",
        "slope = (kind.slope(gamma / q) + kind.slope(y / rest)) * gamma * y",
    ),
    (
        "rules/target.py",
        "self.alpha * pair.p + (1.0 - self.alpha) * pair.q",
        "self.alpha * pair.q + (1.0 - self.alpha) * pair.p",
    ),
    (
        "rules/target.py",
        "self.tau * (1.0 - pair.verifier_max)",
        "self.tau * (1.0 + pair.verifier_max)",
    ),
    (
        "rules/target.py",
        "xp.minimum(pair.q, self.l) / self.l",
        "xp.minimum(pair.p, self.l) / self.l",
    ),
    ("rules/target.py", "pair.q_raw_max - allowance", "pair.q_raw_max + allowance"),
    (
        "rules/target.py",
        "(1.0 - self.alpha) * pair.q_raw_max[:, None]",
        "(1.0 + self.alpha) * pair.q_raw_max[:, None]",
    ),
    (
        "rules/candidate.py",
        'DIVERGENCES["pearson_chi2"], 2.0 * self.delta',
        'DIVERGENCES["pearson_chi2"], 4.0 * self.delta',
    ),
    (
        "rules/candidate.py",
        "quotient(xp, complement, 1.0 - q_n, 0.0)",
        "quotient(xp, value, 1.0 - q_n, 0.0)",
    ),
    (
        "rules/base.py",
        "residual = pair.xp.maximum(self.target(pair) - pair.p, 0.0)",
        "residual = pair.xp.maximum(pair.p - self.target(pair), 0.0)",
    ),
    ("rules/accept_set.py", "xp.exp(-pair.verifier_entropy)", "xp.exp(pair.verifier_entropy)"),
    (
        "rules/accept_set.py",
        "pair.verifier_max[:, None] - self.delta",
        "pair.verifier_max[:, None] + self.delta",
    ),
]
MUTATIONS = [
    *(pytest.param(*mutation, id=f"{mutation[0]}: {mutation[1]}") for mutation in ALWAYS),
    *(
        pytest.param(*mutation, id=f"{mutation[0]}: {mutation[1]}", marks=pytest.mark.nightly)
        for mutation in NIGHTLY
    ),
]


@pytest.fixture
def copied(tmp_path):
    """A copy of the package, its tests and their settings."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("theory", TESTS, "tests/data"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run_checks(folder):
    """The exit status of the checks in a copy, and what they said; 1 is a failed test."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p"]
    command += ["no:xdist", "--no-header", "--tb=line", *CHECKS]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {k: v for k, v in environment.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout[-2000:] + done.stderr[-1000:]


def test_the_checks_pass_on_the_code_as_it_is(copied):
    status, said = run_checks(copied)
    assert status == 0, said


@pytest.mark.parametrize("mutation", ALWAYS + NIGHTLY, ids=lambda m: f"{m[0]}: {m[1]}")
def test_a_snippet_is_still_in_the_code(mutation):
    name, snippet, broken = mutation
    assert (ROOT / "theory" / name).read_text().count(snippet) == 1
    assert snippet != broken


@pytest.mark.parametrize(("name", "snippet", "broken"), MUTATIONS)
def test_a_broken_formula_is_noticed(copied, name, snippet, broken):
    path = copied / "theory" / name
    path.write_text(path.read_text().replace(snippet, broken))
    status, said = run_checks(copied)
    assert status == 1, f"the checks passed, or could not run:\n{said}"

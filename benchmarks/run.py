"""Speed as ratios: both sides on the same arrays, in one process, medians after warm-up.

``python -m benchmarks.run`` prints a table and, with ``--json FILE``, writes the same figures with
the processor and the versions they were measured with; ``--document README.md`` puts them there. A
ratio compares two times of one run on one machine. Two floors say what a row costs on it: a sort,
which a processor with wide vectors does several times faster than others, and a running sum.
Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from tqdm import tqdm

from sim.commandline import Parser, execute
from sim.jobs.files import write_json
from sim.pairs.families import make_family
from theory import (
    Pair,
    effective_draft,
    frontier_step,
    make_rule,
    one_step,
    one_steps,
    optimal_gamma,
)
from theory.terminal.documents import put_between

VOCABULARY = 151_936
SMALLER = 32_000
PAIRS = 1_000_000
REFERENCE_PAIRS = 20_000  # find_root and brentq are timed on fewer pairs, per pair
LOOP_PAIRS = 1_000
VALUES = np.geomspace(1e-4, 1.0, 9)


@dataclass(frozen=True)
class Ratio:
    """One comparison: ``ratio`` = time of ``subject`` / time of ``reference``, and its goal."""

    name: str
    subject: str
    reference: str
    subject_ms: float
    reference_ms: float
    ratio: float
    goal: str
    met: bool


def compare(
    name: str,
    subject: tuple[str, Callable[[], Any], float],
    reference: tuple[str, Callable[[], Any], float],
    at_most: float | None = None,
    at_least: float | None = None,
    repeats: int = 11,
) -> Ratio:
    """Time two callables alternately and compare their medians.

    Each side is (label, callable, units of work per call); times are per unit. ``at_most`` bounds
    subject/reference; ``at_least`` asks that the subject be that many times faster.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 2):
        for side, (_, call, units) in enumerate((subject, reference)):
            start = time.perf_counter()
            call()
            elapsed = time.perf_counter() - start
            if repeat >= 2:  # two rounds of warm-up
                times[side].append(elapsed / units)
    ours, theirs = (1e3 * statistics.median(t) for t in times)
    if at_most is not None:
        return Ratio(
            name,
            subject[0],
            reference[0],
            ours,
            theirs,
            ours / theirs,
            f"at most {at_most:g}",
            ours <= at_most * theirs,
        )
    assert at_least is not None
    return Ratio(
        name,
        subject[0],
        reference[0],
        ours,
        theirs,
        theirs / ours,
        f"at least {at_least:g} times faster",
        theirs >= at_least * ours,
    )


def zipf_row(vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return one Zipf-like draft and verifier row."""
    batch = make_family("zipf").sample(1, vocabulary, np.random.default_rng(0))
    return batch.p[0], batch.q[0]


def _closed_form(q: np.ndarray, delta: float) -> np.ndarray:
    return np.minimum(q + np.sqrt(2 * delta * q * (1 - q)), 1)


def _brentq_loop(q: np.ndarray, delta: float) -> list[float]:
    def kl(gamma: float, q: float) -> float:
        return gamma * np.log(gamma / q) + (1 - gamma) * np.log((1 - gamma) / (1 - q)) - delta

    last = np.nextafter(1.0, 0.0)
    return [
        1.0 if delta >= -np.log(x) else brentq(kl, x, last, args=(x,), xtol=1e-16, rtol=1e-15)
        for x in q
    ]


def gamma_ratios() -> Iterator[Ratio]:
    """γ* on a million pairs against the closed form, scipy's elementwise root finder and brentq."""
    q, delta = np.random.default_rng(1).random(PAIRS), 0.01
    few, loop = q[:REFERENCE_PAIRS], q[:LOOP_PAIRS]
    subject = (f"γ* on {PAIRS:,} pairs", lambda: optimal_gamma(q, delta), PAIRS)
    yield compare(
        "gamma_closed_form",
        subject,
        ("numpy closed form", lambda: _closed_form(q, delta), PAIRS),
        at_most=20,
    )
    yield compare(
        "gamma_find_root",
        subject,
        ("scipy find_root", lambda: optimal_gamma(few, delta, method="scipy"), REFERENCE_PAIRS),
        at_least=10,
        repeats=5,
    )
    yield compare(
        "gamma_brentq",
        subject,
        ("brentq loop", lambda: _brentq_loop(loop, delta), LOOP_PAIRS),
        at_least=200,
        repeats=5,
    )


def law_ratios() -> Iterator[Ratio]:
    """Laws on one row of 151,936 tokens against one argsort of it, and their growth with V."""
    p, q = zipf_row(VOCABULARY)
    small = zipf_row(SMALLER)
    sort = ("np.argsort(q)", lambda: np.argsort(q), 1)
    for delta in (1e-4, 1e-2, 1.0):
        rule = make_rule("cactus", delta=delta)
        yield compare(
            f"cactus_law_{delta:g}",
            (f"cactus law, δ={delta:g}", lambda rule=rule: one_step(rule, p, q), 1),
            sort,
            at_most=2.5,
        )
    rule = make_rule("cactus", delta=0.01)
    yield compare(
        "cactus_law_cumsum",
        ("cactus law, δ=0.01", lambda: one_step(rule, p, q), 1),
        ("np.cumsum(q)", lambda: np.cumsum(q), 1),
        at_most=12,
    )
    yield compare(
        "cactus_growth",
        (f"cactus law, V={VOCABULARY:,}", lambda: one_step(rule, p, q), 1),
        (f"cactus law, V={SMALLER:,}", lambda: one_step(rule, *small), 1),
        at_most=6,
    )
    yield compare(
        "exact_law",
        (
            "cactus_exact law, δ=0.01",
            lambda: one_step(make_rule("cactus_exact", delta=0.01), p, q),
            1,
        ),
        sort,
        at_most=5,
    )
    yield compare(
        "frontier", ("frontier at KL=0.05", lambda: frontier_step(p, q, 0.05), 1), sort, at_most=8
    )
    # A decoder asks for the target of one row, and waits for it.
    best = make_rule("frontier", level=0.05)
    yield compare(
        "frontier_target",
        (
            "frontier's target at KL=0.05",
            lambda: best.target(Pair.prepare(p[None], q[None], validate=False, sort=False)),
            1,
        ),
        sort,
        at_most=1.5,
    )


def value_ratios() -> Iterator[Ratio]:
    """Nine values of one rule against one value, on the same row."""
    p, q = zipf_row(VOCABULARY)
    for name, parameter in (
        ("cactus", "delta"),
        ("cactus_exact", "delta"),
        ("lenience", "l"),
        ("mentored", "level"),
        ("frontier", "level"),
        ("cactus_target_only", "delta"),
    ):
        rules = [make_rule(name, **{parameter: float(v)}) for v in VALUES]
        yield compare(
            f"nine_{name}",
            (f"nine values of {name}", lambda rules=rules: one_steps(rules, p, q), 1),
            ("one value", lambda rules=rules: one_steps(rules[4:5], p, q), 1),
            at_most=5,
            repeats=5,
        )


def candidate_ratios() -> Iterator[Ratio]:
    """The effective draft of four candidates on one row of 151,936 tokens against an argsort."""
    p, q = zipf_row(VOCABULARY)
    for scheme in ("independent", "without_replacement"):
        yield compare(
            f"effective_draft_{scheme}",
            (
                f"effective draft, K=4, {scheme.replace('_', ' ')}",
                lambda scheme=scheme: effective_draft(p, q, 4, scheme),
                1,
            ),
            ("np.argsort(q)", lambda: np.argsort(q), 1),
            at_most=6,
        )


SUITES = {
    "gamma": gamma_ratios,
    "law": law_ratios,
    "values": value_ratios,
    "candidates": candidate_ratios,
}


def floors(repeats: int = 21) -> dict[str, float]:
    """Milliseconds of a sort and of a running sum of one row of 151,936 tokens, medians."""
    _, q = zipf_row(VOCABULARY)
    found = {}
    for name, call in (("np.argsort", np.argsort), ("np.cumsum", np.cumsum)):
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            call(q)
            times.append(time.perf_counter() - start)
        found[name] = round(1e3 * statistics.median(times), 3)
    return found


def processor() -> str:
    """Return what the processor calls itself, or its architecture where that is not told."""
    told = Path("/proc/cpuinfo")
    if told.is_file():
        names = re.findall(r"^model name\s*:\s*(.+)$", told.read_text(encoding="utf-8"), re.M)
        if names:
            return " ".join(names[0].split())
    return platform.processor() or platform.machine()


def environment() -> dict[str, Any]:
    """Return what the figures depend on: versions and the kind of processor, nothing personal."""
    packages = {name: version(name) for name in ("numpy", "scipy", "array-api-compat")}
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": processor(),
        "vectors": np.show_config(mode="dicts")["SIMD Extensions"].get("found", []),
        "floors_ms": floors(),
        "cores": os.cpu_count(),
        **packages,
    }


def table(ratios: list[Ratio]) -> str:
    """Return the ratios as a plain text table."""
    lines = [f"{'comparison':<58}{'ms':>10}{'ms':>10}{'ratio':>9}  goal"]
    for r in ratios:
        label = f"{r.subject} / {r.reference}"
        lines.append(
            f"{label:<58}{r.subject_ms:>10.3g}{r.reference_ms:>10.3g}{r.ratio:>9.3g}  "
            f"{r.goal}{'' if r.met else '  MISSED'}"
        )
    return "\n".join(lines)


def speed_section(document: dict[str, Any]) -> str:
    """Return the table of the README: where it was measured, the floors, and every ratio."""
    told = document["environment"]
    sort, total = (told["floors_ms"][name] for name in ("np.argsort", "np.cumsum"))
    wide = f" with {told['vectors'][-1]}" if told["vectors"] else ""
    lines = [
        f"{told['processor']}{wide}, {told['cores']} cores, numpy {told['numpy']}: of the row",
        f"`np.argsort` takes {sort:.3g} ms and `np.cumsum` {total:.3g} ms.",
        "",
        "| comparison | ratio | goal |",
        "|---|---|---|",
    ]
    for ratio in document["ratios"]:
        joined = "times faster than" if ratio["goal"].startswith("at least") else "/"
        missed = "" if ratio["met"] else " (missed)"
        named = f"{ratio['subject']} {joined} {ratio['reference']}"
        lines.append(f"| {named} | {ratio['ratio']:.3g} | {ratio['goal']}{missed} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen suites; exit status 0 whether or not the goals are met (read the table)."""
    return execute(_parser, _work, arguments)


def _parser() -> Parser:
    parser = Parser(
        "benchmarks.run",
        description=__doc__.split("\n")[0],
        epilog="example: python -m benchmarks.run --suites law values --json ratios.json",
    )
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    parser.add_argument(
        "--document", type=Path, metavar="PAGE", help="put the table between its marks of speed"
    )
    return parser


def _work(options: argparse.Namespace) -> int:
    ratios: list[Ratio] = []
    with tqdm(disable=not sys.stderr.isatty(), unit="ratio") as progress:
        for name in options.suites:
            for ratio in SUITES[name]():
                ratios.append(ratio)
                progress.update()
    document = {"environment": environment(), "ratios": [asdict(r) for r in ratios]}
    told = document["environment"]
    print(f"{told['processor']}; one row of {VOCABULARY:,} tokens: {told['floors_ms']} ms")
    print(table(ratios))
    if options.json:
        write_json(options.json, document)
    if options.document:
        text = options.document.read_text(encoding="utf-8")
        changed = put_between(text, "speed", speed_section(document))
        options.document.write_text(changed, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

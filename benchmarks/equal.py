"""At equal divergence: the rules of the study calibrated on the traces of its pairs.

    python -m benchmarks.equal            # about twenty minutes on one core, after recording

For each pair and sampling setting the parameter of each rule is set so that the mean JS divergence
of its output from the verifier is at most `LEVEL` nats on the recorded trace: JS, because it is
finite for rules that emit what the verifier cannot; 0.02 nats of it go with 0.07 to 0.15 nats
of KL where that is finite. Values and exact laws go to `benchmarks/results/calibrated.parquet`,
which `benchmarks.study` decodes with. Record a pair with

    python -m real_models.record --pair smollm2-skip3 --out traces/smollm2-skip3
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.recorded import read_facts, read_rows, write_rows
from real_models.laws.distributions import SamplingSettings
from real_models.measuring.corpus import trace_corpus
from real_models.measuring.parts import Resources, trace_digest
from real_models.options.recording import DEFAULT_SETTINGS
from real_models.traces.reader import Trace, open_trace
from sim.commandline import Parser, execute
from sim.jobs.manifest import versions
from sim.jobs.progress import track
from sim.tables.calibration import calibrate
from sim.tables.grid import DEFAULT_GRID
from sim.tables.target import Target
from theory import RULES

__all__ = [
    "CALIBRATED",
    "LEVEL",
    "PAIRS",
    "SETTINGS",
    "STUDIED",
    "calibrated_rows",
    "load_equal",
    "main",
]

CALIBRATED = Path(__file__).with_name("results") / "calibrated.parquet"
PAIRS = ("smollm2-skip1", "smollm2-skip3", "smollm2-skip5")
SETTINGS = DEFAULT_SETTINGS
LEVEL = 0.02
# Those that came when the study had been run: of serving engines, which docs/engines.md measures,
# and the frontier with one multiplier, which benchmarks.rounds does.
_LATER = {
    "frontier_corpus",
    *("constant_threshold", "ratio_threshold", "synthetic"),
    *("truncated_typical", "truncated_top_k", "truncated_top_p"),
}
STUDIED = tuple(rule for rule in RULES if rule not in _LATER)
# Every other value: at T = 1 a value costs a second for each pair, and the crossing is refined.
_GRID = {rule: DEFAULT_GRID[rule][::2] for rule in STUDIED}
_RESOURCES = Resources("cpu", 1 << 30)
_KEEP = 8 << 30


def calibrated_rows(trace: Trace, settings: str, target: Target) -> list[dict[str, Any]]:
    """The rules of the study calibrated on a trace: parameters, and what they realise there."""
    corpus = trace_corpus(trace, SamplingSettings.parse(settings), _RESOURCES, keep=_KEEP)
    choices = calibrate(
        lambda asked: corpus.points(asked, target.measure), STUDIED, target, grid=_GRID
    )
    rows = corpus.table(choices, target).to_dict("records")
    kept = ("acceptance", "kl_output_verifier", "js", "tv")
    return [
        {
            "draft": trace.header.pair,
            "settings": settings,
            "rule": row["rule"],
            "parameters": choice.setting.parameters,
            "status": row["status"],
            "note": row["note"],
            "positions": row["positions"],
            **{column: row[column] for name in kept for column in (name, f"{name}_se")},
            "best_acceptance": row["best_acceptance"],
            "share": row["share"],
        }
        for choice, row in zip(choices, rows)
    ]


def load_equal() -> pd.DataFrame:
    """The recorded rows, one per pair, setting and rule; a divergence may be inf."""
    return pd.DataFrame(read_rows(CALIBRATED))


def main(arguments: list[str] | None = None) -> int:
    """Calibrate each pair at each setting, and write its rows; returns the exit status."""
    return execute(_parser, _work, arguments)


def _parser() -> Parser:
    parser = Parser("benchmarks.equal", description=__doc__)
    parser.add_argument("--traces", type=Path, default=Path("traces"), help="recorded pairs")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), help="sampling settings")
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), help="names of the traces")
    return parser


def _work(options: argparse.Namespace) -> int:
    asked = [(pair, settings) for settings in options.settings for pair in options.pairs]
    for pair, settings in track(asked, "calibrate", "setting"):
        trace = open_trace(options.traces / pair)
        _keep(calibrated_rows(trace, settings, Target("js", LEVEL)), trace_digest(trace))
    return 0


def _keep(rows: list[dict[str, Any]], digest: str) -> None:
    """Put the rows of one pair and setting into the table, in the order of the study."""
    there = CALIBRATED.is_file()
    traces = (read_facts(CALIBRATED)["traces"] if there else {}) | {rows[0]["draft"]: digest}
    place = (rows[0]["draft"], rows[0]["settings"])
    known = read_rows(CALIBRATED) if there else []
    others = [row for row in known if (row["draft"], row["settings"]) != place]
    order = {key: n for n, key in enumerate((p, s) for p in PAIRS for s in SETTINGS)}
    facts = {
        "target": {"measure": "js", "level": LEVEL},
        "versions": versions("torch", "transformers"),
        "traces": dict(sorted(traces.items())),
    }
    kept = sorted([*others, *rows], key=lambda row: order[row["draft"], row["settings"]])
    write_rows(CALIBRATED, kept, facts)


if __name__ == "__main__":
    sys.exit(main())

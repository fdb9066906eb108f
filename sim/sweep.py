"""`python -m sim.sweep`: acceptance against divergence for every rule on synthetic pairs."""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sim.checks import require_count
from sim.commandline import Parser, check_jobs, parse_families, parse_settings, run_command
from sim.jobs.engine import backend_context, check_backend, run_cells
from sim.jobs.files import json_text
from sim.jobs.folder_lock import owned, withdraw_manifest
from sim.jobs.manifest import Code, make_manifest
from sim.pairs.families import FAMILIES
from sim.report.outputs import write_outputs
from sim.tables.cells import Source, make_cells, make_sources, run_cell
from sim.tables.findings import summary_text
from sim.tables.grid import Setting
from theory import RULES

__all__ = ["main"]

_EXAMPLE = """examples:
  python -m sim.sweep
  python -m sim.sweep --pairs zipf:exponent=1.2,noise=0.5 gaussian --vocab 4096 32768 \\
      --rules cactus lenience frontier --values cactus=0.01,0.1,1 --rows 256 --out results/mine

families: {families}
rules: {rules}
"""


@dataclass(frozen=True)
class Plan:
    """What a command line asks for, checked."""

    title: str
    cells: dict[str, tuple[Source, tuple[Setting, ...], bool]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status: 0, 2 for bad arguments, 130 if interrupted."""
    return run_command(_parser, _plan, _work, arguments)


def _parser() -> Parser:
    example = _EXAMPLE.format(families=", ".join(FAMILIES), rules=", ".join(RULES))
    parser = Parser("sim.sweep", description=__doc__, epilog=example)
    add = parser.add_argument
    add("--pairs", nargs="+", default=list(FAMILIES), metavar="FAMILY[:PARAMETER=VALUE,…]",
        help="families of draft/verifier rows (default: all)")  # fmt: skip
    add("--vocab", nargs="+", type=int, default=[4096], help="tokens (default: 4096)")
    add("--rules", nargs="+", default=list(RULES), help="rule names (default: all)")
    add("--values", nargs="+", default=[], metavar="[RULE=]VALUE[,VALUE…]",
        help="parameter values, of all rules or of one (default: 13 of each)")  # fmt: skip
    add("--rows", type=int, default=32, help="rows of each source (default: 32)")
    add("--seed", type=int, default=0, help="seed of all rows (default: 0)")
    add("--jobs", type=int, default=-1, help="processes; -1 is all cores (default)")
    add("--backend", default="loky", help="joblib backend: loky, threading, dask, …")
    add("--scheduler", help="address of the dask scheduler, for example tcp://…:8786")
    add("--out", type=Path, default=Path("results/sweep"), help="folder for the results")
    add("--resume", action="store_true", help="keep the cells that an interrupted run finished")
    add("--json", action="store_true", help="print one JSON document and nothing else")
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    require_count("--rows", options.rows, 1)
    require_count("--seed", options.seed, 0, high=2**64 - 1)
    check_jobs(options.jobs)
    check_backend(options.backend, options.scheduler)
    chosen = parse_settings(options.rules, options.values)
    families = parse_families(options.pairs)
    sources = make_sources(families, options.vocab, options.rows, options.seed)
    cells = make_cells(sources, chosen)
    rules = {setting.rule for setting in chosen}
    return Plan(f"{len(sources)} sources of synthetic pairs, {len(rules)} rules", cells)


def _work(options: argparse.Namespace, plan: Plan) -> None:
    with owned(options.out, command="sim.sweep"):
        _sweep_and_write(options, plan)


def _sweep_and_write(options: argparse.Namespace, plan: Plan) -> None:
    started = time.perf_counter()
    with backend_context(options.backend, options.scheduler):
        frames = run_cells(
            run_cell,
            plan.cells,
            options.out / ".cells",
            jobs=options.jobs,
            resume=options.resume,
            stamp=Code().stamp,
            label="sweep",
        )
    withdraw_manifest(options.out)
    table, frontier = frames["table"], frames["frontier"]
    seconds = time.perf_counter() - started
    manifest = make_manifest("sim.sweep", _recorded(options), seconds, seed=options.seed)
    files, summary = write_outputs(options.out, table, frontier, manifest, plan.title)
    _tell(options, files, summary, manifest)


def _recorded(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments that decide the numbers, and how the work was spread."""
    kept = ("imports", "pairs", "vocab", "rules", "values", "rows", "seed", "jobs", "backend")
    return {name: getattr(options, name) for name in kept}


def _tell(
    options: argparse.Namespace,
    files: dict[str, Path],
    summary: pd.DataFrame,
    manifest: dict[str, Any],
) -> None:
    paths = {name: str(path) for name, path in files.items()}
    if options.json:
        records = summary.to_dict("records")
        document = {"files": paths, "summary": records, "manifest": manifest}
        print(json_text(document))
        return
    print(summary_text(summary))
    seconds = manifest["wall_seconds"]
    print(f"\n{options.rows} rows of each source, measured in {seconds:.1f} s. Written:")
    for path in paths.values():
        print(f"  {path}")


if __name__ == "__main__":
    sys.exit(main())

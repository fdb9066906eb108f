"""Which value of a rule's parameter gives a wanted divergence or acceptance on synthetic pairs.

    python -m sim.calibrate --rules cactus --target kl=0.05

Exact laws, no sampling. On recorded logits the same is `python -m real_models.calibrate TRACE`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import pandas as pd

from sim.checks import require_between, require_count
from sim.commandline import Parser, parse_families, parse_rules, parse_values, run_command
from sim.jobs.engine import Frames, run_cells
from sim.jobs.files import write_json, write_whole
from sim.jobs.folder_lock import owned, withdraw_manifest
from sim.jobs.manifest import Code, make_manifest
from sim.pairs.families import FAMILIES
from sim.report.calibrated import TABLES, tell
from sim.tables.calibration import TOLERANCE, calibrate
from sim.tables.cells import Source, make_sources, prepared_batches
from sim.tables.corpus import Corpus
from sim.tables.grid import settings
from sim.tables.target import Target
from sim.tables.tradeoff import DIVERGENCE_OF
from theory import RULES

__all__ = ["Wanted", "add_options", "calibrate_corpus", "main", "run_calibration", "wanted"]

_EXAMPLE = """examples:
  python -m sim.calibrate --rules cactus cactus_exact frontier --target kl=0.05
  python -m sim.calibrate --rules lenience --target acceptance=0.9 --pairs zipf:noise=0.5 gaussian

measures: acceptance, {measures}
families: {families}
rules: {rules}
"""


@dataclass(frozen=True)
class Wanted:
    """What a command line asks for, checked: rules, their first values, the target."""

    rules: list[str]
    grid: dict[str, list[float]]
    target: Target
    tolerance: float

    def by_rule(self) -> list[Self]:
        """The same for each rule by itself."""
        grids = [{name: g for name, g in self.grid.items() if name == rule} for rule in self.rules]
        return [replace(self, rules=[r], grid=grid) for r, grid in zip(self.rules, grids)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status: 0, 2 for bad arguments, 130 if interrupted."""
    return run_command(_parser, _plan, _work, arguments)


def add_options(parser: Parser) -> None:
    """The options that do not depend on where the rows come from."""
    add = parser.add_argument
    add("--rules", "--rule", nargs="+", default=list(RULES), help="rule names (default: all)")
    add("--target", default="kl=0.05", metavar="MEASURE=LEVEL",
        help="mean divergence of at most so many nats, or acceptance of at least so much "
        "(default: kl=0.05)")  # fmt: skip
    add("--values", nargs="+", default=[], metavar="[RULE=]VALUE[,VALUE…]",
        help="values to try first, of all rules or of one (default: 13 of each)")  # fmt: skip
    add("--tolerance", type=float, default=TOLERANCE,
        help=f"how much of the target may be left (default: {TOLERANCE:g})")  # fmt: skip
    add("--out", type=Path, default=Path("results/calibrate"), help="folder for the results")
    add("--resume", action="store_true", help="keep the rules that an interrupted run finished")
    add("--json", action="store_true", help="print one JSON document and nothing else")


def wanted(options: argparse.Namespace) -> Wanted:
    """The options of `add_options`, checked. ValueErrors name the option."""
    target, rules = Target.parse(options.target), parse_rules(options.rules)
    require_between("--tolerance", options.tolerance, 0.0, 1.0, open_low=True)
    grid = parse_values(options.values, rules)
    try:
        settings(rules, grid)
    except ValueError as error:
        raise ValueError(f"--values: {error}") from None
    return Wanted(rules, grid, target, options.tolerance)


def calibrate_corpus(corpus: Corpus, asked: Wanted) -> Frames:
    """The tidy table of the values that were found on a corpus, one row per rule."""
    choices = calibrate(
        lambda tried: corpus.points(tried, asked.target.measure),
        asked.rules,
        asked.target,
        grid=asked.grid,
        tolerance=asked.tolerance,
    )
    return {"calibrated": corpus.table(choices, asked.target)}


def run_calibration(
    options: argparse.Namespace,
    function: Callable[..., Frames],
    cells: Mapping[str, tuple[Any, ...]],
    target: Target,
    manifest: Callable[[float], dict[str, Any]],
    code: Code,
) -> None:
    """Run the cells of a calibration in the folder of `options.out`, write the table, and tell it.

    `manifest` makes the manifest from the seconds that were spent.
    """
    started = time.perf_counter()
    with owned(options.out, command="sim.calibrate"):
        tables = run_cells(
            function,
            cells,
            options.out / ".cells",
            resume=options.resume,
            stamp=code.stamp,
            label="calibrate",
        )
        withdraw_manifest(options.out)
        for name in TABLES:
            _write(tables.get(name), options.out / f"{name}.parquet")
        write_json(options.out / "manifest.json", manifest(time.perf_counter() - started))
    tell(tables, target, options.json)


def _write(table: pd.DataFrame | None, path: Path) -> None:
    """Write a table; what another run left of one that this run has not is removed."""
    if table is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, lambda file: table.to_parquet(file, index=False))


def _parser() -> Parser:
    example = _EXAMPLE.format(
        measures=", ".join(DIVERGENCE_OF), families=", ".join(FAMILIES), rules=", ".join(RULES)
    )
    parser = Parser("sim.calibrate", description=__doc__, epilog=example)
    add_options(parser)
    add = parser.add_argument
    add("--pairs", nargs="+", default=["zipf"], metavar="FAMILY[:PARAMETER=VALUE,…]",
        help="families of draft/verifier rows (default: zipf)")  # fmt: skip
    add("--vocab", nargs="+", type=int, default=[4096], help="tokens (default: 4096)")
    add("--rows", type=int, default=32, help="rows of each source (default: 32)")
    add("--seed", type=int, default=0, help="seed of all rows (default: 0)")
    return parser


def _plan(options: argparse.Namespace) -> tuple[Wanted, list[Source]]:
    require_count("--rows", options.rows, 1)
    require_count("--seed", options.seed, 0, high=2**64 - 1)
    families = parse_families(options.pairs)
    sources = make_sources(families, options.vocab, options.rows, options.seed)
    return wanted(options), sources


def _work(options: argparse.Namespace, plan: tuple[Wanted, list[Source]]) -> None:
    asked, sources = plan
    cells = {
        f"{index:02d}-{source.family.name}-{source.vocab}-{one.rules[0]}": (source, one)
        for index, source in enumerate(sources)
        for one in asked.by_rule()
    }
    kept = ("imports", "rules", "target", "values", "tolerance", "pairs", "vocab", "rows", "seed")
    arguments = {name: getattr(options, name) for name in kept}

    def manifest(seconds: float) -> dict[str, Any]:
        return make_manifest("sim.calibrate", arguments, seconds)

    run_calibration(options, _calibrate_source, cells, asked.target, manifest, Code())


def _calibrate_source(source: Source, asked: Wanted) -> Frames:
    return calibrate_corpus(_corpus(source), asked)


@lru_cache(maxsize=1)
def _corpus(source: Source) -> Corpus:
    """The rows of a source, each a cluster of its own; kept for the next rule."""
    pairs = list(prepared_batches(source))
    return Corpus(
        source.family.name,
        source.family.label,
        source.vocab,
        [(pair, [object() for _ in range(pair.p.shape[0])]) for pair in pairs],
    )


if __name__ == "__main__":
    sys.exit(main())

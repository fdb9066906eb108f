"""Which value of a rule's parameter gives a wanted divergence or acceptance on synthetic pairs.

    python -m sim.calibrate --rule cactus --target kl=0.05

Exact laws, no sampling. On recorded logits the same is `python -m real_models.calibrate TRACE`.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
from tqdm import tqdm

from sim.checks import require_between, require_count
from sim.commandline import Parser, parse_families, parse_rules, parse_values, run_command
from sim.pairs.families import FAMILIES
from sim.tables.calibration import TOLERANCE, calibrate
from sim.tables.cells import Source, make_sources, prepared_batches
from sim.tables.corpus import Corpus
from sim.tables.grid import settings
from sim.tables.target import Target, short_name
from sim.tables.tradeoff import DIVERGENCE_OF
from theory import RULES

__all__ = ["Wanted", "add_options", "calibrated", "main", "tell", "wanted"]

_EXAMPLE = """examples:
  python -m sim.calibrate --rule cactus cactus_exact frontier --target kl=0.05
  python -m sim.calibrate --rule lenience --target acceptance=0.9 --pairs zipf:noise=0.5 gaussian

measures: acceptance, {measures}
families: {families}
rules: {rules}
"""
_HEAD = ("rule", "value", "acceptance", "{}, nats", "sps", "best there", "share of the gain", "")


@dataclass(frozen=True)
class Wanted:
    """What a command line asks for, checked: rules, their first values, the target."""

    rules: list[str]
    grid: dict[str, list[float]]
    target: Target
    tolerance: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status: 0, 2 for bad arguments, 130 if interrupted."""
    return run_command(_parser(), _plan, _work, arguments)


def add_options(parser: Parser) -> None:
    """The options that do not depend on where the rows come from."""
    add = parser.add_argument
    add("--rule", nargs="+", default=list(RULES), help="rule names (default: all)")
    add("--target", default="kl=0.05", metavar="MEASURE=LEVEL",
        help="mean divergence of at most so many nats, or acceptance of at least so much "
        "(default: kl=0.05)")  # fmt: skip
    add("--values", nargs="+", default=[], metavar="[RULE=]VALUE[,VALUE…]",
        help="values to try first, of all rules or of one (default: 13 of each)")  # fmt: skip
    add("--tolerance", type=float, default=TOLERANCE,
        help=f"how much of the target may be left (default: {TOLERANCE:g})")  # fmt: skip
    add("--json", action="store_true", help="print one JSON document and nothing else")


def wanted(options: argparse.Namespace) -> Wanted:
    """The options of `add_options`, checked. ValueErrors name the option."""
    target, rules = Target.parse(options.target), parse_rules(options.rule)
    require_between("--tolerance", options.tolerance, 0.0, 1.0, open_low=True)
    grid = parse_values(options.values, rules)
    try:
        settings(rules, grid)
    except ValueError as error:
        raise ValueError(f"--values: {error}") from None
    return Wanted(rules, grid, target, options.tolerance)


def calibrated(corpora: Iterable[Corpus], asked: Wanted) -> pd.DataFrame:
    """The tidy table of the values that were found, one row per corpus and rule."""
    tables = []
    for corpus in corpora:
        choices = calibrate(
            lambda tried, corpus=corpus: corpus.points(tried, asked.target.measure),
            asked.rules,
            asked.target,
            grid=asked.grid,
            tolerance=asked.tolerance,
        )
        tables.append(corpus.table(choices, asked.target))
    return pd.concat(tables, ignore_index=True)


def tell(table: pd.DataFrame, target: Target, as_json: bool) -> None:
    """Print what was found: one line per corpus and rule, or one JSON document."""
    if as_json:
        # JSON has no number for an infinite divergence, or target: it is null there.
        records = json.loads(table.to_json(orient="records", double_precision=15))
        level = target.level if math.isfinite(target.level) else None
        document = {"target": vars(target) | {"level": level}, "calibrated": records}
        json.dump(document, sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
        print()
        return
    for (source, pair), rows in table.groupby(["source", "pair"], sort=False):
        first = rows.iloc[0]
        named = f"{source} ({pair})" if pair else source
        print(f"{named}, {first['vocab']:,} tokens, {first['positions']} positions: {target.name}")
        print(
            "\n".join(
                _aligned([_head(target), *(_line(row, target) for _, row in rows.iterrows())])
            )
        )


def _head(target: Target) -> tuple[str, ...]:
    return tuple(word.format(short_name(target.divergence)) for word in _HEAD)


def _line(row: pd.Series, target: Target) -> tuple[str, ...]:
    value = f"{row['parameter']}={row['value']:.5g}" if row["parameter"] else "–"
    return (
        row["rule"],
        value,
        _with_error(row, "acceptance", 4),
        _with_error(row, target.divergence, 5),
        f"{row['strict_acceptance']:.4f}",
        f"{row['best_acceptance']:.4f}",
        f"{100 * row['share']:.0f} %" if math.isfinite(row["share"]) else "–",
        row["note"],
    )


def _with_error(row: pd.Series, name: str, digits: int) -> str:
    error = row[f"{name}_se"]
    return f"{row[name]:.{digits}f}" + (f" ± {error:.{digits}f}" if math.isfinite(error) else "")


def _aligned(lines: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


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
    require_count("--seed", options.seed, 0)
    families = parse_families(options.pairs)
    sources = make_sources(families, options.vocab, options.rows, options.seed)
    return wanted(options), sources


def _work(options: argparse.Namespace, plan: tuple[Wanted, list[Source]]) -> None:
    asked, sources = plan
    corpora = (_corpus(source) for source in tqdm(sources, desc="calibrate", disable=None))
    tell(calibrated(corpora, asked), asked.target, options.json)


def _corpus(source: Source) -> Corpus:
    """The rows of a source, each a cluster of its own."""
    pairs = list(prepared_batches(source))
    return Corpus(
        source.family.name,
        source.family.label,
        source.vocab,
        [(pair, [object() for _ in range(pair.p.shape[0])]) for pair in pairs],
    )


if __name__ == "__main__":
    sys.exit(main())

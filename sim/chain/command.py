"""Whole sequences on a Markov pair: what rules, blocks and the best decoder are worth.

    python -m sim.chain --pairs random:states=12 --rules lenience frontier --drafts 4

All numbers are exact, by linear algebra: the next token depends on a state of the last tokens.
"""

import argparse
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from sim.chain.longrun import long_run, speed_up
from sim.chain.markov import MarkovPair, ngram_pair, random_pair
from sim.chain.optimum import best_run
from sim.chain.picture import chain_picture
from sim.chain.rounds import Kernel, ScaledClip, kernels
from sim.chain.texts import text_divergence
from sim.checks import once, read_number, require_between, require_count, unknown_name
from sim.commandline import Mistake, Parser, execute, parse_settings
from sim.jobs.files import json_text, write_json, write_whole
from sim.jobs.folder_lock import owned, withdraw_manifest
from sim.jobs.manifest import make_manifest
from sim.tables.grid import Setting
from theory import RULES
from theory.blocks import VERIFICATIONS

__all__ = ["main"]

_EXAMPLE = """examples:
  python -m sim.chain --pairs random:states=12,seed=3 --rules lenience frontier --drafts 4
  python -m sim.chain --text README.md --rules sps --verification block --costs 0.1
  python -m sim.chain --pairs random:states=4 --rules frontier_corpus --verification block,scaled

--pairs random: states (12), seed (0), concentration (0.5), agreement (0.5)
rules: {rules}
"""
_PRICES = np.geomspace(0.3, 1000.0, 40)
_RULES = ("sps", "lenience", "frontier", "cactus")
_DEFAULTS = {"states": 12, "seed": 0, "concentration": 0.5, "agreement": 0.5}


class Plan(NamedTuple):
    """What a command line asks for, checked."""

    pair: MarkovPair
    settings: tuple[Setting, ...]
    verifications: list[str]


_VERIFICATIONS = (*VERIFICATIONS, "scaled")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status: 0, 2 for bad arguments, 130 if interrupted."""
    return execute(_parser, _body, arguments, interrupted="nothing is written before the end")


def _parser() -> Parser:
    parser = Parser(
        "sim.chain", description=__doc__, epilog=_EXAMPLE.format(rules=", ".join(RULES))
    )
    add = parser.add_argument
    add("--pairs", default="random", metavar="random:NAME=VALUE[,…]",
        help="a random pair whose state is the last token (default: random)")  # fmt: skip
    add("--text", type=Path, help="a text instead, of which the verifier knows the last two "
        "characters and the draft the last")  # fmt: skip
    add("--tokens", type=int, default=12, help="characters of --text that are told apart (12)")
    add("--rules", nargs="+", default=list(_RULES), help=f"default: {' '.join(_RULES)}")
    add("--values", nargs="+", default=[], metavar="[RULE=]VALUE[,VALUE…]",
        help="of all rules or of one (default: 13 of each)")  # fmt: skip
    add("--drafts", type=int, default=3, help="drafts of a round (default: 3)")
    add(
        "--verification",
        default="token,block",
        help="some of token, block and scaled, which is "
        "a block of frontier_corpus that clips at what was over-supplied (default: token,block)",
    )
    add(
        "--text-tokens",
        type=int,
        metavar="N",
        help="tell the KL of the first N tokens of a text "
        "too, beside what their places spend (small N and few states)",
    )
    add("--costs", type=float, default=0.1, help="time of a draft step, that of a verifier's pass "
        "being 1 (default: 0.1)")  # fmt: skip
    add("--out", type=Path, default=Path("results/chain"), help="folder for the results")
    add("--json", action="store_true", help="print one JSON document and nothing else")
    return parser


def _body(options: argparse.Namespace) -> int:
    started = time.perf_counter()
    try:
        plan = _plan(options)
        table, best = _table(plan, options), _frontier(plan.pair, options)
    except ValueError as error:  # also of pairs and blocks that are too large
        raise Mistake(error) from error
    with owned(options.out, command="sim.chain"):
        files = _write(options, table, best, time.perf_counter() - started)
    if options.json:
        rows = {"runs": table.to_dict("records"), "best": best.to_dict("records")}
        print(json_text(rows | {"files": files}))
    else:
        print("\n".join([*_lines(table), "written:", *(f"  {path}" for path in files.values())]))
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    require_count("--drafts", options.drafts, 1, high=12)
    require_between("--costs", options.costs, 0.0, 1e6)
    chosen = once("--verification", options.verification.split(","))
    for name in chosen:
        if name not in _VERIFICATIONS:
            raise unknown_name("verification", name, _VERIFICATIONS)
    settings = parse_settings(options.rules, options.values)
    if "scaled" in chosen and all(s.rule != "frontier_corpus" for s in settings):
        raise ValueError("--verification scaled is of frontier_corpus, which --rules does not name")
    if options.text_tokens is not None:
        require_count("--text-tokens", options.text_tokens, 1)
    if options.text is None:
        return Plan(_random(options.pairs), settings, chosen)
    text = options.text.read_text(encoding="utf-8", errors="replace")
    return Plan(ngram_pair(text, tokens=options.tokens), settings, chosen)


def _random(text: str) -> MarkovPair:
    """The pair of `random:states=20,seed=1`."""
    name, _, tail = text.partition(":")
    if name != "random":
        raise unknown_name("pair", name, ["random"])
    found: dict[str, float] = dict(_DEFAULTS)
    for part in filter(None, tail.split(",")):
        key, _, value = part.partition("=")
        if key not in found:
            raise unknown_name("parameter", key, found)
        found[key] = read_number(f"--pairs {key}", value)
    for key, high in (("states", 400), ("seed", 2**31 - 1)):
        require_count(f"--pairs {key}", found[key], 0, high=high)
    states, seed = int(found["states"]), int(found["seed"])
    shape = {key: found[key] for key in ("concentration", "agreement")}
    return random_pair(states, seed, **shape)


def _table(plan: Plan, options: argparse.Namespace) -> pd.DataFrame:
    """One row for each rule, value and verification."""
    found, laws = [], kernels(plan.pair, [setting.build() for setting in plan.settings])
    for setting, plain in zip(plan.settings, laws):
        for verification in plan.verifications:
            kernel, way = _verified(plan.pair, setting, plain, verification)
            if kernel is None:
                continue
            run = long_run(plan.pair, kernel, options.drafts, way)
            found.append({
                "rule": setting.rule, "value": setting.value, "verification": verification,
                "kl_per_token": run.divergence, "tokens": run.tokens,
                "speed_up": speed_up(run.tokens, options.drafts, options.costs),
                **_text(plan.pair, kernel, options, way),
                **{f"reached_{i}": chance for i, chance in enumerate(run.reached)},
            })  # fmt: skip
    return pd.DataFrame(found)


def _verified(
    pair: MarkovPair, setting: Setting, kernel: Kernel, verification: str
) -> tuple[Kernel | ScaledClip | None, str]:
    """The kernel and how it is verified; None for a rule without a scaled clip."""
    if verification != "scaled":
        return kernel, verification
    if setting.rule != "frontier_corpus" or not np.isfinite(setting.value):
        return None, "block"
    return ScaledClip(pair, setting.value), "block"


def _text(
    pair: MarkovPair, kernel: Kernel | ScaledClip, options: argparse.Namespace, way: str
) -> dict[str, float]:
    """The divergence of the first tokens of a text, by token, and what their places spend."""
    count = options.text_tokens
    if count is None:
        return {}
    found = text_divergence(pair, kernel, options.drafts, count, way)
    return {"text_kl_per_token": found.own / count, "text_spent_per_token": found.spent / count}


def _frontier(pair: MarkovPair, options: argparse.Namespace) -> pd.DataFrame:
    """The best long run token by token at several prices."""
    runs = [best_run(pair, float(price), options.drafts) for price in _PRICES]
    rows = [(run.price, run.divergence, run.tokens) for run in runs]
    return pd.DataFrame(rows, columns=["price", "kl_per_token", "tokens"])


def _write(
    options: argparse.Namespace, table: pd.DataFrame, best: pd.DataFrame, seconds: float
) -> dict[str, str]:
    """The tables, the picture, and the manifest that comes last."""
    out = options.out
    withdraw_manifest(out)
    names = ("chain.parquet", "best.parquet", "chain.png", "manifest.json")
    files = {name: out / name for name in names}
    write_whole(files["chain.parquet"], table.to_parquet)
    write_whole(files["best.parquet"], best.to_parquet)
    figure = chain_picture(table, best)
    write_whole(files["chain.png"], lambda file: figure.savefig(file, format="png", dpi=110))
    kept = {key: value for key, value in vars(options).items() if key not in ("out", "json")}
    write_json(files["manifest.json"], make_manifest("sim.chain", kept, seconds))
    return {name: shlex.quote(str(path)) for name, path in files.items()}


def _lines(table: pd.DataFrame) -> list[str]:
    """The table as aligned text."""
    texts = "text_kl_per_token" in table
    more = f"{'text: own':>12}{'spent':>10}" if texts else ""
    head = f"{'rule':<22}{'value':>9}  {'verified by':<12}{'KL/token':>10}{'tokens':>9}{'×':>8}"
    lines = [head + more]
    for row in table.itertuples():
        value = "" if np.isnan(row.value) else f"{row.value:.4g}"
        lines.append(
            f"{row.rule:<22}{value:>9}  {row.verification:<12}{row.kl_per_token:>10.4f}"
            f"{row.tokens:>9.4f}{row.speed_up:>8.3f}"
            + (f"{row.text_kl_per_token:>12.4f}{row.text_spent_per_token:>10.4f}" if texts else "")
        )
    return lines

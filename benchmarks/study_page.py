"""The tables of docs/study.md and of the README, from the recorded cells of the study."""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.equal import SETTINGS, load_equal
from benchmarks.recorded import read_rows
from benchmarks.rule_step import step_table
from sim.commandline import Parser, execute
from sim.figures import (
    accepted_lengths,
    decoding_costs,
    decoding_times,
    equal_lengths,
    gain_shares,
)
from sim.figures.decoding import rule_names
from sim.tables.calibration import MISSED
from theory.terminal.documents import put_between

__all__ = [
    "equal_table",
    "equally_far_runs",
    "lengths_table",
    "load_study",
    "main",
    "quality_table",
    "readme_table",
    "rule_step_table",
    "shares_table",
    "study_tables",
    "time_table",
    "write_documents",
]

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "benchmarks/results/study.parquet"


def load_study(part: str) -> pd.DataFrame:
    """The recorded runs of one part of the study (benchmarks.study.PARTS); one row per run."""
    return pd.DataFrame([cell for cell in read_rows(RECORDED) if cell["part"] == part])


def equally_far_runs() -> pd.DataFrame:
    """The runs of all rules at one divergence, without those that cannot be as near."""
    keys = ["draft", "settings", "rule"]
    near = load_equal().query("status != @MISSED")[keys]
    return near.merge(load_study("equal"), on=keys)


def quality_table() -> str:
    """Every run of the quality part: length, tokens per round, acceptance, divergence, surprise."""
    runs = load_study("quality")
    head = (
        "pair", "settings", "m", "rule", "accepted length", "acceptance", "rejections against sps",
        "KL per token", "verifier's surprise",
    )  # fmt: skip
    rows = [
        (
            run["draft"], run["settings"], run["draft_tokens"], name,
            _with_error(run, "accepted_length", 2), f"{run['acceptance']:.3f}",
            _percent(run["rejection_vs_sps"]), _with_error(run, "kl_per_token", 4),
            _with_error(run, "nll_per_token", 2),
        )
        for (_, run), name in zip(runs.iterrows(), rule_names(runs))
    ]  # fmt: skip
    return _markdown(head, rows)


def _percent(share: float) -> str:
    """`+3 %`; a share that rounds to nothing has no sign."""
    rounded = round(100 * share)
    return f"{rounded:+d} %" if rounded else "0 %"


def time_table() -> str:
    """Every run of the time part: tokens per round, time per token, speed-up, divergence."""
    runs = load_study("time")
    head = (
        "draft", "settings", "m", "rule", "tokens per round", "ms per token",
        "verifier alone, ms", "speed-up", "KL per token", "rule / verifier",
    )  # fmt: skip
    rows = [
        (
            run["draft"], run["settings"], run["draft_tokens"], name,
            f"{run['tokens_per_round']:.2f}", f"{1000 * run['seconds_per_token']:.0f}",
            f"{1000 * run['alone_seconds_per_token']:.0f}", f"{run['speed_up']:.2f}",
            f"{run['kl_per_token']:.3f}",
            f"{100 * run['rule_over_verify']:.1f} %",
        )
        for (_, run), name in zip(runs.iterrows(), rule_names(runs))
    ]  # fmt: skip
    return _markdown(head, rows)


def readme_table(draft: str = "smollm2-skip3", draft_tokens: int = 20) -> str:
    """One pair at one draft length: accepted length and divergence of each rule, by setting."""
    runs = load_study("quality")
    runs = runs[(runs["draft"] == draft) & (runs["draft_tokens"] == draft_tokens)]
    settings = list(runs["settings"].unique())
    names = rule_names(runs)
    head = ("rule", *(f"{what}, {s}" for s in settings for what in ("accepted length", "KL")))
    rows = []
    for name in names.unique():
        row = [name]
        for setting in settings:
            run = runs[(names == name) & (runs["settings"] == setting)].iloc[0]
            row += [_with_error(run, "accepted_length", 1), f"{run['kl_per_token']:.3f}"]
        rows.append(tuple(row))
    return _markdown(head, rows)


def shares_table() -> str:
    """Acceptance and share of the possible gain at equal divergence, rules by pair and setting."""
    rows = load_equal()
    places = list(rows.groupby(["settings", "draft"], sort=False).groups)
    order = rows.groupby("rule", sort=False)["share"].mean().sort_values(ascending=False).index
    lines = []
    for rule in order:
        found = rows[rows["rule"] == rule].set_index(["settings", "draft"])
        cells = [_share(found.loc[place]) if place in found.index else "–" for place in places]
        lines.append((rule, *cells))
    head = ("rule", *(f"{_short(draft)}, {settings.split()[0]}" for settings, draft in places))
    return _markdown(head, lines)


def _share(row: Any) -> str:
    """`.831 (93 %)`, with a star where the rule does not come as near to the verifier."""
    share = "" if pd.isna(row["share"]) else f" ({round(100 * row['share'])} %)"
    star = "*" if row["status"] == MISSED else ""
    return f"{row['acceptance']:.3f}{share}{star}"


def equal_table() -> str:
    """Every rule at equal divergence: its parameter, and what it realises on the trace."""
    head = (
        "pair", "settings", "rule", "parameter", "acceptance", "gain over sps", "of the possible",
        "JS", "KL", "TV",
    )  # fmt: skip
    rows = load_equal()
    strict = rows[rows["rule"] == "sps"].set_index(["draft", "settings"])["acceptance"]
    return _markdown(head, [_equal_row(row, strict) for _, row in rows.iterrows()])


def _equal_row(row: Any, strict: pd.Series) -> tuple[Any, ...]:
    parameters = ", ".join(f"{name}={value:.4g}" for name, value in row["parameters"].items())
    star = "*" if row["status"] == MISSED else ""
    return (
        row["draft"], row["settings"], row["rule"] + star, parameters or "–",
        _with_error(row, "acceptance", 3),
        f"{row['acceptance'] - strict[row['draft'], row['settings']]:+.3f}",
        "–" if pd.isna(row["share"]) else f"{round(100 * row['share'])} %",
        f"{row['js']:.4f}",
        "∞" if math.isinf(row["kl_output_verifier"]) else f"{row['kl_output_verifier']:.3f}",
        f"{row['tv']:.3f}",
    )  # fmt: skip


def lengths_table(settings: str) -> str:
    """Accepted lengths of the calibrated rules in decoding, rules by pair and draft length."""
    runs, equal = load_study("equal"), load_equal()
    runs = runs[runs["settings"] == settings]
    places = sorted(set(zip(runs["draft"], runs["draft_tokens"])))
    order = runs.groupby("rule")["accepted_length"].mean().sort_values(ascending=False).index
    far = equal[(equal["status"] == MISSED) & (equal["settings"] == settings)]
    stars = dict.fromkeys(zip(far["rule"], far["draft"]), "*")
    cells = {
        (run["rule"], run["draft"], run["draft_tokens"]): _with_error(run, "accepted_length", 1)
        + stars.get((run["rule"], run["draft"]), "")
        for _, run in runs.iterrows()
    }
    lines = [(rule, *(cells[rule, draft, m] for draft, m in places)) for rule in order]
    head = ("rule", *(f"{_short(draft)}, m={m}" for draft, m in places))
    return _markdown(head, lines)


def rule_step_table() -> str:
    """What the rule's step takes of the verifier's time, in per cent: rules by draft length."""
    steps = step_table()
    head = ("rule", *(f"m={m}, {settings.split()[0]}" for m, settings in steps.columns))
    rows = [
        (rule, *("–" if math.isnan(percent) else f"{percent:.1f} %" for percent in row))
        for rule, row in zip(steps.index, steps.to_numpy())
    ]
    return _markdown(head, rows)


def _short(draft: str) -> str:
    return draft.removeprefix("smollm2-")


def study_tables() -> dict[str, str]:
    """The tables of docs/study.md by the name of their place."""
    plain, truncated = SETTINGS
    return {
        "shares": shares_table(),
        "lengths at T=1": lengths_table(plain),
        "lengths under truncation": lengths_table(truncated),
        "quality": quality_table(),
        "time": time_table(),
        "rule step": rule_step_table(),
        "equal": equal_table(),
    }


def write_documents() -> None:
    """Put the tables between their markers, and draw the pictures."""
    quality, time = load_study("quality"), load_study("time")
    for name, table in study_tables().items():
        _replace(ROOT / "docs/study.md", name, table)
    _replace(ROOT / "README.md", "decoding", readme_table())
    images = ROOT / "docs/images"
    for name, figure in {
        "study-lengths": accepted_lengths(quality),
        "study-costs": decoding_costs(quality, 5),
        "study-times": decoding_times(time),
        "study-equal": gain_shares(load_equal()),
        "study-equal-lengths": equal_lengths(equally_far_runs()),
    }.items():
        figure.savefig(images / f"{name}.png", dpi=100)


def _with_error(run: Any, name: str, digits: int) -> str:
    return f"{run[name]:.{digits}f} ± {run[f'{name}_se']:.{digits}f}"


def _markdown(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _replace(path: Path, name: str, table: str) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(put_between(text, name, table), encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Write the tables and the pictures; returns the exit status."""
    return execute(_parser, _work, arguments)


def _parser() -> Parser:
    return Parser("benchmarks.study_page", description=__doc__)


def _work(options: argparse.Namespace) -> int:
    write_documents()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The tables of docs/study.md and of the README, from the recorded cells of the study."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from sim.figures import accepted_lengths, decoding_costs, decoding_times
from sim.figures_decoding import rule_names

__all__ = ["load_study", "quality_table", "readme_table", "time_table", "write_documents"]

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "benchmarks/results/study.json"


def load_study(part: str) -> pd.DataFrame:
    """The recorded runs of one part of the study, "quality" or "time"; one row per run."""
    cells = json.loads(RECORDED.read_text(encoding="utf-8"))["cells"]
    return pd.DataFrame([cell for cell in cells if cell["part"] == part])


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
            f"{100 * run['rejection_vs_sps']:+.0f} %", _with_error(run, "kl_per_token", 4),
            _with_error(run, "nll_per_token", 2),
        )
        for (_, run), name in zip(runs.iterrows(), rule_names(runs))
    ]  # fmt: skip
    return _markdown(head, rows)


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


def write_documents() -> None:
    """Put the tables between their markers, and draw the pictures."""
    quality, time = load_study("quality"), load_study("time")
    _replace(ROOT / "docs/study.md", "quality", quality_table())
    _replace(ROOT / "docs/study.md", "time", time_table())
    _replace(ROOT / "README.md", "decoding", readme_table())
    images = ROOT / "docs/images"
    for name, figure in {
        "study-lengths": accepted_lengths(quality),
        "study-costs": decoding_costs(quality, 5),
        "study-times": decoding_times(time),
    }.items():
        figure.savefig(images / f"{name}.png", dpi=100)


def _with_error(run: Any, name: str, digits: int) -> str:
    return f"{run[name]:.{digits}f} ± {run[f'{name}_se']:.{digits}f}"


def _markdown(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _replace(path: Path, name: str, table: str) -> None:
    before, start, rest = path.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    end = f"\n<!-- end of {name} -->"
    if not start or end not in rest:
        raise ValueError(f"{path} has no place for the table {name!r}")
    path.write_text(before + start + table + end + rest.partition(end)[2], encoding="utf-8")


if __name__ == "__main__":
    write_documents()

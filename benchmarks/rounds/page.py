"""The tables and the picture of docs/rounds.md, from the recorded rounds.

python -m benchmarks.rounds.page
"""

import argparse
import sys
from pathlib import Path

import pandas as pd

from benchmarks.equal import PAIRS, SETTINGS
from benchmarks.rounds.along_texts import DRAFTS, gain, load_rounds
from benchmarks.rounds.held_out import held_out_table
from sim.commandline import Parser, execute
from sim.figures import round_gains
from theory.terminal.documents import put_between

__all__ = ["BASE", "WAYS", "gains", "main", "rounds_table", "worth"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/rounds.md"
SHOWN = (0.0, 0.05)
"""The targets of table and picture: without loss, and KL per token in nats."""

BASE = (1, "token", "multiplier")
"""What the others are compared with: candidates, verification, how the divergence is spent."""

WAYS = {
    "blocks": (1, "block", "multiplier"),
    "scaled clip": (1, "block", "scaled"),
    "schedule": (1, "token", "schedule"),
    "one level": (1, "token", "level"),
    "lenience": (1, "token", "lenience"),
    "2 candidates": (2, "token", "multiplier"),
    "2, in blocks": (2, "block", "multiplier"),
    "4 candidates": (4, "token", "multiplier"),
}


def gains(rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """How many more tokens a round has by each way than by BASE, at the same KL per token.

    draft, settings, drafts, target; tokens of BASE; way; gain and its standard error, as shares.
    A way without a row cannot be that far from the verifier: it accepts everything for less.
    """
    rows = load_rounds() if rows is None else rows
    keys = ["draft", "settings", "drafts", "target"]
    found = []
    for place, group in rows.groupby(keys, sort=False):
        ways = {
            (row["candidates"], row["verification"], row["spending"]): row
            for _, row in group.iterrows()
        }
        if BASE not in ways:
            continue
        for name, way in WAYS.items():
            if way in ways:
                share, error = gain(ways[way], ways[BASE])
                told = dict(zip(keys, place)) | {"tokens": ways[BASE]["tokens"]}
                found.append(told | {"way": name, "gain": share, "error": error})
    return pd.DataFrame(found)


def rounds_table() -> str:
    """Tokens a round by BASE, and the gain of every way in per cent."""
    head = ("draft", "settings", "m", "KL a token", "tokens a round", *WAYS)
    lines = [head, ("---",) * len(head)]
    table = gains()
    for settings in SETTINGS:
        for draft in PAIRS:
            for drafts in DRAFTS:
                for target in SHOWN:
                    rows = table[
                        (table["draft"] == draft)
                        & (table["settings"] == settings)
                        & (table["drafts"] == drafts)
                        & (table["target"] == target)
                    ].set_index("way")
                    if len(rows):
                        lines.append(_line(draft, settings, drafts, target, rows))
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def worth(draft: str = "smollm2-skip3", drafts: int = 4) -> str:
    """Three sentences: are blocks, candidates and schedules worth it, for this pair?"""
    table = gains()
    table = table[(table["draft"] == draft) & (table["drafts"] == drafts)]
    tree = sum(2**place for place in range(1, drafts + 1))

    def told(way: str, target: float) -> str:
        rows = table[(table["way"] == way) & (table["target"] == target)].set_index("settings")
        found = [f"{100 * rows.loc[settings, 'gain']:.0f}" for settings in SETTINGS]
        return f"{found[0]} % at T = 1 and {found[1]} % under truncation"

    lossy = max(SHOWN)
    return (
        f"With `{draft}` and {drafts} drafts a round:\n"
        f"**blocks** bring {told('blocks', 0.0)} more tokens a round without loss,\n"
        f"{told('blocks', lossy)} at {lossy:g} nats a token, for no cost at all: worth having.\n"
        f"**Two candidates** at each place bring {told('2 candidates', 0.0)}\n"
        f"without loss, {told('2 candidates', lossy)} at {lossy:g} nats, for {tree} drafted\n"
        f"tokens in the place of {drafts}: worth it where the verifier reads them for free.\n"
        f"A **schedule** brings {told('schedule', lossy)}: hardly."
    )


def _line(
    draft: str, settings: str, drafts: int, target: float, rows: pd.DataFrame
) -> tuple[str, ...]:
    told = (
        _percent(rows.loc[way, "gain"], rows.loc[way, "error"]) if way in rows.index else "–"
        for way in WAYS
    )
    short = settings.split()[0]
    base = f"{rows['tokens'].iloc[0]:.2f}"
    return (draft.removeprefix("smollm2-"), short, str(drafts), f"{target:g}", base, *told)


def _percent(share: float, error: float) -> str:
    """`+4.2 ± 0.2`; a gain that rounds to nothing has no sign."""
    if abs(share) < 5e-4:
        return "0"
    return f"{100 * share:+.1f} ± {100 * error:.1f}".replace("-", "−")


def main(arguments: list[str] | None = None) -> int:
    """Write the table and the picture; returns the exit status."""
    return execute(_parser, _work, arguments)


def _parser() -> Parser:
    return Parser("benchmarks.rounds.page", description=__doc__)


def _work(options: argparse.Namespace) -> int:
    text = PAGE.read_text(encoding="utf-8")
    text = put_between(text, "rounds", rounds_table())
    PAGE.write_text(put_between(text, "held-out", held_out_table()), encoding="utf-8")
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(put_between(text, "worth", worth()), encoding="utf-8")
    figure = round_gains(gains().query("target in @SHOWN and drafts == @DRAFTS[0]"))
    figure.savefig(ROOT / "docs/images/rounds.png", dpi=100)
    return 0


if __name__ == "__main__":
    sys.exit(main())

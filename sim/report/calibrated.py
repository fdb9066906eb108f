"""The values that a calibration found, as a person reads them and as JSON."""

import json
import math
from collections.abc import Sequence

import pandas as pd

from sim.jobs.engine import Frames
from sim.jobs.files import json_text
from sim.tables.target import Target, short_name

__all__ = ["TABLES", "aligned", "tell"]

TABLES = ("calibrated", "bounded")
"""What a calibration writes: exact means, and two-sided bounds where rows are partly known."""

_HEAD = ("rule", "value", "acceptance", "{}, nats", "sps", "best there", "share of the gain", "")
_BOUNDED = (
    *("rule", "keeps it for certain", "acceptance", "{}, nats"),
    *("no rule above", "misses it beyond", ""),
)


def tell(tables: Frames, target: Target, as_json: bool) -> None:
    """Print what was found: one line per corpus and rule, or one JSON document."""
    if as_json:
        # JSON has no number for an infinite divergence, or target: it is null there.
        records = {
            name: json.loads(table.to_json(orient="records", double_precision=15))
            for name, table in tables.items()
        }
        level = target.level if math.isfinite(target.level) else None
        print(json_text({"target": vars(target) | {"level": level}, **records}))
        return
    for name, line in (("calibrated", _line), ("bounded", _bounded_line)):
        if name not in tables:
            continue
        for (source, pair), rows in tables[name].groupby(["source", "pair"], sort=False):
            first = rows.iloc[0]
            named = f"{source} ({pair})" if pair else source
            about = f"{named}, {first['vocab']:,} tokens, {first['positions']} positions"
            print(f"{about}: {target.name}{_strict(first)}")
            head = _head(_HEAD if name == "calibrated" else _BOUNDED, target)
            print("\n".join(aligned([head, *(line(row, target) for _, row in rows.iterrows())])))


def _strict(row: pd.Series) -> str:
    """What strict sampling accepts, where it is known between two numbers."""
    if "strict_acceptance_lower" not in row:
        return ""
    ends = (row[f"strict_acceptance_{side}"] for side in ("lower", "upper"))
    return "; sps accepts " + " to ".join(f"{end:.4f}" for end in ends)


def _head(words: tuple[str, ...], target: Target) -> tuple[str, ...]:
    return tuple(word.format(short_name(target.divergence)) for word in words)


def _line(row: pd.Series, target: Target) -> tuple[str, ...]:
    return (
        row["rule"],
        _value(row),
        _with_error(row, "acceptance", 4),
        _with_error(row, target.divergence, 5),
        f"{row['strict_acceptance']:.4f}",
        f"{row['best_acceptance']:.4f}",
        f"{100 * row['share']:.0f} %" if math.isfinite(row["share"]) else "–",
        row["note"],
    )


def _bounded_line(row: pd.Series, target: Target) -> tuple[str, ...]:
    beyond = f"{row['beyond']:.5g}" if math.isfinite(row["beyond"]) else "–"
    between = (_between(row, name) for name in ("acceptance", target.divergence))
    return (
        row["rule"],
        _value(row),
        *between,
        f"{row['best_acceptance']:.4f}",
        beyond,
        row["note"],
    )


def _between(row: pd.Series, name: str) -> str:
    """The two means, and the larger standard error of them."""
    error = max(row[f"{name}_{side}_se"] for side in ("lower", "upper"))
    ends = " … ".join(f"{row[f'{name}_{side}']:.4f}" for side in ("lower", "upper"))
    return f"{ends} ± {error:.4f}" if math.isfinite(error) else ends


def _value(row: pd.Series) -> str:
    return f"{row['parameter']}={row['value']:.5g}" if row["parameter"] else "–"


def _with_error(row: pd.Series, name: str, digits: int) -> str:
    error = row[f"{name}_se"]
    return f"{row[name]:.{digits}f}" + (f" ± {error:.{digits}f}" if math.isfinite(error) else "")


def aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of words in columns."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]

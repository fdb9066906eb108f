"""The values that a calibration found, as a person reads them and as JSON."""

import json
import math

import pandas as pd

from sim.jobs.files import json_text
from sim.tables.target import Target, short_name

__all__ = ["tell"]

_HEAD = ("rule", "value", "acceptance", "{}, nats", "sps", "best there", "share of the gain", "")


def tell(table: pd.DataFrame, target: Target, as_json: bool) -> None:
    """Print what was found: one line per corpus and rule, or one JSON document."""
    if as_json:
        # JSON has no number for an infinite divergence, or target: it is null there.
        records = json.loads(table.to_json(orient="records", double_precision=15))
        level = target.level if math.isfinite(target.level) else None
        document = {"target": vars(target) | {"level": level}, "calibrated": records}
        print(json_text(document))
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

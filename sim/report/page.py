"""report.html: the pictures, the summary, the whole table and the manifest in one file.

The file needs nothing else: pictures are inlined, the script that sorts and filters the table is a
few lines of its own, and nothing is fetched from anywhere.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sim.tables.findings import MARKS, summary_table
from sim.tables.summary import LEVEL
from sim.tables.tradeoff import COLUMNS

__all__ = ["Picture", "write_report"]

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; margin: 0 auto; max-width: 1500px;
       padding: 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
figure { margin: 1rem 0; } figure img { max-width: 100%; border: 1px solid #ddd; }
figcaption { max-width: 62rem; color: #333; }
.finding { font-size: 1.1rem; white-space: pre-line; max-width: 62rem; }
.scroll { overflow: auto; max-height: 75vh; border: 1px solid #ddd; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .55rem; text-align: right; white-space: nowrap; }
td.text, th.text { text-align: left; }
thead th { position: sticky; top: 0; background: #f1f1f1; }
.sortable thead th { cursor: pointer; }
tbody tr:nth-child(even) { background: #fafafa; } tbody tr:hover { background: #eef5fb; }
th[aria-sort=ascending]::after { content: " ▲"; } th[aria-sort=descending]::after { content: " ▼"; }
.se { color: #777; }
input { font: inherit; padding: .25rem .5rem; margin-bottom: .5rem; width: 24rem; }
pre { background: #f6f6f6; padding: 1rem; overflow: auto; }
"""

_SCRIPT = """
const body = document.querySelector(".sortable tbody");
const heads = [...document.querySelectorAll(".sortable thead th")];
heads.forEach((head, column) => head.addEventListener("click", () => {
  const up = head.getAttribute("aria-sort") !== "ascending";
  heads.forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = row => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  };
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  const rows = [...body.rows];
  rows.sort((a, b) => (up ? 1 : -1) * compare(key(a), key(b)));
  body.append(...rows);
}));
document.getElementById("filter").addEventListener("input", event => {
  const words = event.target.value.toLowerCase().split(/\\s+/).filter(Boolean);
  for (const row of body.rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  }
});
"""


@dataclass(frozen=True)
class Picture:
    """A PNG file, what it is called, and how to read it."""

    path: Path
    title: str
    caption: str


def write_report(
    path: Path,
    *,
    title: str,
    finding: str,
    pictures: Sequence[Picture],
    summary: pd.DataFrame,
    table: pd.DataFrame,
    manifest: Mapping[str, Any],
) -> None:
    """Write the report of a table (as in sim.tables.tradeoff) to `path`, self-contained.

    `summary` as in sim.tables.summary; other arguments are text, and PNG files that exist.
    """
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="finding">{escape(finding)}</p>',
        *map(_figure, pictures),
        f"<h2>Acceptance at a divergence of {LEVEL:g} nats</h2>",
        f"<p>Mean acceptance of each rule at a mean KL(output‖verifier) of {LEVEL:g} nats. "
        f"{escape(MARKS)} Only numbers at one divergence can be compared.</p>",
        _summary_table(summary),
        "<h2>All settings</h2>",
        "<p>Click a column to sort by it. ± is one standard error of the mean over positions.</p>",
        '<input id="filter" placeholder="filter, for example: zipf cactus" aria-label="filter">',
        _full_table(table),
        "<h2>How this was made</h2>",
        f"<pre>{escape(json.dumps(manifest, indent=2, ensure_ascii=False))}</pre>",
        f"<script>{_SCRIPT}</script>",
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    body = "\n".join(parts)
    path.write_text(
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n',
        encoding="utf-8",
    )


def _figure(picture: Picture) -> str:
    data = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    name = escape(picture.title, quote=True)
    image = f'<img alt="{name}" src="data:image/png;base64,{data}">'
    caption = f"<figcaption>{escape(picture.caption)}</figcaption>"
    return f"<h2>{name}</h2><figure>{image}{caption}</figure>"


def _summary_table(summary: pd.DataFrame) -> str:
    shown = summary_table(summary)
    head = _header(["rule", *shown.columns])
    lines = [
        f'<tr><td class="text">{escape(str(rule))}</td>'
        + "".join(f"<td>{_told(text)}</td>" for text in texts)
        + "</tr>"
        for rule, texts in zip(shown.index, shown.to_numpy())
    ]
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"


def _told(text: str) -> str:
    """An entry of the summary, its own divergence in grey."""
    number, at, divergence = text.partition(" at ")
    return escape(number) + (f' <span class="se">at {divergence}</span>' if at else "")


def _full_table(table: pd.DataFrame) -> str:
    """All columns; a standard error stands beside its mean."""
    columns = [name for name in COLUMNS if not name.endswith("_se")]
    rows = []
    for record in table.to_dict("records"):
        cells = "".join(_cell(record[name], record.get(f"{name}_se")) for name in columns)
        rows.append(f"<tr>{cells}</tr>")
    head, body = _header(columns), "\n".join(rows)
    return (
        f'<div class="scroll"><table class="sortable"><thead>{head}</thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _header(columns: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<th>{escape(str(name))}</th>" for name in columns) + "</tr>"


def _cell(value: Any, error: float | None) -> str:
    if isinstance(value, str):
        return f'<td class="text">{escape(value)}</td>'
    number = float(value)
    key = "Infinity" if np.isinf(number) else repr(number)
    beside = ""
    if error is not None and np.isfinite(error):
        beside = f' <span class="se">± {error:.1g}</span>'
    return f'<td data-v="{key}">{_shown(number)}{beside}</td>'


def _shown(number: float) -> str:
    if np.isinf(number):
        return "∞"
    return f"{number:.0f}" if number == int(number) and abs(number) < 1e9 else f"{number:.4g}"

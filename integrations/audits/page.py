"""The tables of docs/audits.md about samplers that are in use, from what the audits have found.

python -m integrations.audits.page --document docs/audits.md
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from integrations.audits.pair import NATIVE, RULES, TEMPERATURES, label
from integrations.audits.records import parser
from theory.terminal.documents import has_marks, put_between

__all__ = ["difference", "main", "tables"]


def main(argv: list[str] | None = None) -> int:
    """Print the tables, and put them into a document; returns the exit status."""
    made = parser("The tables of docs/audits.md about samplers that are in use.")
    made.add_argument("--document", type=Path, help="page to put them into")
    args = made.parse_args(argv)
    found = tables(args.results)
    print("\n\n".join(f"{name}:\n\n{table}" for name, table in found.items()))
    if args.document is not None:
        text = args.document.read_text(encoding="utf-8")
        for name, table in found.items():
            text = _put(text, name, table)
        args.document.write_text(text, encoding="utf-8")
    return 0


def tables(results: Path) -> dict[str, str]:
    """Name → table, of those audits that were run."""
    held = {file.stem: json.loads(file.read_text(encoding="utf-8"))
            for file in sorted(results.glob("*.json"))}  # fmt: skip
    found = {name: _audits(held[name]) for name in ("vllm_forward", "ours", "sglang")
             if name in held}  # fmt: skip
    if "transformers" in held and "transformers_generate" in held:
        found["transformers"] = _audits(held["transformers"], _generated(held))
    if "vllm_engine" in held and "vllm_decoder" in held:
        found["vllm_engine"] = _engine(held["vllm_engine"], held["vllm_decoder"])
    return found


def _put(text: str, name: str, table: str) -> str:
    return put_between(text, name, table) if has_marks(text, name) else text


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _audits(document: Mapping[str, Any], more: list[list[str]] | None = None) -> str:
    rows = [[entry["sampler"], f"`{entry['claim']}`", f"{entry['samples']:,}", _verdict(entry)]
            for entry in document["audits"]]  # fmt: skip
    return _table(["sampler", "claim", "rounds", "verdict"], rows + (more or []))


def _verdict(entry: Mapping[str, Any]) -> str:
    return f"**rejected** after {entry['alarm_at']:,}" if entry["rejected"] else "passed"


def _generated(held: Mapping[str, Any]) -> list[list[str]]:
    return [
        [f"`generate`, {entry['settings']}", "the verifier's texts", f"{entry['texts']:,} texts",
         f"p = {entry['p_value']:.2g}"]
        for entry in held["transformers_generate"]["generate"]
    ]  # fmt: skip


def _engine(engine: Mapping[str, Any], decoder: Mapping[str, Any]) -> str:
    """Counts of the engine, then exact means a visited place, in the engine and in the decoder."""
    rows = []
    for temperature in TEMPERATURES:
        counts = engine[label(NATIVE, temperature)]
        accepted = f"{counts['accepted']} of {counts['drafted']}"
        rows.append([NATIVE, f"{temperature:g}", accepted, *[""] * 6])
        for rule in RULES:
            theirs, ours = (side[label(rule, temperature)] for side in (engine, decoder))
            total = {key: sum(text[key] for text in theirs.values())
                     for key in ("accepted", "drafted")}  # fmt: skip
            row = [rule, f"{temperature:g}", f"{total['accepted']} of {total['drafted']}"]
            for name in ("acceptance", "kl"):
                here, there, apart, error = difference(theirs, ours, name)
                row += [f"{here:.3f}", f"{there:.3f}", f"{apart:+.3f} ± {error:.3f}"]
            rows.append(row)
    head = ["rule", "T", "drafts accepted", "acceptance", "decoder's", "difference",
            "KL, nats", "decoder's", "difference"]  # fmt: skip
    return _table(head, rows)


def difference(
    theirs: Mapping[str, Mapping[str, float]], ours: Mapping[str, Mapping[str, float]], name: str
) -> tuple[float, float, float, float]:
    """The means a visited place of both sides, their difference, and its standard error.

    The texts of one prompt are a pair: what makes a prompt easy is the same on both sides.
    """
    means, deviations = [], []
    for side in (theirs, ours):
        sums = np.array([side[prompt][name] for prompt in ours])
        places = np.array([side[prompt]["visited"] for prompt in ours])
        means.append(sums.sum() / places.sum())
        deviations.append((sums - means[-1] * places) / places.mean())
    apart = deviations[0] - deviations[1]
    error = np.sqrt((apart**2).sum() / (len(apart) * (len(apart) - 1)))
    return float(means[0]), float(means[1]), float(means[0] - means[1]), float(error)


if __name__ == "__main__":
    sys.exit(main())

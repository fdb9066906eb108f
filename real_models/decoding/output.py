"""The results of a decoding run as a person reads them, and as JSON."""

import math
import os
from pathlib import Path
from typing import Any

from real_models.decoding.loop import DecodedText, Decoding
from real_models.decoding.metrics import rule_label
from real_models.models.logits import told_cut
from sim.jobs.files import json_text, make_folder, write_whole

__all__ = ["document", "told", "write_lines"]

_POSITIONS_SHOWN = 10
_VERIFIED = {
    "token": "",
    "block": ", verified as a block",
    "scaled": ", verified as a block by the scaled clip",
}


def told(found: Decoding, figures: dict[str, Any]) -> str:
    """The texts and the figures on a terminal."""
    lines = [f"── {text.prompt.id}\n{text.text.strip()}\n" for text in found.texts]
    lines += [
        f"{figures['pair']}, {rule_label(found.rule)}, {figures['settings']}, "
        f"up to {figures['draft_tokens']} drafts a round{_ways(figures)}",
        f"{figures['tokens']} tokens of {figures['texts']} texts in {figures['rounds']} rounds"
        + ("; ± one standard error over texts" if figures["texts"] > 1 else ""),
    ]
    return "\n".join(
        [
            *lines,
            *_lengths(figures),
            *_exact(figures),
            *told_cut(figures.get("cut", {})),
            *_times(figures),
        ]
    )


def document(found: Decoding, figures: dict[str, Any]) -> str:
    """One JSON document: the figures, and every text with its rounds."""
    whole = {"summary": figures, "texts": [_record(text) for text in found.texts]}
    return json_text(whole)


def write_lines(path: Path, found: Decoding, figures: dict[str, Any]) -> None:
    """JSON lines: the figures, then every text."""
    documents = [{"summary": figures}, *map(_record, found.texts)]
    lines = [json_text(d, indent=None) for d in documents]
    make_folder(path.parent)
    data = ("\n".join(lines) + "\n").encode()
    # A link stays one; of two processes that write one file each leaves a whole one.
    write_whole(path.resolve(), lambda file: file.write(data), tag=f"part{os.getpid()}")


def _ways(figures: dict[str, Any]) -> str:
    """How drafts are proposed and verified, where not one by one."""
    found = ""
    if figures["candidates"] > 1:
        found += f", each chosen of {figures['candidates']} candidates"
    return found + _VERIFIED[figures["verification"]]


def _lengths(figures: dict[str, Any]) -> list[str]:
    rates = figures["acceptance_by_position"]
    shown = " ".join(
        "–" if math.isnan(rate) else f"{rate:.2f}" for rate in rates[:_POSITIONS_SHOWN]
    )
    by_position = (
        f"  accepted by position {shown}{' …' if len(rates) > _POSITIONS_SHOWN else ''} "
        "(of those reached)"
    )
    return [
        f"  accepted length      {_with_error(figures, 'accepted_length', 2)} "
        "(without the verifier's token of each round)",
        f"  tokens per round     {figures['tokens_per_round']:.2f} "
        "(the last round of a text counts whole)",
        *([by_position] if rates else []),
    ]


def _exact(figures: dict[str, Any]) -> list[str]:
    """What was measured at every place; nothing where that was left out."""
    lines = []
    if "acceptance" in figures:
        against = figures.get("rejection_vs_sps")
        more = "" if against is None else f": {100 * against:+.0f} % rejections"
        lines.append(
            f"  exact acceptance     {_with_error(figures, 'acceptance', 3)}, of sps at the same "
            f"places {figures['strict_acceptance']:.3f}{more}"
        )
    if "kl_per_token" in figures:
        lines += [
            f"  divergence           {_with_error(figures, 'kl_per_token', 4)} nats per token, "
            f"{_with_error(figures, 'kl_per_text', 2)} per text,",
            "                       an upper bound of KL(texts‖the verifier's texts)",
            f"  verifier's surprise  {_with_error(figures, 'nll_per_token', 3)} nats per token "
            "(its plain softmax)",
        ]
    return lines


def _times(figures: dict[str, Any]) -> list[str]:
    spent = ", ".join(f"{part} {s:.2f}" for part, s in figures["seconds"].items())
    lines = [
        f"  seconds              {spent}",
        f"  the rule takes       {100 * figures['rule_over_verify']:.1f} % of the verifier's time",
    ]
    if "speed_up" in figures:
        own, alone = figures["seconds_per_token"], figures["alone_seconds_per_token"]
        lines.append(
            f"  speed-up             {figures['speed_up']:.2f} over the verifier alone "
            f"({1000 * own:.1f} and {1000 * alone:.1f} ms per token)"
        )
    return lines


def _with_error(figures: dict[str, Any], name: str, digits: int) -> str:
    """`0.83 ± 0.02`; a single text has no standard error."""
    mean, error = figures[name], figures[f"{name}_se"]
    return f"{mean:.{digits}f}" + ("" if math.isnan(error) else f" ± {error:.{digits}f}")


def _record(text: DecodedText) -> dict[str, Any]:
    """A text as JSON: what it says, and how it came about."""
    record: dict[str, Any] = {
        "id": text.prompt.id,
        "domain": text.prompt.domain,
        "text": text.text,
        "tokens": list(text.tokens),
        "ended": text.ended,
        "drafted": list(text.drafted),
        "accepted": list(text.accepted),
    }
    if text.observed is not None:
        record |= {name: values.tolist() for name, values in vars(text.observed).items()}
    return record

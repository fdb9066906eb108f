"""The pair that the engine and the project's own decoder run, and how they run it."""

import json
from pathlib import Path

__all__ = [
    "DRAFT_TOKENS",
    "NAME",
    "NATIVE",
    "NEW_TOKENS",
    "RULES",
    "TEMPERATURES",
    "TEXTS",
    "label",
    "prompts",
]

NAME = "smollm2-skip3"
NATIVE = "native"
"""The engine without a rule."""

RULES = ("sps", "cactus:delta=0.1", "lenience:l=0.43", "frontier:level=0.1")
TEMPERATURES = (1.0, 0.7)
TEXTS = 2  # of each prompt, at each temperature
DRAFT_TOKENS = 4
NEW_TOKENS = 64


def label(rule: str, temperature: float) -> str:
    """What a run is called in the results."""
    return f"{rule} T={temperature:g}"


def prompts(folder: Path) -> dict[str, list[int]]:
    """The prompts of an exported pair as token ids, by name."""
    return json.loads((folder / "prompts.json").read_text(encoding="utf-8"))

"""What the engine's run and the decoder's have in common, and the records that they leave."""

import json
from pathlib import Path
from typing import Any

__all__ = ["DRAFT_TOKENS", "NEW_TOKENS", "RULES", "TEMPERATURES", "pair_facts", "read"]

RULES = ("sps", "cactus:delta=0.1", "lenience:l=0.43", "frontier:level=0.1")
TEMPERATURES = (1.0, 0.7)
DRAFT_TOKENS = 4
NEW_TOKENS = 64


def pair_facts(folder: Path) -> dict[str, Any]:
    """The name of an exported pair, and its prompts as token ids."""
    return read(folder / "prompts.json")


def read(path: Path) -> dict[str, Any]:
    """A JSON document."""
    return json.loads(path.read_text(encoding="utf-8"))

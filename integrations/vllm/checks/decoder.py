"""The project's own decoder on the prompts of an exported pair: what an engine is compared with.

    PYTHONPATH=integrations/vllm python -m checks.decoder build/vllm-pair --rules sps

Writes `decoder.json`: by rule and temperature, one record for each prompt with the same sums that
the plug-in reports.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from checks.records import DRAFT_TOKENS, NEW_TOKENS, RULES, TEMPERATURES, pair_facts
from real_models.decoding.loop import DecodedText, decode
from real_models.laws.distributions import SamplingSettings
from real_models.models import load_pair
from real_models.prompts import read_prompts
from sim.jobs.files import write_json
from speculative_lab_vllm.choice import read_rule

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Decode the prompts with each rule at each temperature; returns the exit status."""
    parser = argparse.ArgumentParser(description="Decode the prompts of an exported pair.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rules", nargs="+", default=RULES)
    args = parser.parse_args(argv)
    pair, prompts = load_pair(pair_facts(args.folder)["pair"]), read_prompts()[0]
    found = {}
    for rule in args.rules:
        for temperature in TEMPERATURES:
            run = decode(
                pair,
                prompts,
                read_rule(rule),
                draft_tokens=DRAFT_TOKENS,
                new_tokens=NEW_TOKENS,
                settings=SamplingSettings(temperature),
                batch_size=len(prompts),
                compare=False,
            )
            texts = {text.prompt.id: _record(text) for text in run.texts}
            found[f"{rule} T={temperature:g}"] = texts
    write_json(args.folder / "decoder.json", found)
    return 0


def _record(text: DecodedText) -> dict[str, float]:
    """The sums over a text: of its places at which a draft was tested."""
    seen = text.observed
    tested = np.isfinite(seen.strict)
    return {
        "rounds": len(text.drafted),
        "drafted": sum(text.drafted),
        "accepted": sum(text.accepted),
        "tokens": len(text.tokens),
        "visited": int(tested.sum()),
        "kl": float(seen.divergence.sum()),
        "acceptance": float(seen.acceptance[tested].sum()),
        "strict": float(seen.strict[tested].sum()),
    }


if __name__ == "__main__":
    sys.exit(main())

"""The project's own decoder on the prompts of the pair: what vLLM is compared with.

    python -m integrations.audits.vllm_decoder

Writes `vllm_decoder.json`: by rule and temperature, for each prompt the sums that the plug-in
reports.
"""

import sys
from collections.abc import Sequence

import numpy as np

from integrations.audits.pair import (
    DRAFT_TOKENS,
    NAME,
    NEW_TOKENS,
    RULES,
    TEMPERATURES,
    TEXTS,
    label,
)
from integrations.audits.records import parser, write
from real_models.decoding.loop import DecodedText, decode
from real_models.decoding.observation import Observation
from real_models.laws.distributions import SamplingSettings
from real_models.models import load_pair
from real_models.prompts import read_prompts
from speculative_lab_vllm.choice import read_rule

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Decode the prompts with each rule at each temperature; returns the exit status."""
    args = parser("Decode the prompts with the project's own decoder.").parse_args(argv)
    pair, prompts = load_pair(NAME), read_prompts()[0]
    found = {}
    for rule in RULES:
        for temperature in TEMPERATURES:
            runs = [
                decode(
                    pair,
                    prompts,
                    read_rule(rule),
                    draft_tokens=DRAFT_TOKENS,
                    new_tokens=NEW_TOKENS,
                    settings=SamplingSettings(temperature),
                    batch_size=len(prompts),
                    seed=seed,
                    compare=False,
                )
                for seed in range(TEXTS)
            ]
            name = label(rule, temperature)
            found[name] = {
                texts[0].prompt.id: _sums(texts) for texts in zip(*(run.texts for run in runs))
            }
            print(name, sum(text["accepted"] for text in found[name].values()), flush=True)
    write(args.results / "vllm_decoder.json", found)
    return 0


def _sums(texts: Sequence[DecodedText]) -> dict[str, float]:
    """The sums over the texts of a prompt; the last three over places where a draft was tested.

    The first token of a text is left out of those: vLLM draws it without a draft.
    """
    seen = Observation.join(
        [Observation(*(values[1:] for values in vars(text.observed).values())) for text in texts]
    )
    tested = np.isfinite(seen.strict)
    return {
        "rounds": sum(len(text.drafted) for text in texts),
        "drafted": sum(sum(text.drafted) for text in texts),
        "accepted": sum(sum(text.accepted) for text in texts),
        "tokens": sum(len(text.tokens) for text in texts),
        "visited": int(tested.sum()),
        "kl": float(seen.divergence.sum()),
        "acceptance": float(seen.acceptance[tested].sum()),
        "strict": float(seen.strict[tested].sum()),
    }


if __name__ == "__main__":
    sys.exit(main())

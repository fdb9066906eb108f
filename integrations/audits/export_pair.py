"""Write a pair as two folders of safetensors, and its prompts as token ids, for an engine to load.

python -m integrations.audits.export_pair --pair build/vllm-pair
"""

import sys

from integrations.audits.pair import NAME
from integrations.audits.records import parser
from real_models.models import load_pair
from real_models.prompts import encode_prompt, read_prompts
from sim.jobs.files import make_folder, write_json

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Write `verifier/`, `draft/` and `prompts.json`; returns the exit status."""
    folder = parser("Write a pair for an engine to load.").parse_args(argv).pair
    pair = load_pair(NAME)
    make_folder(folder)
    for role, model in (("verifier", pair.verifier), ("draft", pair.draft)):
        model.save_pretrained(folder / role)
        pair.tokenizer.save_pretrained(folder / role)
    prompts = {prompt.id: encode_prompt(prompt, pair.tokenizer) for prompt in read_prompts()[0]}
    write_json(folder / "prompts.json", prompts)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write a pair as two folders of safetensors, and its prompts as token ids, for an engine to load.

PYTHONPATH=integrations/vllm python -m checks.export_pair build/vllm-pair
"""

import argparse
import sys
from pathlib import Path

from real_models.models import load_pair
from real_models.prompts import encode_prompt, read_prompts
from sim.jobs.files import make_folder, write_json

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Write `verifier/`, `draft/` and `prompts.json`; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write a pair for an engine to load.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pair", default="smollm2-skip3", help="(default smollm2-skip3)")
    args = parser.parse_args(argv)
    pair = load_pair(args.pair)
    make_folder(args.folder)
    for role, model in (("verifier", pair.verifier), ("draft", pair.draft)):
        model.save_pretrained(args.folder / role)
        pair.tokenizer.save_pretrained(args.folder / role)
    prompts = {p.id: encode_prompt(p, pair.tokenizer) for p in read_prompts()[0]}
    write_json(args.folder / "prompts.json", {"pair": args.pair, "prompts": prompts})
    return 0


if __name__ == "__main__":
    sys.exit(main())

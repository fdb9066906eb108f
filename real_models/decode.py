"""Decode prompts with a draft, a verifier and any acceptance rule, and say what it was worth.

    python -m real_models.decode --pair smollm2-skip3 --rule cactus --delta 0.5 --draft-tokens 10

Prints the texts, and then accepted length (without the token that the verifier adds in each round),
acceptance by position, times by part with the speed-up over the verifier alone, and the divergence
of the run. From Python: `real_models.decoding.decode`; inside transformers:
`real_models.generate`.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from real_models.decoding.drafters import parse_lookup
from real_models.decoding.loop import DrafterMaker, decode, prompt_lookup
from real_models.decoding.metrics import summary
from real_models.decoding.output import document, told, write_lines
from real_models.decoding.verifying.by_block import VERIFICATIONS
from real_models.derived.layer_skip import skip_name
from real_models.errors import UserError
from real_models.models.bundled import BUNDLED
from real_models.models.pair import ModelPair
from real_models.options.command_line import (
    add_pair_options,
    add_sampling_options,
    at_least,
    pair_from,
    run,
    sampling_from,
)
from real_models.options.outputs import require_writable
from real_models.options.ranks import ranks
from real_models.options.rules import add_rule_options, rules_from
from real_models.options.threads import add_threads_option, set_threads
from real_models.prompts import Prompt, given_prompt, read_prompts, told_form
from sim.commandline import Parser

__all__ = ["main"]

EXAMPLE = """examples:
  python -m real_models.decode --pair smollm2-skip3 --rule cactus --delta 0.5 --draft-tokens 10
  python -m real_models.decode --verifier smollm2 --draft lookup:3 --rule sps --temperature 0
  python -m real_models.decode --pair smollm2-skip3 --rule sps --verification block --candidates 2
  python -m real_models.decode --pair smollm2-skip4 --prompt "Rivers shape the land in" --json
"""


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run(_parser, _main, argv, interrupted="nothing is kept")


def _main(args: argparse.Namespace) -> int:
    """Check everything that is cheap, load the models, decode, and tell."""
    rule = rules_from(args)
    settings = replace(sampling_from(args), greedy_draft=args.greedy_draft)
    at_least(args, draft_tokens=0, new_tokens=1, batch_size=1, seed=0, threads=1, candidates=1)
    prompts = _prompts(args)
    require_writable(args.out)
    set_threads(args.threads)
    ranks()
    pair, drafter = _pair(args)
    form = told_form(prompts, pair.tokenizer, pair.verifier_name)
    if not args.json:
        print(form, flush=True)
    found = decode(
        pair,
        prompts,
        rule,
        draft_tokens=args.draft_tokens,
        new_tokens=args.new_tokens,
        settings=settings,
        drafter=drafter,
        batch_size=args.batch_size,
        seed=args.seed,
        measure=not args.no_measure,
        compare=not args.no_compare,
        verification=args.verification,
        candidates=args.candidates,
    )
    figures = {"pair": pair.name, "device": pair.device.type, "form": form, **summary(found)}
    if args.out is not None:
        write_lines(args.out, found, figures)
    print(document(found, figures) if args.json else told(found, figures))
    return 0


def _prompts(args: argparse.Namespace) -> list[Prompt]:
    if args.prompt is None:
        prompts = read_prompts(args.prompts)[0]
        if args.chat is None:
            return prompts
        return [p if p.chat is not None else replace(p, chat=args.chat) for p in prompts]
    if args.prompts is not None:
        raise UserError("give either --prompt or --prompts")
    return [given_prompt(args.prompt, args.chat)]


def _pair(args: argparse.Namespace) -> tuple[ModelPair, DrafterMaker | None]:
    """The pair that the options name, and the drafter where it is not the pair's draft model."""
    longest = parse_lookup(args.draft or "")
    if longest is None:
        return pair_from(args), None
    if args.pair is None and args.verifier is None:
        args.verifier = BUNDLED
    # A draft without dropped layers is the verifier's own tensors: it costs no memory, and the
    # lookup takes its place.
    args.draft = skip_name(())
    pair, name = pair_from(args), f"lookup:{longest}"
    pair = replace(pair, name=f"{pair.verifier_name} / {name}", draft_name=name)
    return pair, prompt_lookup(longest)


def _parser() -> Parser:
    """The options of `python -m real_models.decode`."""
    parser = Parser(
        "real_models.decode",
        description="Decode prompts with a draft, a verifier and any acceptance rule.",
        epilog=EXAMPLE,
    )
    add = parser.add_argument
    add("--prompts", help='JSON lines with "prompt" and optionally "id", "domain", "chat", '
        "or a .txt file with a prompt a line (default: ten prompts of the package)")  # fmt: skip
    add("--prompt", help="one text to continue, instead of a file")
    add("--chat", action=argparse.BooleanOptionalAction, default=None,
        help="put prompts that do not say it through the model's chat template, or do not "
        "(default: where there is one)")  # fmt: skip
    add("--draft-tokens", type=int, default=5, help="longest draft of a round (default 5)")
    add("--verification", choices=VERIFICATIONS, default="token",
        help="test the drafts of a round one after another (token, the default), as one block, "
        "which accepts as many or more by the same laws, or as a block of frontier_corpus whose "
        "clip knows what was over-supplied before (scaled)")  # fmt: skip
    add("--candidates", type=int, default=1, help="tokens drawn from the draft model for each "
        "place, as a tree of drafts, of which one is chosen and tested (default 1)")  # fmt: skip
    add("--new-tokens", type=int, default=64, help="longest text (default 64)")
    add("--batch-size", type=int, default=1, help="texts side by side (default 1)")
    add("--greedy-draft", action="store_true", help="the draft proposes its likeliest token")
    add("--seed", type=int, default=0, help="of the random numbers (default 0)")
    add_threads_option(parser)
    add("--no-measure", action="store_true", help="leave out the exact divergences")
    add("--no-compare", action="store_true", help="leave out the verifier alone, and the speed-up")
    add("--out", type=Path, help="file for the figures and texts, JSON lines")
    add("--json", action="store_true", help="print one JSON document and nothing else")
    add_sampling_options(parser)
    add_pair_options(parser)
    add_rule_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())

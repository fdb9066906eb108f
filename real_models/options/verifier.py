"""What the command lines share that make a draft from a verifier."""

import argparse

from real_models.models.bundled import BUNDLED
from real_models.models.pair import ModelPair
from real_models.options.command_line import add_loading_options, pair_from
from real_models.options.threads import add_threads_option, set_threads

__all__ = ["add_verifier_options", "verifier_with"]


def add_verifier_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name, place and load a verifier, and the seed of its texts."""
    parser.add_argument("--seed", type=int, default=0, help="of the sampled texts (default 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON document, nothing else")
    group = parser.add_argument_group("verifier")
    group.add_argument(
        "--verifier",
        default=BUNDLED,
        help=f"{BUNDLED} (default), a folder, a path.gguf, or a hub id[@revision]",
    )
    add_loading_options(group)
    add_threads_option(group)


def verifier_with(args: argparse.Namespace, draft: str) -> ModelPair:
    """The verifier that the options name, paired with `draft`; `skip:` is the verifier itself."""
    set_threads(args.threads)
    fixed = {"pair": None, "draft": draft, "device_map": None, "allow_padded_vocab": False}
    return pair_from(argparse.Namespace(**(vars(args) | fixed)))

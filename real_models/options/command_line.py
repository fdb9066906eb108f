"""What the command lines of this package share: pair and sampling options, and how they end."""

import argparse
import sys
from collections.abc import Callable, Sequence

from transformers.utils import logging

from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.models.loading import DTYPES, LoadOptions, resolve_device
from real_models.models.pair import PAIRS, ModelPair, load_pair
from real_models.options.ranks import local_rank
from sim.checks import shorten
from sim.commandline import Parser, execute

__all__ = [
    "add_loading_options",
    "add_pair_options",
    "add_sampling_options",
    "at_least",
    "pair_from",
    "run",
    "sampling_from",
]

DEFAULT_PAIR = "smollm2-skip3"


def run(
    build: Callable[[], Parser],
    main: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None,
    *,
    interrupted: str = "what was finished is kept",
) -> int:
    """Import, parse and run a command line; its exit status is that of `sim.commandline.execute`.

    UserErrors are the user's mistakes; any other ValueError is a defect, and keeps its traceback.
    """
    return execute(build, main, arguments, mistakes=(UserError,), interrupted=interrupted)


def add_pair_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name, place and load a pair of models."""
    group = parser.add_argument_group("models")
    group.add_argument(
        "--pair", help=f"a registered pair (default {DEFAULT_PAIR}): {', '.join(PAIRS)}"
    )
    group.add_argument("--verifier", help="smollm2, a folder, a path.gguf, or a hub id[@revision]")
    group.add_argument(
        "--draft",
        help="the same, or derived from the verifier: skip:14,16,17 without those layers, round:4 "
        "with 4-bit weights, round:4,group=32,asymmetric, skip:14,17+round:5",
    )
    add_loading_options(group)
    group.add_argument("--device-map", help="placement by transformers, e.g. auto for big models")
    group.add_argument(
        "--allow-padded-vocab",
        action="store_true",
        help="cut logits of different width to the tokenizer's size",
    )


def add_loading_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of loading that one model has as well as a pair."""
    add = group.add_argument
    add("--device", default="auto", help="auto, cpu, cuda or cuda:i (default auto)")
    add("--dtype", default="float32", choices=DTYPES, help="of the forward passes")
    add("--pad-token", help="for tokenizers that name none")
    add("--trust-remote-code", action="store_true",
        help="run code that comes with a model (never by default)")  # fmt: skip


def pair_from(args: argparse.Namespace) -> ModelPair:
    """The pair that the options name; transformers' progress bars only show on a terminal."""
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    device = str(resolve_device(args.device))
    if device == "cuda":
        # Under several processes each takes the device of its local rank.
        device = f"cuda:{local_rank()}"
    options = LoadOptions(device, args.device_map, args.dtype, args.trust_remote_code)
    named = args.pair or (None if args.verifier or args.draft else DEFAULT_PAIR)
    return load_pair(
        named,
        verifier=args.verifier,
        draft=args.draft,
        options=options,
        allow_padded_vocab=args.allow_padded_vocab,
        pad_token=args.pad_token,
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add temperature, top-k and top-p."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (default 1)")
    group.add_argument("--top-k", type=int, help="keep the k likeliest tokens")
    group.add_argument("--top-p", type=float, help="keep the nucleus of this mass")


def sampling_from(args: argparse.Namespace) -> SamplingSettings:
    """The sampling settings that the options name; UserError for one outside its range."""
    try:
        return SamplingSettings(args.temperature, args.top_k, args.top_p)
    except ValueError as error:
        raise UserError(f"--{str(error).replace('_', '-', 1)}") from None


def at_least(args: argparse.Namespace, **lowest: float) -> None:
    """Raise a UserError naming the first option whose value is below its lowest, or unusably high.

    A seed has 63 bits, other numbers 31.
    """
    for name, low in lowest.items():
        value, option = getattr(args, name), f"--{name.replace('_', '-')}"
        high = 2**63 - 1 if name == "seed" else 2**31 - 1
        if value is not None and not value >= low:
            raise UserError(f"{option} must be at least {low}, got {shorten(str(value))}")
        if value is not None and value > high:
            raise UserError(f"{option} must be at most {high}, got {shorten(str(value))}")

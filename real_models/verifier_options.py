"""What the command lines share that make a draft from a verifier."""

import argparse

from real_models.bundled import BUNDLED
from real_models.command_line import pair_from
from real_models.errors import UserError
from real_models.loading import DTYPES
from real_models.models import ModelPair

__all__ = ["add_verifier_options", "at_least", "verifier_with"]


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
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:i (default auto)")
    group.add_argument("--dtype", default="float32", choices=DTYPES, help="of the verifier")
    group.add_argument("--pad-token", help="for tokenizers that name none")
    group.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that comes with the model (never by default)",
    )


def verifier_with(args: argparse.Namespace, draft: str) -> ModelPair:
    """The verifier that the options name, paired with `draft`; `skip:` is the verifier itself."""
    fixed = {"pair": None, "draft": draft, "device_map": None, "allow_padded_vocab": False}
    return pair_from(argparse.Namespace(**(vars(args) | fixed)))


def at_least(args: argparse.Namespace, **lowest: float) -> None:
    """Raise a UserError naming the first option whose value is below its lowest."""
    for name, bound in lowest.items():
        value = getattr(args, name)
        if value is not None and not value >= bound:
            raise UserError(f"--{name.replace('_', '-')} must be at least {bound}, got {value}")

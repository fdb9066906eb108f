"""Find which decoder layers of a verifier a draft can do without.

    python -m real_models.search_layers --verifier smollm2 --drop 4

Greedy search: leave out the one layer without which the draft is accepted most, then the next
one, and so on. Acceptance is Σ min(p, q) at temperature 1, exact, over texts that the verifier
has written. Every draft that is tried shares the verifier's tensors and costs one pass over the
texts; with L layers, `--drop n` tries L + (L − 1) + … + (L − n + 1) of them.

The prompts are those of `calibration.jsonl` unless others are named, and not the ones that pairs
are measured on: layers chosen on the measured texts would flatter the draft.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from real_models.derived.layer_skip import skip_layers, skip_name
from real_models.drafts.texts import (
    CALIBRATION_PROMPTS,
    Acceptance,
    Calibration,
    acceptance,
    calibrate,
)
from real_models.errors import UserError
from real_models.models.pair import ModelPair
from real_models.options.command_line import at_least, run
from real_models.options.outputs import require_writable
from real_models.options.verifier import add_verifier_options, verifier_with
from real_models.prompts import read_prompts
from sim.checks import shorten
from sim.commandline import Parser
from sim.jobs.files import json_text, write_whole
from sim.jobs.progress import track

__all__ = ["LayerSearch", "SearchStep", "main", "search_layers"]

EXAMPLE = """example:
  python -m real_models.search_layers --verifier smollm2 --drop 4 --out layers.json
  python -m real_models.record --verifier smollm2 --draft skip:14,16,17 --out trace
"""


@dataclass(frozen=True)
class SearchStep:
    """One layer left out.

    layer      : the layer that this step leaves out.
    layers     : all that are left out by now, in the order in which they were found.
    acceptance : of the draft without them.
    tried      : mean acceptance by the layer left out in its place.
    """

    layer: int
    layers: tuple[int, ...]
    acceptance: Acceptance
    tried: dict[int, float] = field(repr=False)


@dataclass(frozen=True)
class LayerSearch:
    """The path of a greedy search."""

    steps: tuple[SearchStep, ...]

    @property
    def draft(self) -> str:
        """The draft at the end of the path, as `--draft` takes it: `skip:14,16,17`."""
        return skip_name(self.steps[-1].layers)


def search_layers(
    verifier: PreTrainedModel,
    calibration: Calibration,
    drop: int,
    candidates: Iterable[int] | None = None,
    *,
    report: Callable[[SearchStep], object] = lambda step: None,
) -> LayerSearch:
    """Leave out `drop` layers, one after the other, each time the one that costs least.

    candidates : the layers that may be left out; None for all. Of equal layers the lowest goes.
    report     : called with every step as soon as it is found.

    Raises UserError when the candidates are too few or no layers of the verifier, or when the
    architecture's layers cannot be left out.
    """
    left = _candidates(verifier, drop, candidates)
    steps: list[SearchStep] = []
    dropped: tuple[int, ...] = ()
    for count in range(1, drop + 1):
        bar = track(left, f"layer {count} of {drop}", "draft")
        tried = {i: acceptance(skip_layers(verifier, (*dropped, i)), calibration) for i in bar}
        best = max(left, key=lambda layer: tried[layer].mean)
        left.remove(best)
        dropped = (*dropped, best)
        means = {layer: result.mean for layer, result in tried.items()}
        steps.append(SearchStep(best, dropped, tried[best], means))
        report(steps[-1])
    return LayerSearch(tuple(steps))


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run(_parser, _main, argv, interrupted="nothing is kept")


def _candidates(
    verifier: PreTrainedModel, drop: int, candidates: Iterable[int] | None
) -> list[int]:
    """The layers to try, ascending and checked against the verifier."""
    total = verifier.config.get_text_config(decoder=True).num_hidden_layers
    if not 1 <= drop < total:
        raise UserError(f"cannot leave out {drop} of {total} layers: 1 … {total - 1} are possible")
    layers = sorted(set(range(total) if candidates is None else candidates))
    for layer in layers:
        if not 0 <= layer < total:
            raise UserError(f"candidate {layer} is no layer: the verifier has 0 … {total - 1}")
    if len(layers) < drop:
        raise UserError(f"cannot leave out {drop} layers of {len(layers)} candidates")
    return layers


def _main(args: argparse.Namespace) -> int:
    """Check what is cheap, load the verifier, search, and say what was found."""
    at_least(args, drop=1, positions=1, seed=0)
    if args.out is not None and not args.out.parent.is_dir():
        raise UserError(f"--out: there is no folder {args.out.parent}")
    require_writable(args.out)
    prompts, digest = read_prompts(args.prompts)
    pair = verifier_with(args, "skip:")
    _candidates(pair.verifier, args.drop, args.candidates)
    calibration = calibrate(pair, prompts, args.positions, args.seed)
    report = (lambda step: None) if args.json else _print_step
    found = search_layers(pair.verifier, calibration, args.drop, args.candidates, report=report)
    document = _document(pair, calibration, found, args.seed, digest)
    text = json_text(document)
    if args.out is not None:
        data = f"{text}\n".encode()
        write_whole(args.out.resolve(), lambda file: file.write(data), tag=f"part{os.getpid()}")
    print(text if args.json else f"--draft {found.draft}")
    return 0


def _print_step(step: SearchStep) -> None:
    """One line per step: the layer, the acceptance without it, and all layers so far."""
    print(f"without {step.layer:3}: {step.acceptance}   {skip_name(step.layers)}", flush=True)


def _document(
    pair: ModelPair, calibration: Calibration, found: LayerSearch, seed: int, digest: str
) -> dict[str, Any]:
    """What was found, and all that decides it."""
    steps = [
        {
            "layer": step.layer,
            "layers": list(step.layers),
            "acceptance": step.acceptance.mean,
            "acceptance_se": step.acceptance.standard_error,
            "tried": step.tried,
        }
        for step in found.steps
    ]
    return {
        "verifier": pair.verifier_name,
        "verifier_revision": pair.verifier_revision,
        "compute_dtype": str(pair.verifier.dtype).removeprefix("torch."),
        "prompts_sha256": digest,
        "texts": len(calibration.texts),
        "positions": calibration.positions,
        "seed": seed,
        "steps": steps,
        "draft": found.draft,
    }


def _layer_numbers(text: str) -> list[int]:
    """The layers of `12,13,14-18`; an ArgumentTypeError for texts of another form."""
    layers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part.strip())
        more = range(int(found[1]), int(found[2] or found[1]) + 1) if found else ()
        if not more:
            raise argparse.ArgumentTypeError(f"expected layers like 3-10,14, got {shorten(text)!r}")
        layers += more
    return layers


def _parser() -> Parser:
    """The options of `python -m real_models.search_layers`."""
    parser = Parser(
        "real_models.search_layers",
        description="Find which decoder layers of a verifier a draft can do without.",
        epilog=EXAMPLE,
    )
    parser.add_argument("--drop", type=int, required=True, help="how many layers to leave out")
    parser.add_argument(
        "--candidates", type=_layer_numbers, help="layers that may go, e.g. 3-10,14 (default all)"
    )
    parser.add_argument(
        "--prompts",
        default=CALIBRATION_PROMPTS,
        help="JSON lines (default: eight prompts of the package, apart from the measured ones)",
    )
    parser.add_argument("--positions", type=int, default=32, help="per prompt (default 32)")
    parser.add_argument("--out", type=Path, help="JSON file for what was found")
    add_verifier_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())

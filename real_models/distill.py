"""Train a small draft of a verifier and save it as a model folder.

    python -m real_models.distill --verifier smollm2 --layers 20 --minutes 7 --out drafts/twenty

The draft starts as the verifier without some of its layers, or as any other draft, and is trained
on texts that the verifier writes. `--layers` leaves layers out at even distances; those that
`real_models.search_layers` finds make a better start. Acceptance Σ min(p, q) at temperature 1 is
reported before and after, on prompts that the training has not seen. The folder goes to `--draft`
like any other model; it appears when it is complete, and an interrupted training leaves none.
"""

import argparse
import dataclasses
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from real_models.derived.layer_skip import skip_layers, skip_name
from real_models.drafts.distillation import Distilled, TrainingSettings, distill, even_layers
from real_models.drafts.text_batches import sample_texts
from real_models.drafts.texts import (
    CALIBRATION_PROMPTS,
    OPENINGS,
    Acceptance,
    acceptance,
    calibrate,
)
from real_models.errors import UserError
from real_models.models.bundled import BUNDLED
from real_models.models.pair import ModelPair
from real_models.options.command_line import at_least, run
from real_models.options.verifier import add_verifier_options, verifier_with
from real_models.prompts import Prompt, read_prompts
from sim.commandline import Parser
from sim.jobs.files import json_text, make_folder, write_json
from sim.jobs.folder_lock import owned

__all__ = ["main", "save_draft"]

EXAMPLE = """example:
  python -m real_models.distill --layers 20 --texts 200 --minutes 7 --out drafts/twenty
  python -m real_models.record --verifier smollm2 --draft drafts/twenty --out trace
"""

_VITAL = {BUNDLED: (0, 1, 2, 11, 28, 29)}
"""Layers that no draft of a verifier can do without; of one not listed, the first and the last."""


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run(_parser, _main, argv, interrupted="no draft is left behind")


def save_draft(pair: ModelPair, distilled: Distilled, folder: Path, facts: dict[str, Any]) -> None:
    """Write weights, configuration, tokenizer and `distillation.json`; all of it or nothing."""
    with _whole_folder(folder) as work:
        distilled.draft.save_pretrained(work)
        pair.tokenizer.save_pretrained(work)
        write_json(work / "distillation.json", facts)


def _main(args: argparse.Namespace) -> int:
    """Check what is cheap, load, sample, train, save, and say what came of it."""
    at_least(args, layers=1, texts=1, length=1, positions=1, batch=1, steps=1, seed=0)
    settings = TrainingSettings(
        minutes=7.0 if args.steps is None and args.minutes is None else args.minutes,
        steps=args.steps,
        batch=args.batch,
        learning_rate=args.learning_rate,
        seed=args.seed,
    )
    openings, held_out = _prompts(args)
    with _owned(args.out):
        _make(args, settings, openings, held_out)
    return 0


def _make(
    args: argparse.Namespace,
    settings: TrainingSettings,
    openings: list[Prompt],
    held_out: list[Prompt],
) -> None:
    pair = _starting_pair(args)
    calibration = calibrate(pair, held_out, args.positions, args.seed)
    before = acceptance(pair.draft, calibration)
    _say(args, f"{pair.draft_name}: {before} accepted on {len(held_out)} prompts held out")
    texts = sample_texts(pair, openings, args.texts, args.length, seed=args.seed)
    began = time.monotonic()
    distilled = distill(pair.verifier, pair.draft, texts, settings, pair.vocabulary)
    seconds = time.monotonic() - began
    after = acceptance(distilled.draft, calibration)
    facts = _facts(pair, settings, distilled, before, after) | {
        "texts": len(texts),
        "positions": sum(text.positions for text in texts),
        "seconds": round(seconds, 1),
    }
    save_draft(pair, distilled, args.out, facts)
    _say(args, f"{args.out}: {after} after {len(distilled.losses)} steps in {seconds:.0f} s")
    if args.json:
        print(json_text(facts))


def _prompts(args: argparse.Namespace) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts to train on and those held out; a UserError when they share one."""
    openings, held_out = read_prompts(args.openings)[0], read_prompts(args.prompts)[0]
    seen = {prompt.prompt for prompt in openings}
    for prompt in held_out:
        if prompt.prompt in seen:
            raise UserError(f"prompt {prompt.id!r} of --prompts is in --openings: not held out")
    return openings, held_out


def _starting_pair(args: argparse.Namespace) -> ModelPair:
    """The verifier with the draft that the training starts from."""
    if args.start is not None:
        return verifier_with(args, args.start)
    pair = verifier_with(args, "skip:")
    total = pair.verifier.config.get_text_config(decoder=True).num_hidden_layers
    vital = _VITAL.get(args.verifier, tuple(sorted({0, total - 1})))
    kept = even_layers(total, args.layers, vital)
    drop = [layer for layer in range(total) if layer not in kept]
    return dataclasses.replace(
        pair,
        draft=skip_layers(pair.verifier, drop),
        draft_name=f"{pair.verifier_name} {skip_name(drop)}",
    )


def _facts(
    pair: ModelPair,
    settings: TrainingSettings,
    distilled: Distilled,
    before: Acceptance,
    after: Acceptance,
) -> dict[str, Any]:
    """Where the draft comes from, how it was trained, and what it gained.

    First and last loss are means over ten steps, in nats per position.
    """
    return {
        "verifier": pair.verifier_name,
        "verifier_revision": pair.verifier_revision,
        "start": pair.draft_name,
        "start_revision": pair.draft_revision,
        "training": dataclasses.asdict(settings),
        "steps": len(distilled.losses),
        "loss_first": _mean(distilled.losses[:10]),
        "loss_last": _mean(distilled.losses[-10:]),
        "held_out_before": dataclasses.asdict(before),
        "held_out_after": dataclasses.asdict(after),
    }


def _mean(losses: Sequence[float]) -> float:
    """The mean of a few losses; nan of none."""
    return sum(losses) / len(losses) if losses else float("nan")


def _say(args: argparse.Namespace, line: str) -> None:
    """Print a line of the report, unless one JSON document is all that was asked for."""
    if not args.json:
        print(line, flush=True)


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Own the name of a folder that is not there yet, by a hidden one beside it that goes again.

    Raises UserError where the folder is there, OSError naming the process that makes it now.
    """
    beside = folder.with_name(f".{folder.name}.making")
    make_folder(folder.parent)
    with owned(beside):
        try:
            if folder.exists():
                raise UserError(f"--out: {folder} is there already")
            yield
        finally:
            shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """A working folder that takes the name `folder` when it is filled, and else disappears."""
    make_folder(folder.parent)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield work
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _parser() -> Parser:
    """The options of `python -m real_models.distill`."""
    parser = Parser(
        "real_models.distill",
        description="Train a small draft of a verifier and save it as a model folder.",
        epilog=EXAMPLE,
    )
    parser.add_argument("--out", required=True, type=Path, help="new folder of the draft")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--start", help="a draft to start from: skip:8,9,10, or a model folder")
    start.add_argument(
        "--layers", type=int, help="start from this many layers, the vital ones among them"
    )
    parser.add_argument("--texts", type=int, default=200, help="to train on (default 200)")
    parser.add_argument("--length", type=int, default=64, help="tokens per text (default 64)")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--minutes", type=float, help="of training (default 7)")
    limit.add_argument("--steps", type=int, help="of training: the same result on any machine")
    parser.add_argument("--batch", type=int, default=4, help="texts per step (default 4)")
    parser.add_argument("--learning-rate", type=float, default=5e-4, help="highest (default 5e-4)")
    parser.add_argument(
        "--openings", default=OPENINGS, help="JSON lines to train on (default: forty of our own)"
    )
    parser.add_argument(
        "--prompts",
        default=CALIBRATION_PROMPTS,
        help="JSON lines held out (default: the eight that layers are searched on)",
    )
    parser.add_argument("--positions", type=int, default=32, help="per prompt held out")
    add_verifier_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())

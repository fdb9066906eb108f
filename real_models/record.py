"""Record the logits of a draft and a verifier along the same texts.

    python -m real_models.record --pair smollm2-skip3 --out traces/smollm2-skip3

Each prompt is continued by the verifier (or the draft, or scored as it stands), both models
score the whole text in one forward pass each, and the logits that predict the continuation are
stored. An interrupted recording is resumed by the same command and loses no finished prompt.
"""

import argparse
import hashlib
import importlib.metadata
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path

from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.models.logits import CutMass, naming, told_cut
from real_models.models.pair import ModelPair
from real_models.options.command_line import (
    add_pair_options,
    add_sampling_options,
    at_least,
    pair_from,
    run,
    sampling_from,
)
from real_models.options.ranks import ranks
from real_models.options.recording import recorded_cut
from real_models.options.threads import add_threads_option, set_threads
from real_models.prompts import Prompt, read_prompts, told_form
from real_models.traces.contexts import CONTEXTS, make_text, score, start_ids
from real_models.traces.format import (
    HEADER_FILE,
    STORED_DTYPES,
    TraceHeader,
)
from real_models.traces.writer import TraceWriter
from sim.commandline import Parser
from sim.jobs.files import write_json
from sim.jobs.folder_lock import owned, require_free, withdraw_manifest
from sim.jobs.progress import track

__all__ = ["main", "record", "trace_header"]

EXAMPLE = """example:
  python -m real_models.record --pair smollm2-skip3 --positions 64 --out traces/smollm2-skip3
  python -m real_models.record --verifier smollm2 --draft skip:14,17 --prompts my.jsonl --out t2
"""


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run(_parser, _main, argv)


def record(
    pair: ModelPair,
    prompts: list[Prompt],
    writer: TraceWriter,
    *,
    settings: SamplingSettings,
    rank: int = 0,
    world: int = 1,
) -> int:
    """Record every prompt that the trace does not hold yet; return the number of new ones.

    Contexts, positions and seed are those of the writer's header. With several processes,
    prompt i belongs to the one whose rank is i modulo world.

    Raises UserError naming the prompt, before any is recorded, when one cannot be used, or naming
    model, prompt and position where logits are no distribution or lose too much by a cut.
    """
    header = writer.header
    for prompt in prompts:
        start_ids(pair, prompt, header.contexts, header.positions)
    mine = [i for i in range(rank, len(prompts), world) if writer.finished(i) is None]
    for index in track(mine, "record", "prompt"):
        prompt = prompts[index]
        text = make_text(pair, prompt, header.contexts, header.positions, settings, header.seed)
        cut: dict[str, CutMass] = {}
        with naming([prompt.id]):
            draft, verifier = score(pair, text, cut)
        shares = {role: mass.facts() for role, mass in cut.items() if mass.positions}
        writer.append(
            index, prompt.id, prompt.domain, text.ids, draft, verifier, ended=text.ended, cut=shares
        )
    return len(mine)


def trace_header(
    pair: ModelPair,
    prompts_sha256: str,
    prompts: int,
    *,
    contexts: str,
    settings: SamplingSettings,
    seed: int,
    positions: int,
    dtype: str = "float32",
) -> TraceHeader:
    """The header that describes a recording of this pair."""
    return TraceHeader(
        pair=pair.name,
        verifier=pair.verifier_name,
        verifier_revision=pair.verifier_revision,
        draft=pair.draft_name,
        draft_revision=pair.draft_revision,
        tokenizer_hash=pair.tokenizer_hash,
        contexts=contexts,
        sampling=None if contexts == "given" else settings.filters,
        seed=seed,
        positions=positions,
        prompts=prompts,
        prompts_sha256=prompts_sha256,
        vocabulary=pair.vocabulary,
        logit_widths=pair.logit_widths,
        end_tokens=list(pair.end_tokens),
        compute_dtype=str(pair.verifier.dtype).removeprefix("torch."),
        dtype=dtype,
        device=pair.device.type,
        versions={n: importlib.metadata.version(n) for n in ("numpy", "torch", "transformers")},
    )


def _main(args: argparse.Namespace) -> int:
    """Check everything that is cheap, own the folder, load the models, record, and tell."""
    settings = sampling_from(args)
    at_least(args, positions=1, seed=0, threads=1)
    set_threads(args.threads)
    if args.resume and not (args.out / HEADER_FILE).is_file():
        raise UserError(f"--resume: {args.out} holds no trace")
    prompts, digest = read_prompts(args.prompts)
    prompts, digest = _put(prompts, digest, args.chat)
    rank, world = ranks()
    require_free(args.out, part=rank)
    pair = pair_from(args)
    with owned(args.out, part=rank):
        _record_and_tell(args, pair, prompts, digest, settings, rank, world)
    return 0


def _record_and_tell(
    args: argparse.Namespace,
    pair: ModelPair,
    prompts: list[Prompt],
    digest: str,
    settings: SamplingSettings,
    rank: int,
    world: int,
) -> None:
    started = time.time()
    given = args.contexts == "given"
    print(
        "prompts as raw text" if given else told_form(prompts, pair.tokenizer, pair.verifier_name)
    )
    header = trace_header(
        pair,
        digest,
        len(prompts),
        contexts=args.contexts,
        settings=settings,
        seed=args.seed,
        positions=args.positions,
        dtype=args.store_dtype,
    )
    writer = TraceWriter(args.out, header, shard=rank)
    if rank == 0 and any(writer.finished(index) is None for index in range(len(prompts))):
        withdraw_manifest(args.out)
    new = record(pair, prompts, writer, settings=settings, rank=rank, world=world)
    _report(writer, len(prompts))
    seconds = time.time() - started
    print(f"Recorded {new} prompts in {seconds:.1f} s." if new else "Nothing was left to record.")
    manifest = args.out / "manifest.json"
    if rank == 0 and (new or not manifest.is_file()):  # that of the recording stays
        _write_manifest(manifest, started, new)


def _report(writer: TraceWriter, prompts: int) -> None:
    """Print what the trace holds now, and name the texts that ended early."""
    entries = [e for e in map(writer.finished, range(prompts)) if e is not None]
    print(f"{writer.folder}: {len(entries)} of {prompts} prompts, {writer.positions} positions")
    for entry in entries:
        if entry.ended:
            print(f"  {entry.prompt_id}: the text ended after {entry.positions} positions")
    for line in told_cut(recorded_cut(entries)):
        print(line)


def _put(prompts: list[Prompt], digest: str, chat: bool | None) -> tuple[list[Prompt], str]:
    """Prompts that do not say how they are put take --chat or --no-chat, and so does the digest."""
    if chat is None:
        return prompts, digest
    put = [p if p.chat is not None else replace(p, chat=chat) for p in prompts]
    return put, hashlib.sha256(f"{digest} chat={chat}".encode()).hexdigest()


def _write_manifest(path: Path, started: float, recorded: int) -> None:
    """Facts of this run that do not belong to the record: when, where, by which command."""
    manifest = {
        "command": [Path(sys.executable).name, *sys.orig_argv[1:]],
        "platform": platform.platform(),
        "python": platform.python_version(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(time.time() - started, 3),
        "prompts_recorded": recorded,
    }
    write_json(path, manifest)


def _parser() -> Parser:
    """The options of `python -m real_models.record`."""
    parser = Parser(
        "real_models.record",
        description="Record the logits of a draft and a verifier along the same texts.",
        epilog=EXAMPLE,
    )
    parser.add_argument("--out", required=True, type=Path, help="folder of the trace")
    parser.add_argument("--prompts", help="JSON lines, or a .txt file with a prompt a line "
        "(default: ten prompts of the package)")  # fmt: skip
    parser.add_argument(
        "--chat",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="put prompts that do not say it through the model's chat template, or do not "
        "(default: where there is one)",
    )
    parser.add_argument("--positions", type=int, default=64, help="per prompt (default 64)")
    parser.add_argument(
        "--contexts",
        choices=CONTEXTS,
        default="verifier",
        help="text sampled from the verifier (default), sampled from the draft, or given: the "
        "prompts themselves, without a chat template",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sampled texts (default 0)")
    add_threads_option(parser)
    parser.add_argument(
        "--store-dtype",
        choices=STORED_DTYPES,
        default="float32",
        help="of the logits on disk (default float32)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="insist that a trace is there; one that is there is always resumed",
    )
    add_sampling_options(parser)
    add_pair_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())

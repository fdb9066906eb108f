"""Measure every rule on a recorded trace: acceptance against divergence, with standard errors.

    python -m real_models.measure traces/smollm2-skip3 --out results/smollm2-skip3

The table, the pictures and the report are those of `python -m sim.sweep`; a pair is a sampling
setting, and standard errors are clustered by prompt.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from real_models.errors import UserError
from real_models.measuring.bounds import BoundedResults, bound_part, left_open
from real_models.measuring.headlines import headlines, sentences
from real_models.measuring.parts import Part, Resources, make_parts, measure_part, trace_digest
from real_models.measuring.spans import Span, positions_inside, require_strict, span_text
from real_models.measuring.tables import Results
from real_models.models.loading import resolve_device
from real_models.models.logits import told_cut
from real_models.options.recording import (
    CODE,
    DEFAULT_SETTINGS,
    open_recording,
    parse_bytes,
    parse_samplings,
    recorded_cut,
)
from real_models.traces.decided import decided_rules, require_decided
from real_models.traces.reader import Trace
from sim.commandline import Parser, check_jobs, parse_settings, run_command
from sim.jobs.engine import Frames, backend_context, check_backend, run_cells
from sim.jobs.files import json_text, make_folder, write_json, write_whole
from sim.jobs.folder_lock import owned, withdraw_manifest
from sim.jobs.manifest import make_manifest
from sim.report.bounds import Written, bounds_text, write_bounds
from sim.report.outputs import write_outputs
from sim.tables.findings import summary_text
from sim.tables.grid import Setting
from theory import RULES

__all__ = ["main"]

_PARTS = ".cells"
_OWNER = "trace.json"
_EXAMPLE = """examples:
  python -m real_models.measure traces/smollm2-skip3 --out results/smollm2-skip3
  python -m real_models.measure traces/smollm2-skip3 --settings "T=1" "T=1 greedy-draft" \\
      --rules sps cactus lenience frontier --values cactus=0.01,0.1,1 --memory-limit 512MiB

rules: {rules}
"""


@dataclass(frozen=True)
class Plan:
    """What a command line asks for, checked."""

    trace: Trace
    settings: tuple[Setting, ...]
    resources: Resources
    parts: dict[str, tuple[Part, tuple[Setting, ...]]]
    jobs: int
    inside: dict[str, np.ndarray] | None = None  # by prompt, the positions in the span
    bounds: dict[str, tuple[Part, tuple[Setting, ...]]] = field(default_factory=dict)
    bounded: tuple[Setting, ...] = ()  # the settings that they bound


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit status: 0, 2 for bad arguments, 130 if interrupted."""
    return run_command(_parser, _plan, _work, arguments)


def _parser() -> Parser:
    example = _EXAMPLE.format(rules=", ".join(RULES))
    parser = Parser(
        "real_models.measure",
        usage="python -m real_models.measure TRACE [options]",  # --settings would take TRACE in
        description=__doc__,
        epilog=example,
    )
    add = parser.add_argument
    add("trace", type=Path, metavar="TRACE", help="folder written by real_models.record")
    add("--rules", nargs="+", default=list(RULES), help="rule names (default: all)")
    add("--values", nargs="+", default=[], metavar="[RULE=]VALUE[,VALUE…]",
        help="parameter values, of all rules or of one (default: 13 or more of each)")  # fmt: skip
    add("--settings", nargs="+", default=list(DEFAULT_SETTINGS), metavar="SETTING",
        help="temperature and filters of both models; 'T=1 greedy-draft' for a draft that proposes "
        f"its likeliest token (default: {' and '.join(map(repr, DEFAULT_SETTINGS))})")  # fmt: skip
    add("--span", nargs=2, metavar=("BEGIN", "END"),
        help="token ids of two markers, several joined by commas: tell also what each rule does "
        "between them")  # fmt: skip
    add("--device", default="auto", help="auto, cpu, cuda or cuda:i (default auto)")
    add("--memory-limit", metavar="SIZE",
        help="for the arrays of each process (default: 1GiB, 8GiB on a CUDA device)")  # fmt: skip
    add("--jobs", type=int, help="processes; -1 is all cores (default: -1, 1 on a CUDA device)")
    add("--backend", default="loky", help="joblib backend: loky, threading, dask, …")
    add("--scheduler", help="address of the dask scheduler, for example tcp://…:8786")
    add("--out", type=Path, default=Path("results/measure"), help="folder for the results")
    add("--resume", action="store_true", help="keep the parts that an interrupted run finished")
    add("--json", action="store_true", help="print one JSON document and nothing else")
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    """Check every argument and the whole trace, its digests included."""
    check_jobs(1 if options.jobs is None else options.jobs)
    check_backend(options.backend, options.scheduler)
    chosen = parse_settings(options.rules, options.values)
    samplings = parse_samplings(options.settings)
    device = resolve_device(options.device)
    limit = parse_bytes(options.memory_limit or ("1GiB" if device.type == "cpu" else "8GiB"))
    resources = Resources(str(device), limit)
    trace = open_recording(options.trace)
    unsettled, bounded = left_open(trace, samplings), chosen
    samplings = tuple(sampling for sampling in samplings if sampling not in unsettled)
    require_decided(trace, samplings)
    if samplings:
        rules = decided_rules(trace, list(dict.fromkeys(setting.rule for setting in chosen)))
        chosen = tuple(setting for setting in chosen if setting.rule in rules)
    elif options.span is not None:
        raise UserError(f"--span needs a setting that the lists decide, not {unsettled[0].label!r}")
    if options.resume:
        _check_owner(options.out, trace)
    jobs = options.jobs or (-1 if device.type == "cpu" else 1)
    parts = make_parts(trace, samplings, chosen, resources)
    return Plan(
        trace,
        chosen,
        resources,
        parts,
        jobs,
        inside=_inside(options, trace, chosen),
        bounds=make_parts(trace, unsettled, bounded, resources),
        bounded=bounded,
    )


def _inside(
    options: argparse.Namespace, trace: Trace, chosen: tuple[Setting, ...]
) -> dict[str, np.ndarray] | None:
    """The positions in the span that was asked for."""
    if options.span is None:
        return None
    require_strict(chosen)
    return positions_inside(trace, Span.parse(options.span))


def _work(options: argparse.Namespace, plan: Plan) -> None:
    with owned(options.out, command="real_models.measure"):
        _measure_and_write(options, plan)


def _measure_and_write(options: argparse.Namespace, plan: Plan) -> None:
    started = time.perf_counter()
    _own(options.out, plan.trace, options.resume)
    results = Results(_run(options, plan, measure_part, plan.parts), plan.settings, **_of(plan))
    bounds = BoundedResults(_run(options, plan, bound_part, plan.bounds), plan.bounded, **_of(plan))
    withdraw_manifest(options.out)
    written = Written()
    if plan.bounds:
        written = write_bounds(options.out, bounds.table(), bounds.frontier())
    manifest = _manifest(options, plan, time.perf_counter() - started)
    if not plan.parts:
        files = {**written.files, "manifest.json": options.out / "manifest.json"}
        write_json(files["manifest.json"], manifest)
        _tell(options, files, None, [], manifest, bounds=written.table)
        return
    table, more = _tables(options.out, plan, results)
    files, summary = write_outputs(
        options.out, table, results.frontier(), manifest, _title(table), written.pictures
    )
    files |= {name: options.out / name for name in more} | written.files
    spans = more.get("spans.parquet")
    _tell(options, files, summary, headlines(table), manifest, spans, written.table)


def _tables(
    out: Path, plan: Plan, results: Results
) -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """The table, and the tables beside it, which are written."""
    more = {"groups.parquet": results.groups(), "quantiles.parquet": results.quantiles()}
    if plan.inside is not None:
        more["spans.parquet"] = results.spans(plan.inside)
    for name, frame in more.items():
        frame.to_parquet(out / name, index=False)
    return results.table(), more


def _title(table: pd.DataFrame) -> str:
    """What was measured, for the head of the report."""
    rules, positions = table["rule"].nunique(), table["positions"].iloc[0]
    samplings = " and ".join(dict.fromkeys(table["pair"]))
    counted = "1 rule" if rules == 1 else f"{rules} rules"
    return f"{table['source'].iloc[0]} at {samplings}: {counted} at {positions} recorded positions"


def _run(
    options: argparse.Namespace,
    plan: Plan,
    function: Callable[..., Frames],
    parts: dict[str, tuple[Part, tuple[Setting, ...]]],
) -> Frames:
    """Run the parts that are not finished yet, and join all of them."""
    if not parts:
        return {}
    with backend_context(options.backend, options.scheduler):
        return run_cells(
            function,
            parts,
            options.out / _PARTS,
            jobs=plan.jobs,
            resume=True,  # _own has emptied the folder where nothing is to be kept
            stamp=CODE.stamp,
            label="measure",
        )


def _of(plan: Plan) -> dict[str, Any]:
    """What the results are of."""
    return {"source": plan.trace.header.pair, "vocab": plan.trace.header.vocabulary}


def _check_owner(out: Path, trace: Trace) -> None:
    """Raise UserError where the parts in a folder are those of another trace."""
    path = out / _PARTS / _OWNER
    if path.is_file() and json.loads(path.read_text(encoding="utf-8"))["trace"] != trace_digest(
        trace
    ):
        raise UserError(
            f"--resume: {out} holds parts of another recording than {trace.folder}; "
            "give another --out, or measure afresh without --resume"
        )


def _own(out: Path, trace: Trace, resume: bool) -> None:
    """Note whose parts the folder is for; without `resume` drop those that are there."""
    folder = out / _PARTS
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    owner = json.dumps({"trace": trace_digest(trace)}).encode()
    write_whole(folder / _OWNER, lambda file: file.write(owner))


def _manifest(options: argparse.Namespace, plan: Plan, seconds: float) -> dict[str, Any]:
    """What was measured, by which command and code, and how long it took."""
    trace = plan.trace
    kept = ("imports", "rules", "values", "settings", "span", "backend")
    arguments = {"trace": str(options.trace), **{name: getattr(options, name) for name in kept}}
    arguments |= {**vars(plan.resources), "jobs": plan.jobs}
    recorded = {
        "sha256": trace_digest(trace),
        "verifier": trace.header.verifier,
        "draft": trace.header.draft,
        "contexts": trace.header.contexts,
        "prompts": len(trace.chunks),
        "prompts_asked_for": trace.header.prompts,
        "positions": trace.positions,
        "cut": recorded_cut([chunk.entry for chunk in trace.chunks]),
    }
    return make_manifest("real_models.measure", arguments, seconds, CODE, trace=recorded)


def _tell(
    options: argparse.Namespace,
    files: dict[str, Path],
    summary: pd.DataFrame | None,
    told: list[dict[str, Any]],
    manifest: dict[str, Any],
    spans: pd.DataFrame | None = None,
    bounds: pd.DataFrame | None = None,
) -> None:
    paths = {name: str(path) for name, path in files.items()}
    if options.json:
        records = [] if summary is None else summary.to_dict("records")
        document = {"files": paths, "headlines": told, "summary": records, "manifest": manifest}
        if spans is not None:
            document["spans"] = spans.to_dict("records")
        if bounds is not None:
            document["bounds"] = bounds.to_dict("records")
        print(json_text(document))
        return
    trace = manifest["trace"]
    print(f"{trace['positions']} positions of {trace['prompts']} prompts; ± one standard error")
    if trace["prompts"] < trace["prompts_asked_for"]:
        print(f"The trace is not finished: {trace['prompts_asked_for']} prompts were asked for.")
    for line in told_cut(trace["cut"]):
        print(line)
    for facts in told:
        print("\n" + "\n".join(sentences(facts)))
    if summary is not None:
        print(f"\n{summary_text(summary)}")
    if spans is not None:
        print(f"\n{span_text(spans)}")
    if bounds is not None:
        print(f"\n{bounds_text(bounds)}")
    print(f"\nMeasured in {manifest['wall_seconds']:.1f} s. Written:")
    for path in paths.values():
        print(f"  {path}")


if __name__ == "__main__":
    sys.exit(main())

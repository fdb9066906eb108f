"""How much longer commands take while other work keeps every core busy.

    python -m benchmarks.busy          # a quarter of an hour on two cores that are otherwise idle

Each command of the README is run alone, and then beside one process with as many busy threads as
there are cores. A fair scheduler leaves half of the machine: twice the time. What is more than that
comes of threads that wait for each other. Written to `benchmarks/results/busy.json`.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import joblib

from sim.commandline import Parser, execute
from sim.jobs.files import write_json
from sim.jobs.manifest import versions
from sim.jobs.progress import Progress

__all__ = ["main"]

RESULTS = Path(__file__).with_name("results") / "busy.json"
GOAL = 2.0
_PAIR = ("--pair", "smollm2-skip3")
_FILTERS = ("--temperature", "0.6", "--top-p", "0.95", "--top-k", "20")


def commands(folder: Path) -> dict[str, list[str]]:
    """The commands by name; what `record` writes, `measure` reads."""
    trace = str(folder / "trace")
    return {
        "record": ["real_models.record", *_PAIR, "--out", trace],
        "measure": ["real_models.measure", trace, "--out", str(folder / "measured")],
        "decode": ["real_models.decode", *_PAIR, "--rule", "cactus", "--delta", "0.1", *_FILTERS,
            "--new-tokens", "32", "--out", str(folder / "texts.jsonl")],
    }  # fmt: skip


def seconds_of(command: list[str]) -> float:
    """The time of a command from its start to its end, the imports included."""
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", *command],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    return time.perf_counter() - begun


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy in the block."""
    workers = [
        multiprocessing.Process(target=_spin, daemon=True) for _ in range(joblib.cpu_count())
    ]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()


def _spin() -> None:
    while True:
        pass


def main(arguments: list[str] | None = None) -> int:
    """Run every command alone and beside other work; returns the exit status."""
    return execute(_parser, _work, arguments)


def _parser() -> Parser:
    parser = Parser("benchmarks.busy", description=__doc__)
    parser.add_argument("--commands", nargs="+", default=["record", "measure", "decode"])
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file for the figures")
    return parser


def _work(options: argparse.Namespace) -> int:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        alone, beside = (Path(folder) / name for name in ("alone", "beside"))
        with Progress(2 * len(options.commands), "busy", "run") as progress:
            for name in options.commands:
                idle = seconds_of(commands(alone)[name])
                progress.update()
                with busy_cores():
                    busy = seconds_of(commands(beside)[name])
                progress.update()
                found[name] = {"alone": idle, "beside_other_work": busy, "ratio": busy / idle}
    for name, figures in found.items():
        print(f"{name:8} {figures['ratio']:.2f} times its {figures['alone']:.0f} s alone")
    facts = {"cores": joblib.cpu_count(), "versions": versions("torch", "transformers")}
    write_json(options.out, {**facts, "goal": GOAL, "commands": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())

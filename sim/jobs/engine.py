"""Runs the cells of a job through joblib, and keeps each finished cell on disk at once.

One code path serves one core, all cores and a cluster. A cell is a name and the arguments of one
pure function that returns data frames.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import joblib
import pandas as pd

from sim.checks import unknown_name
from sim.extensions import Extension, ensure, loaded
from sim.jobs.cells import CellStore, Frames
from sim.jobs.processes import end_with_parent
from sim.jobs.progress import Progress

__all__ = ["Frames", "backend_context", "check_backend", "run_cells"]

# Backends whose processes are children of this one; those of a cluster are not.
_LOCAL_PROCESSES = ("LokyBackend", "MultiprocessingBackend")


def run_cells(
    function: Callable[..., Frames],
    cells: Mapping[str, tuple[Any, ...]],
    folder: Path,
    *,
    jobs: int = 1,
    resume: bool = False,
    stamp: str = "",
    label: str = "cells",
) -> Frames:
    """Run `function(*arguments)` for each cell, and return its frames joined in the order of cells.

    Finished cells are kept in `folder`, which the caller owns (see `jobs.folder_lock`), each under
    a name made of its own, its arguments and `stamp` (the version of the code); with `resume` those
    that are there and whole are read and not run again, without it the folder is emptied first. A
    cell that is there and not whole is told of on standard error, and run again. The backend is
    that of `backend_context`.
    """
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    store = CellStore(folder, stamp)
    faults = {name: store.fault(name, arguments) for name, arguments in cells.items()}
    for fault in filter(None, faults.values()):
        print(f"{label}: {fault}; this cell is run again", file=sys.stderr)
    waiting = {name: cells[name] for name, fault in faults.items() if fault is not None}
    with Progress(len(cells), label, "cell", done=len(cells) - len(waiting)) as progress:
        for name, frames in _results(function, waiting, jobs):
            store.keep(name, cells[name], frames)
            progress.update()
    return _join([store.read(name, arguments) for name, arguments in cells.items()])


@contextmanager
def backend_context(backend: str = "loky", scheduler: str | None = None) -> Iterator[None]:
    """Run the cells of the block on a joblib backend, by name; `scheduler` is the address for dask.

    Raises ValueError as `check_backend` does.
    """
    check_backend(backend, scheduler)
    client: AbstractContextManager[Any] = nullcontext()
    if backend == "dask":
        from distributed import Client

        client = Client(scheduler) if scheduler else Client()
    with client, joblib.parallel_config(backend=backend):
        yield


def check_backend(backend: str, scheduler: str | None = None) -> None:
    """Raise ValueError for an unknown backend, a missing one, and a scheduler without dask."""
    if backend != "dask" and scheduler is not None:
        raise ValueError(f"--scheduler is for the backend 'dask', got the backend {backend!r}")
    if backend == "dask" and importlib.util.find_spec("distributed") is None:
        raise ValueError("the backend 'dask' needs the package distributed, which is not installed")
    known = {*joblib.parallel.BACKENDS, *joblib.parallel.EXTERNAL_BACKENDS}
    if backend not in known:
        raise unknown_name("backend", backend, known)


def _results(
    function: Callable[..., Frames], cells: Mapping[str, tuple[Any, ...]], jobs: int
) -> Iterator[tuple[str, Frames]]:
    """(name, frames) of each cell as it finishes; after each round of `jobs` on older backends."""
    backend, _ = joblib.parallel.get_active_backend()
    parent = os.getpid() if type(backend).__name__ in _LOCAL_PROCESSES else None
    calls = [
        joblib.delayed(_named)(name, function, arguments, parent, loaded())
        for name, arguments in cells.items()
    ]
    if backend.supports_return_generator:
        more = _worker_start(backend, parent)
        yield from joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", **more)(calls)
        return
    step = joblib.effective_n_jobs(jobs)
    for start in range(0, len(calls), step):
        yield from joblib.Parallel(n_jobs=jobs)(calls[start : start + step])


def _worker_start(backend: Any, parent: int | None) -> dict[str, Any]:
    """What loky's workers do before their first cell: a parent may die before it hands one out."""
    if type(backend).__name__ != "LokyBackend":
        return {}
    return {"initializer": end_with_parent, "initargs": (parent,)}


def _named(
    name: str,
    function: Callable[..., Frames],
    arguments: tuple[Any, ...],
    parent: int | None,
    extensions: tuple[Extension, ...],
) -> tuple[str, Frames]:
    """Run a cell in whichever process it has come to, where the same rules must be known."""
    if parent is not None:
        end_with_parent(parent)
    ensure(extensions)
    return name, function(*arguments)


def _join(parts: list[Frames]) -> Frames:
    names = dict.fromkeys(name for frames in parts for name in frames)
    return {
        name: pd.concat([frames[name] for frames in parts if name in frames], ignore_index=True)
        for name in names
    }

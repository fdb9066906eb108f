"""Runs the cells of a job through joblib, and keeps each finished cell on disk at once.

One code path serves one core, all cores and a cluster. A cell is a name and the arguments of one
pure function that returns data frames; its folder appears under its final name only when complete.
"""

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import joblib
import pandas as pd
from tqdm import tqdm

from sim.checks import unknown_name

__all__ = ["Frames", "backend_context", "check_backend", "run_cells"]

Frames = dict[str, pd.DataFrame]


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

    Finished cells are kept in `folder`, each under a name made of its own, its arguments and
    `stamp` (the version of the code); with `resume` those that are there are read and not run
    again, without it the folder is emptied first. The backend is that of `backend_context`. A
    progress bar appears on a terminal only.
    """
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    places = {name: folder / _place(name, cells[name], stamp) for name in cells}
    waiting = [name for name, place in places.items() if not place.is_dir()]
    with tqdm(total=len(cells), initial=len(cells) - len(waiting), desc=label, disable=None) as bar:
        for name, frames in _results(function, {name: cells[name] for name in waiting}, jobs):
            _keep(frames, places[name])
            bar.update()
    return _join([_read(place) for place in places.values()])


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
    calls = [joblib.delayed(_named)(name, function, arguments) for name, arguments in cells.items()]
    backend, _ = joblib.parallel.get_active_backend()
    if backend.supports_return_generator:
        yield from joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(calls)
        return
    step = joblib.effective_n_jobs(jobs)
    for start in range(0, len(calls), step):
        yield from joblib.Parallel(n_jobs=jobs)(calls[start : start + step])


def _named(
    name: str, function: Callable[..., Frames], arguments: tuple[Any, ...]
) -> tuple[str, Frames]:
    return name, function(*arguments)


def _place(name: str, arguments: tuple[Any, ...], stamp: str) -> str:
    """The folder of a cell: its name, and a digest that changes with anything it depends on."""
    digest = hashlib.sha256(repr((stamp, name, arguments)).encode()).hexdigest()[:16]
    return f"{name}-{digest}"


def _keep(frames: Frames, place: Path) -> None:
    """Write the frames beside their place, then move them there in one step."""
    draft = place.with_name(f"{place.name}.{os.getpid()}.part")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for name, frame in frames.items():
        frame.to_parquet(draft / f"{name}.parquet", index=False)
    os.replace(draft, place)


def _read(place: Path) -> Frames:
    return {path.stem: pd.read_parquet(path) for path in sorted(place.glob("*.parquet"))}


def _join(parts: list[Frames]) -> Frames:
    names = dict.fromkeys(name for frames in parts for name in frames)
    return {
        name: pd.concat([frames[name] for frames in parts if name in frames], ignore_index=True)
        for name in names
    }

"""How many threads the forward passes on a CPU take."""

import argparse
import os

import joblib
import torch

from real_models.errors import UserError
from sim.checks import shorten

__all__ = ["add_threads_option", "set_threads"]

_MOST = 1024


def add_threads_option(parser: argparse._ActionsContainer) -> None:
    """Add `--threads`."""
    parser.add_argument(
        "--threads",
        type=int,
        help="of the forward passes on a CPU (default: one for each physical core that this "
        "process may use, shared among the processes of torchrun); the last digits depend on it",
    )


def set_threads(asked: int | None) -> None:
    """Use as many threads as asked for, or as many as are there to use.

    Without a wish the number is $OMP_NUM_THREADS where it is set, else that of the physical cores
    within affinity and quota, divided among the processes of this host. It does not depend on what
    else runs: the last digits, and with them an interrupted and resumed recording, would too.

    Raises UserError for a wish that is not 1 to 1024 threads.
    """
    if asked is not None and not 1 <= asked <= _MOST:
        raise UserError(f"--threads must be 1 to {_MOST}, got {shorten(str(asked))}")
    if asked is None and "OMP_NUM_THREADS" in os.environ:
        return
    sharing = os.environ.get("LOCAL_WORLD_SIZE", "1")
    cores = joblib.cpu_count(only_physical_cores=True)
    cores //= int(sharing) if sharing.isdigit() and int(sharing) else 1
    torch.set_num_threads(asked or max(1, cores))

"""Which of several processes this one is: RANK, WORLD_SIZE, LOCAL_RANK, as torchrun sets them."""

import os

from real_models.errors import UserError
from sim.checks import shorten

__all__ = ["local_rank", "ranks"]

_MOST = 2**31 - 1


def ranks() -> tuple[int, int]:
    """(rank, world) of the environment, 0 of 1 where it names none.

    Raises UserError naming the variable that is no integer or outside 0 ≤ RANK < WORLD_SIZE.
    """
    world = _variable("WORLD_SIZE", 1, 1)
    rank = _variable("RANK", 0, 0)
    local_rank()
    if rank >= world:
        raise UserError(f"the environment has RANK={rank}, which must be below WORLD_SIZE={world}")
    return rank, world


def local_rank() -> int:
    """LOCAL_RANK, the number of this process on its host; 0 where the environment names none.

    Raises UserError where it is no integer ≥ 0.
    """
    return _variable("LOCAL_RANK", 0, 0)


def _variable(name: str, default: int, least: int) -> int:
    text = os.environ.get(name, str(default)).strip()
    plain = text.isascii() and text.isdecimal() and len(text) < 20
    if not plain or not least <= int(text) <= _MOST:
        raise UserError(
            f"the environment has {name}={shorten(text)!r}, which must be an integer ≥ {least}"
        )
    return int(text)

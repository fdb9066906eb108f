"""The frontier of recorded positions as a data frame, and back.

A measurement of a trace takes minutes and may be interrupted, so what was computed at each position
is kept on disk, where all is tables.
"""

import numpy as np
import pandas as pd

from theory import CorpusFrontier
from theory.frontier.levels import CorpusArrays

__all__ = ["frontier_from_frame", "frontier_to_frame"]

_ENDS = ("strict", "reachable")


def frontier_to_frame(corpus: CorpusFrontier) -> pd.DataFrame:
    """The frontier of each position at every multiplier, one row each in the order of `add`.

    Columns: accepted_0 … and spent_0 …, the acceptance and divergence at each multiplier; the
    acceptance of strict sampling and the largest one of finite divergence.
    """
    arrays = corpus.arrays()
    count = arrays.spent.shape[1]
    names = [f"{name}_{k}" for name in ("accepted", "spent") for k in range(count)]
    return pd.DataFrame(np.concatenate(arrays, axis=1), columns=[*names, *_ENDS])


def frontier_from_frame(frame: pd.DataFrame) -> CorpusFrontier:
    """The frontier over the KL divergence of the positions in a frame of `frontier_to_frame`."""
    values = frame.to_numpy(dtype=np.float64)
    width = (values.shape[1] - len(_ENDS)) // 2
    return CorpusFrontier.from_arrays(
        CorpusArrays(*np.split(values, [width, 2 * width], axis=1)), "kl"
    )

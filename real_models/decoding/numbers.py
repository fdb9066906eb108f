"""The random numbers of a round: as many as it may need, whether they are used or not.

What each number decides does not depend on what happens before, so that neither the batch nor the
course of a round changes the numbers of the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from real_models.models.branches import tree_size

__all__ = ["Numbers"]

_PURPOSES = 3  # for each place: to draft or choose, to test, to draw the token that follows


@dataclass(frozen=True)
class Numbers:
    """Uniform on [0, 1), for a batch of texts and rounds of up to m drafts.

    nodes   : [texts, K + K² + … Kᵐ], for the token of each drafted node.
    choices : [texts, m], for the choice among the candidates of a place; of one there is none.
    tests   : [texts, m + 1, 2], for the test of each place, and for the token drawn behind it.
    """

    nodes: np.ndarray
    choices: np.ndarray
    tests: np.ndarray
    candidates: int

    @classmethod
    def draw(cls, streams: Sequence[np.random.Generator], drafts: int, candidates: int = 1) -> Self:
        """The numbers of one round, those of each text from its own stream."""
        places = np.stack([stream.random((drafts + 1, _PURPOSES)) for stream in streams])
        nodes = choices = places[:, :-1, 0]
        if candidates > 1:
            size = tree_size(candidates, drafts)
            nodes = np.stack([stream.random(size) for stream in streams])
        return cls(nodes, choices, places[:, :, 1:], candidates)

    @property
    def drafts(self) -> int:
        """m, the longest draft."""
        return self.choices.shape[1]

    def first(self, drafts: int) -> Self:
        """The numbers of a shorter round."""
        nodes = self.nodes[:, : tree_size(self.candidates, drafts)]
        tests = self.tests[:, : drafts + 1]
        return type(self)(nodes, self.choices[:, :drafts], tests, self.candidates)

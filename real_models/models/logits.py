"""What is read of a model's logits: the columns that count, checked, and how much the cut costs.

Where two models pad one vocabulary to different widths, both are cut to the tokenizer's size. That
conditions a distribution on a token that exists, and drops the mass

    c = Σ_{v ≥ V} softmax(logits)_v

of the model's plain softmax. It is rounding in a checkpoint that was trained with that tokenizer;
where it is more, the comparison would be with another law than the model's, and is refused.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from real_models.errors import LogitsError, UserError

__all__ = ["CUT_TOLERANCE", "CutMass", "LogitReader", "naming", "told_cut"]

CUT_TOLERANCE = 1e-3
"""The largest share of a distribution that may lie on columns which are cut off."""


@contextmanager
def naming(prompts: Sequence[str]) -> Iterator[None]:
    """Name the prompt in a LogitsError; `prompts` are the ids of the texts of the batch."""
    try:
        yield
    except LogitsError as error:
        raise UserError(f"prompt {prompts[error.row]!r}, {error}") from None


@dataclass
class CutMass:
    """The shares c that were cut off, over `positions` distributions."""

    positions: int = 0
    total: float = 0.0
    largest: float = 0.0

    @property
    def mean(self) -> float:
        """The mean of c; nan of nothing."""
        return self.total / self.positions if self.positions else math.nan

    def add(self, other: "CutMass") -> None:
        """Count what another has seen."""
        self.positions += other.positions
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def facts(self) -> dict[str, float]:
        """`largest` and `mean`, for records."""
        return {"largest": self.largest, "mean": self.mean}


def told_cut(cut: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line for each model whose distributions were cut, from the facts of its CutMass."""
    return [
        f"  of the {role}'s probability {facts['largest']:.2g} at most, {facts['mean']:.2g} in the "
        "mean, lay on columns that were cut off"
        for role, facts in cut.items()
    ]


class LogitReader:
    """The leading `vocabulary` columns of one model's logits; `cut` is the mass beyond them.

    role : `draft` or `verifier`, for error messages.
    """

    def __init__(self, vocabulary: int, role: str) -> None:
        self.vocabulary, self.role, self.cut = vocabulary, role, CutMass()

    def read(self, logits: torch.Tensor, position: int, row: int = 0) -> torch.Tensor:
        """Logits [N, W] → [N, V]; the first of them predict token `position` of text `row`.

        Raises LogitsError with the position where one is NaN or +∞, none is finite, or more than
        `CUT_TOLERANCE` of the distribution would be cut off.
        """
        kept = logits[:, : self.vocabulary]
        highest = kept.amax(dim=-1)
        if not bool(highest.isfinite().all()):
            place = highest.isfinite().tolist().index(False)
            value = float(highest[place])
            fault = "no finite value" if value == -math.inf else f"{value}"
            raise LogitsError(row, position + place, f"the {self.role}'s logits hold {fault}")
        if logits.shape[-1] > self.vocabulary:
            self._count(logits, position, row)
        return kept

    def _count(self, logits: torch.Tensor, position: int, row: int) -> None:
        wide = logits.detach().double()
        share = (wide[:, self.vocabulary :].logsumexp(-1) - wide.logsumexp(-1)).exp()
        shares = share.tolist()
        for place, value in enumerate(shares):
            if not value <= CUT_TOLERANCE:
                fault = (
                    f"cutting the {self.role}'s {logits.shape[-1]} logits to {self.vocabulary} "
                    f"drops {value:.3g} of its probability, more than {CUT_TOLERANCE:g}"
                )
                raise LogitsError(row, position + place, fault)
        self.cut.add(CutMass(len(shares), sum(shares), max(shares, default=0.0)))

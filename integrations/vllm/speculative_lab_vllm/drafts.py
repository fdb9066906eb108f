"""The drafts of a batch of requests as vLLM hands them over, and what became of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from theory import Pair

__all__ = ["PADDING", "Drafts", "Verdict", "native"]

PADDING = -1
"""The engine's, for a draft that is none and for a place without a token."""


class Verdict(NamedTuple):
    """How many drafts of a request were accepted, and the token behind them; None is the bonus."""

    accepted: int
    token: int | None


@dataclass(frozen=True)
class Drafts:
    """The drafts of a batch as the engine hands them over, one request after the other.

    tokens : Σ n_i drafted tokens, −1 for padding. counts : n_i of each request.
    p      : [Σ n_i, V], what each token was drawn from; None where it is certain.
    logits : [Σ n_i, V], the verifier's, after temperature, penalties and filters.
    """

    tokens: list[int]
    counts: list[int]
    p: torch.Tensor | None
    logits: torch.Tensor

    def __post_init__(self) -> None:
        total, shape = sum(self.counts), tuple(self.logits.shape)
        if len(self.tokens) != total or shape[:1] != (total,):
            raise ValueError(f"{total} drafts need as many tokens and rows of logits, got {shape}")
        if self.p is not None and tuple(self.p.shape) != shape:
            raise ValueError(
                f"the draft's probabilities have shape {tuple(self.p.shape)}, the verifier's "
                f"logits {shape}: a rule needs one vocabulary"
            )

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate(self.counts, initial=0))

    def rows(self, request: int) -> range:
        """The rows of the drafts of a request."""
        return range(self._starts[request], self._starts[request + 1])

    def pair(self, rows: Sequence[int], *, sort: bool = False) -> Pair:
        """The distributions at some rows, in float64, prepared for a rule."""
        index = torch.tensor(rows, device=self.logits.device)
        q = self.verifier(rows)
        if self.p is not None:
            p = self.p[index].double()
        else:
            tokens = torch.tensor([self.tokens[row] for row in rows], device=q.device)
            p = torch.zeros_like(q).scatter_(-1, tokens[:, None], 1.0)
        return Pair.prepare(native(p), native(q), validate=False, sort=sort)

    def verifier(self, rows: Sequence[int]) -> torch.Tensor:
        """The verifier's distributions at some rows, float64."""
        index = torch.tensor(rows, device=self.logits.device)
        return self.logits[index].softmax(dim=-1, dtype=torch.float64)

    def probabilities(self, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """p_n and q_n of the tokens at some rows, float64; p_n is 0 for padding.

        Raises ValueError for a row that holds no distribution.
        """
        index = torch.tensor(rows, device=self.logits.device)
        tokens = torch.tensor([self.tokens[row] for row in rows], device=index.device)
        real, at = tokens != PADDING, tokens.clamp(min=0)
        logits = self.logits[index].float()
        total = logits.logsumexp(dim=-1)
        p = torch.ones_like(total) if self.p is None else self.p[index, at].float()
        self._require_numbers(rows, {"logits": total, "draft probabilities": p})
        q = (logits.gather(-1, at[:, None])[:, 0] - total).double().exp()
        return p.double() * real, q

    def _require_numbers(self, rows: Sequence[int], found: dict[str, torch.Tensor]) -> None:
        for what, values in found.items():
            bad = ~values.isfinite()
            if bool(bad.any()):
                row = rows[int(bad.nonzero()[0, 0])]
                request = next(i for i in range(len(self.counts)) if row in self.rows(i))
                place, value = row - self._starts[request], values[bad][0].item()
                raise ValueError(
                    f"request {request} of the batch, draft {place}: the {what} give {value}, "
                    "which is no distribution"
                )


def native(rows: torch.Tensor) -> Any:
    """The same memory as numpy on a CPU, where it is faster; the rows themselves elsewhere."""
    return rows.numpy() if rows.device.type == "cpu" else rows

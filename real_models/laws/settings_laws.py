"""From logits to the distributions that a decoding loop drafts from, verifies with and tests.

A decoder meets logits of the draft and of the verifier behind known texts and needs p and q, and
for some rules p and q before temperature and filters. One object gives all of them, so that what is
sampled from is what is tested.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from real_models.laws.distributions import SamplingSettings

__all__ = ["Laws", "SettingsLaws"]

_PLAIN = SamplingSettings()


class Laws(Protocol):
    """Distributions [N, V], float64, of logits [N, V] that follow the N texts."""

    def draft(self, logits: torch.Tensor, texts: Sequence[list[int]]) -> torch.Tensor:
        """What the draft proposes from."""

    def verifier(self, logits: torch.Tensor, texts: Sequence[list[int]]) -> torch.Tensor:
        """What the verifier emits by itself."""

    def raw(self, logits: torch.Tensor) -> torch.Tensor:
        """The distributions before temperature and filters."""


@dataclass(frozen=True)
class SettingsLaws:
    """The laws of sampling settings; the texts do not matter."""

    settings: SamplingSettings

    def draft(self, logits: torch.Tensor, texts: Sequence[list[int]]) -> torch.Tensor:
        return self.settings.draft_probabilities(logits, name="draft logits")

    def verifier(self, logits: torch.Tensor, texts: Sequence[list[int]]) -> torch.Tensor:
        return self.settings.probabilities(logits, name="verifier logits")

    def raw(self, logits: torch.Tensor) -> torch.Tensor:
        return _PLAIN.probabilities(logits)

"""The laws of transformers' logits processors, as its `generate` prepares them.

Draft and verifier go through the same processors, each behind its own text: what a processor does
to a token may depend on the drafts before it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from real_models.errors import LogitsError, UserError
from real_models.laws.distributions import SamplingSettings
from real_models.laws.settings_laws import Laws, SettingsLaws

__all__ = ["ProcessorLaws", "processor_laws"]

_FIELDS = {
    TemperatureLogitsWarper: "temperature",
    TopKLogitsWarper: "top_k",
    TopPLogitsWarper: "top_p",
}


@dataclass(frozen=True)
class ProcessorLaws:
    """The laws of logits processors that may look at the text so far.

    sampled      : softmax of the processed scores; otherwise the one-hot at their argmax.
    greedy_draft : the draft's is the one-hot in any case.
    """

    processors: LogitsProcessorList
    sampled: bool
    greedy_draft: bool

    def draft(self, logits: torch.Tensor, texts: Sequence[list[int]]) -> torch.Tensor:
        return self._settings().draft_probabilities(
            self._processed(logits, texts, "draft"), name="draft logits"
        )

    def verifier(self, logits: torch.Tensor, texts: Sequence[list[int]]) -> torch.Tensor:
        return self._settings().probabilities(
            self._processed(logits, texts, "verifier"), name="verifier logits"
        )

    def raw(self, logits: torch.Tensor) -> torch.Tensor:
        return SamplingSettings().probabilities(logits)

    def _settings(self) -> SamplingSettings:
        return SamplingSettings(1.0 if self.sampled else 0.0, greedy_draft=self.greedy_draft)

    def _processed(
        self, logits: torch.Tensor, texts: Sequence[list[int]], role: str
    ) -> torch.Tensor:
        # One text at a time: a processor expects texts of one length.
        rows = [
            self.processors(torch.tensor([text], device=row.device), row[None].double())
            for text, row in zip(texts, logits)
        ]
        for row, text in zip(rows, texts):
            self._require_law(row, text, logits.shape[-1], role)
        return torch.cat(rows)

    def _require_law(self, row: torch.Tensor, text: list[int], width: int, role: str) -> None:
        """LogitsError where the processors, which anyone may write, leave nothing to draw from."""
        named = [type(processor).__name__ for processor in self.processors]
        behind = f"behind {', '.join(named)} the {role}'s logits"
        if row.shape != (1, width):
            got = f"must be [1, {width}], got {list(row.shape)}"
            raise LogitsError(0, len(text), f"{behind} {got}")
        highest = float(row.max())
        if not math.isfinite(highest):
            held = "no finite value" if highest == -math.inf else f"{highest}"
            raise LogitsError(0, len(text), f"{behind} hold {held}")


def processor_laws(processors: LogitsProcessorList, sampled: bool, greedy_draft: bool) -> Laws:
    """The processors' laws; where they are temperature, top-k and top-p alone, the settings'.

    The settings do all rows at once, and sort only what top-k keeps. Raises UserError for a
    processor that keeps a state of its own from one token to the next.
    """
    kinds = [type(processor) for processor in processors]
    if UnbatchedClassifierFreeGuidanceLogitsProcessor in kinds:
        raise UserError(
            "guidance_scale runs the model once more for every new token, in order, and cannot be "
            "used with drafts"
        )
    plain = kinds == [kind for kind in _FIELDS if kind in kinds] and all(
        getattr(processor, "filter_value", -np.inf) == -np.inf for processor in processors
    )
    if not plain:
        return ProcessorLaws(processors, sampled, greedy_draft)
    fields: dict[str, Any] = {
        _FIELDS[type(processor)]: getattr(processor, _FIELDS[type(processor)])
        for processor in processors
    }
    if not sampled:
        fields["temperature"] = 0.0
    return SettingsLaws(SamplingSettings(**fields, greedy_draft=greedy_draft))

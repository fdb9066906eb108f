"""The verifier's texts that drafts are made with, and how much of a draft is accepted on them.

Plain speculative sampling at temperature 1 accepts, at a position with draft law p and verifier
law q over V tokens, with probability

    α = Σ_v min(p(v), q(v))

computed exactly. Averaged over positions of texts that the verifier itself has written, this is
what a draft is chosen by and what training should raise.

The prompts here are apart from those that pairs are measured on (`prompts.DEFAULT_PROMPTS`): a
draft that was chosen or trained on the texts it is measured on would look better than it is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from real_models.laws.distributions import SamplingSettings
from real_models.models.compatibility import model_device
from real_models.models.logits import LogitReader, naming
from real_models.models.pair import ModelPair
from real_models.prompts import DEFAULT_PROMPTS, Prompt
from real_models.traces.contexts import Text, make_text, read_along, start_ids
from sim.jobs.progress import track

__all__ = [
    "CALIBRATION_PROMPTS",
    "OPENINGS",
    "Acceptance",
    "Calibration",
    "acceptance",
    "calibrate",
]

CALIBRATION_PROMPTS: Path = DEFAULT_PROMPTS.with_name("calibration.jsonl")
"""Eight prompts of four domains, to choose drafts by and to watch training with."""

OPENINGS: Path = DEFAULT_PROMPTS.with_name("openings.jsonl")
"""Forty short prompts of the same domains, to train drafts on."""

_PLAIN = SamplingSettings()


@dataclass(frozen=True)
class Acceptance:
    """The mean of α over positions.

    standard_error : clustered by text, since positions of one text resemble each other; nan for
                     a single text. Two drafts on the same texts differ by less than it suggests.
    """

    mean: float
    standard_error: float
    positions: int

    def __str__(self) -> str:
        error = f" ± {self.standard_error:.4f}" if math.isfinite(self.standard_error) else ""
        return f"{self.mean:.4f}{error}"


@dataclass(frozen=True)
class Calibration:
    """Texts of a verifier with its laws along them, computed once for any number of drafts.

    laws    : per text q [positions, V] in float32, at temperature 1 without filters.
    prompts : the ids of the prompts that the texts continue.
    """

    texts: tuple[Text, ...]
    laws: tuple[torch.Tensor, ...] = field(repr=False)
    prompts: tuple[str, ...]

    @property
    def positions(self) -> int:
        """The number of positions over all texts."""
        return sum(text.positions for text in self.texts)


def calibrate(
    pair: ModelPair, prompts: Sequence[Prompt], positions: int, seed: int = 0
) -> Calibration:
    """Continue every prompt by up to `positions` tokens of the pair's verifier, and keep its laws.

    Memory: 4 V bytes per position. The pair's draft is not used.

    Raises UserError naming the prompt, before any is continued, when one cannot be used.
    """
    for prompt in prompts:
        start_ids(pair, prompt, "verifier", positions)
    bar = track(prompts, "texts", "prompt")
    texts = [make_text(pair, prompt, "verifier", positions, _PLAIN, seed) for prompt in bar]
    reader = LogitReader(pair.vocabulary, "verifier")
    ids = tuple(prompt.id for prompt in prompts)
    laws = [_law(pair.verifier, text, reader, name) for text, name in zip(texts, ids)]
    return Calibration(tuple(texts), tuple(laws), ids)


def acceptance(draft: PreTrainedModel, calibration: Calibration) -> Acceptance:
    """The mean of Σ min(p, q) along the texts: one forward pass of the draft per text.

    Raises UserError naming prompt and position where the draft's logits are no distribution.
    """
    sums = []
    for text, law, name in zip(calibration.texts, calibration.laws, calibration.prompts):
        proposed = _law(draft, text, LogitReader(law.shape[-1], "draft"), name)
        sums.append(float(torch.minimum(proposed, law).double().sum()))
    return _clustered(np.array(sums), np.array([text.positions for text in calibration.texts]))


@torch.inference_mode()
def _law(model: PreTrainedModel, text: Text, reader: LogitReader, prompt: str) -> torch.Tensor:
    """The model's law [positions, V] in float32 along the continuation of a text."""
    with naming([prompt]):
        logits = read_along(model, text, reader, model_device(model))
    # Half the memory of float64; Σ min is then right to about 1e−6.
    return _PLAIN.probabilities(logits, dtype=torch.float32)


def _clustered(sums: np.ndarray, counts: np.ndarray) -> Acceptance:
    """The mean m = Σ sums / Σ counts over clusters, and its standard error.

    The ratio estimate: se² = K/(K−1) · Σ (sumₖ − m·countₖ)² / (Σ counts)² over K clusters.
    """
    total = int(counts.sum())
    mean = float(sums.sum() / total)
    if len(sums) < 2:
        return Acceptance(mean, math.nan, total)
    spread = float(((sums - mean * counts) ** 2).sum()) * len(sums) / (len(sums) - 1)
    return Acceptance(mean, math.sqrt(spread) / total, total)

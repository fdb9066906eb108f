"""Train a draft to resemble its verifier on the verifier's own texts.

    loss = mean over positions of KL(q‖p) = Σ_v q(v) (log q(v) − log p(v))

with the verifier's whole distribution q at temperature 1 as the target, not only the token that
was sampled. The gradient in the draft's logits is p − q, and Pinsker's inequality turns the loss
into acceptance: 1 − Σ min(p, q) ≤ √(KL/2) at every position.

Everything is in float32 and without dropout. The input and output embeddings stay as they are: in
a small draft they are half of the parameters and would take much of the time.
"""

import copy
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from real_models.errors import UserError
from real_models.models.compatibility import head_of, model_device
from real_models.traces.contexts import Text
from sim.checks import shorten
from sim.jobs.progress import Progress

__all__ = ["Distilled", "TrainingSettings", "distill", "even_layers", "kl_loss"]

_BEYOND = 1e31  # AdamW divides a rate by its first steps, and float32 ends at 3e38


@dataclass(frozen=True)
class TrainingSettings:
    """How to train. AdamW, cosine schedule after a short linear rise, gradients clipped.

    minutes, steps : when to stop, whichever comes first; one of them may be None. A limit in
                     minutes makes the result depend on the machine, one in steps does not.
    batch          : texts per step.

    Raises UserError naming the setting that is not positive and below 1e31, or when there is no
    limit.
    """

    minutes: float | None = 7.0
    steps: int | None = None
    batch: int = 4
    learning_rate: float = 5e-4
    warmup: float = 0.05
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.minutes is None and self.steps is None:
            raise UserError("training needs a limit, in minutes or in steps")
        for name in ("minutes", "steps", "batch", "learning_rate", "warmup", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < _BEYOND:
                size = "positive" if not value > 0 else f"below {_BEYOND:g}"
                raise UserError(f"{name} must be {size}, got {shorten(str(value))}")

    def progress(self, step: int, seconds: float) -> float:
        """How much of the training is done, by steps or by time; 1 and more is the end."""
        by_steps = 0.0 if self.steps is None else step / self.steps
        by_time = 0.0 if self.minutes is None else seconds / (60 * self.minutes)
        return max(by_steps, by_time)

    def rate(self, progress: float) -> float:
        """The learning rate: a tenth to the whole over `warmup`, then half a cosine to 0."""
        rise = min(1.0, 0.1 + 0.9 * progress / self.warmup)
        return self.learning_rate * rise * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class Distilled:
    """A trained draft and the loss of every step, in nats per position."""

    draft: PreTrainedModel
    losses: tuple[float, ...]


def distill(
    verifier: PreTrainedModel,
    start: PreTrainedModel,
    texts: Sequence[Text],
    settings: TrainingSettings,
    vocabulary: int,
) -> Distilled:
    """Train a float32 copy of `start` on the texts; verifier and start are left as they are.

    Raises UserError when there are no texts, or when the loss is no longer finite.
    """
    if not texts:
        raise UserError("there are no texts to train on")
    draft = _own_copy(start)
    weights = [weight for weight in draft.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.95), weight_decay=0.0)
    losses: list[float] = []
    began = time.monotonic()
    with Progress(100, "distill", "hundredth") as told:
        for batch in _batches(texts, settings):
            progress = settings.progress(len(losses), time.monotonic() - began)
            if progress >= 1:
                break
            told.update(int(100 * progress) - told.done)
            loss = kl_loss(verifier, draft, batch, vocabulary)
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                rate = f"a learning rate of {settings.learning_rate:g} may be too high"
                raise UserError(f"the loss is {losses[-1]} at step {len(losses)}; {rate}")
            _descend(loss, weights, optimizer, settings.rate(progress), settings.clip)
    return Distilled(draft.requires_grad_(True), tuple(losses))


def kl_loss(
    verifier: PreTrainedModel, draft: PreTrainedModel, texts: Sequence[Text], vocabulary: int
) -> torch.Tensor:
    """The mean KL(q‖p) in nats over the continuations of the texts, differentiable in the draft."""
    # Padding stands at the right: a causal model never sees it, and no mask is needed.
    longest, first = max(len(t.ids) for t in texts), min(len(t.ids) - t.positions for t in texts)
    rows = [list(text.ids) + [text.ids[-1]] * (longest - len(text.ids)) for text in texts]
    inputs = torch.tensor(rows, device=model_device(verifier))[:, :-1]
    counts = torch.zeros(len(texts), longest, dtype=torch.bool)
    for row, text in zip(counts, texts):
        row[len(text.ids) - text.positions : len(text.ids)] = True
    counts = counts[:, first:].to(inputs.device)
    with torch.no_grad():
        target = _log_law(verifier, inputs, counts, vocabulary)
    own = _log_law(draft, inputs, counts, vocabulary)
    return functional.kl_div(own, target, reduction="sum", log_target=True) / len(own)


def even_layers(total: int, count: int, vital: Sequence[int]) -> tuple[int, ...]:
    """`count` of `total` layers to keep: the vital ones, and others at even distances.

    Raises UserError when count is below the number of vital layers or above the total.
    """
    if not len(vital) <= count <= total:
        raise UserError(f"cannot keep {count} of {total} layers: {len(vital)} of them are vital")
    others = [layer for layer in range(total) if layer not in vital]
    more = count - len(vital)
    # The middles of `more` stretches of equal length.
    chosen = [others[(2 * i + 1) * len(others) // (2 * more)] for i in range(more)]
    return tuple(sorted((*vital, *chosen)))


def _own_copy(start: PreTrainedModel) -> PreTrainedModel:
    """A float32 copy that shares nothing, with all but the embeddings open to training."""
    draft = copy.deepcopy(start).float().eval().requires_grad_(True)
    for embedding in (draft.get_input_embeddings(), draft.get_output_embeddings()):
        if embedding is not None:
            embedding.requires_grad_(False)
    return draft


def _log_law(
    model: PreTrainedModel, inputs: torch.Tensor, counts: torch.Tensor, vocabulary: int
) -> torch.Tensor:
    """log p [positions that count, V] in float32; `counts` [texts, L] marks the last L inputs."""
    width = counts.shape[1]
    logits = model(inputs, use_cache=False, **head_of(model, width)).logits[:, -width:]
    return logits[counts][:, :vocabulary].float().log_softmax(-1)


def _batches(texts: Sequence[Text], settings: TrainingSettings) -> Iterator[list[Text]]:
    """Batches without end: all texts in random order, then again in another order.

    Texts of one batch have starts of similar length: padding and the logits that do not count
    would otherwise take a quarter of the time.
    """
    shuffle = random.Random(settings.seed).shuffle
    order = list(texts)
    while True:
        shuffle(order)
        order.sort(key=lambda text: len(text.ids) - text.positions)
        batches = [order[i : i + settings.batch] for i in range(0, len(order), settings.batch)]
        shuffle(batches)
        yield from batches


def _descend(
    loss: torch.Tensor,
    weights: Sequence[torch.Tensor],
    optimizer: torch.optim.Optimizer,
    rate: float,
    clip: float,
) -> None:
    """One step of the optimiser down the clipped gradient."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(weights, clip)
    optimizer.step()

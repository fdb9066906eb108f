"""Many texts of a verifier at once, to train on.

The measured texts are sampled one by one from streams of their own, so that each can be had again
without the others. Training only needs many: here whole batches go through the model, and the
texts depend on how they were batched.
"""

from collections.abc import Sequence

import torch

from real_models.laws.distributions import SamplingSettings
from real_models.models.compatibility import head_of
from real_models.models.logits import LogitReader, naming
from real_models.models.pair import ModelPair
from real_models.prompts import Prompt
from real_models.traces.contexts import Text, start_ids
from sim.jobs.progress import Progress

__all__ = ["sample_texts"]

_PLAIN = SamplingSettings()


def sample_texts(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    count: int,
    length: int,
    *,
    seed: int = 0,
    batch: int = 32,
) -> list[Text]:
    """`count` texts of the pair's verifier at temperature 1 without filters.

    Text i continues prompt i modulo the number of prompts by up to `length` tokens, the last one
    an end token if there is any.

    Raises UserError naming the prompt, before anything is sampled, when one cannot be used.
    """
    starts = [start_ids(pair, prompt, "verifier", length) for prompt in prompts]
    generator = torch.Generator(pair.device).manual_seed(seed)
    texts: list[Text] = []
    with Progress(count, "texts", "text") as bar:
        for first in range(0, count, batch):
            these = [i % len(prompts) for i in range(first, min(count, first + batch))]
            with naming([prompts[i].id for i in these]):
                texts += _continue(pair, [starts[i] for i in these], length, generator)
            bar.update(len(texts) - bar.done)
    return texts


@torch.inference_mode()
def _continue(
    pair: ModelPair, starts: Sequence[Sequence[int]], length: int, generator: torch.Generator
) -> list[Text]:
    """Each start with up to `length` sampled tokens after it."""
    reader = LogitReader(pair.vocabulary, "verifier")
    step, seen = _left_padded(pair, starts)
    ends = torch.tensor(pair.end_tokens, device=pair.device)
    cache, columns = None, []
    ended = torch.zeros(len(starts), dtype=torch.bool, device=pair.device)
    while len(columns) < length and not bool(ended.all()):
        places = (seen.cumsum(-1) - 1).clamp(min=0)[:, -step.shape[1] :]
        output = pair.verifier(
            step, attention_mask=seen, position_ids=places, cache=cache, use_cache=True,
            **head_of(pair.verifier, 1),
        )  # fmt: skip
        cache = output.cache
        rows = [
            reader.read(rows[-1:], len(starts[row]) + len(columns), row)
            for row, rows in enumerate(output.logits)
        ]
        law = _PLAIN.probabilities(torch.cat(rows), dtype=torch.float32)
        step = torch.multinomial(law, 1, generator=generator)
        seen = torch.cat([seen, torch.ones_like(step)], dim=1)
        columns.append(step)
        ended |= torch.isin(step[:, 0], ends)
    more = torch.cat(columns, dim=1).tolist()
    return [_text(pair, start, row) for start, row in zip(starts, more)]


def _left_padded(
    pair: ModelPair, starts: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask [texts, longest], every start at the right-hand side."""
    longest = max(map(len, starts))
    pad = pair.tokenizer.pad_token_id
    ids = [[pad] * (longest - len(start)) + list(start) for start in starts]
    mask = [[0] * (longest - len(start)) + [1] * len(start) for start in starts]
    return torch.tensor(ids, device=pair.device), torch.tensor(mask, device=pair.device)


def _text(pair: ModelPair, start: Sequence[int], more: Sequence[int]) -> Text:
    """The text up to its first end token; what was sampled beyond it is dropped."""
    end = next((i for i, token in enumerate(more) if token in pair.end_tokens), None)
    kept = more if end is None else more[: end + 1]
    return Text((*start, *kept), len(kept), ended=end is not None)

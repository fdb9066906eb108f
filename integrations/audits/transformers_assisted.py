"""The audit of transformers' assisted decoding: its rejection sampling, and whole generations.

    python -m integrations.audits.transformers_assisted

The first part hands plain rows to `_speculative_sampling`, without and with the ensemble weight w,
which is the rule `interpolation` with α = 1 − w. The second lets `model.generate` write texts of
two tokens with two tiny random models, many times, and compares how often each text comes with
the verifier's law of texts, which is known exactly.
"""

import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
import transformers
from scipy.stats import chi2
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.utils import _speculative_sampling

from integrations.audits.records import Case, parser, run, write
from real_models.laws.distributions import SamplingSettings
from theory import make_rule

__all__ = ["generations", "main", "rejection_sampler", "text_law", "tiny_model"]

VOCABULARY, LENGTH, PROMPT, TEXTS = 8, 2, [1, 2, 3], 2_000
SETTINGS = (SamplingSettings(), SamplingSettings(0.6), SamplingSettings(0.6, top_k=5, top_p=0.9))


def main(argv: list[str] | None = None) -> int:
    """Both parts; returns the exit status."""
    args = parser("Audit transformers' assisted decoding.").parse_args(argv)
    versions = {"transformers": transformers.__version__}
    options = {"samples": args.samples, "backend": "torch", "dtype": "float32", "rounding": 1e-4}
    weighted = make_rule("interpolation", alpha=0.3)
    cases = [
        Case("_speculative_sampling", rejection_sampler(None), make_rule("sps"), options),
        Case("_speculative_sampling, w = 0.7", rejection_sampler(0.7), weighted, options),
    ]
    run(cases, args.results / "transformers.json", versions)
    torch.set_num_threads(1)  # models this small only wait for more
    found = []
    for settings in SETTINGS:
        chance = p_value(generations(settings, TEXTS), text_law(settings))
        print(f"generate, {settings.label}: p = {chance:.3g} over {TEXTS:,} texts", flush=True)
        found.append({"settings": settings.label, "texts": TEXTS, "p_value": chance})
    write(args.results / "transformers_generate.json", {"versions": versions, "generate": found})
    return 0


def rejection_sampler(weight: float | None) -> Callable[..., Any]:
    """`_speculative_sampling` as a sampler for torch rows; it takes one text at a time."""

    def sampler(p: torch.Tensor, q: torch.Tensor, drafted: torch.Tensor, generator: Any) -> Any:
        # It draws from the global generator, and this one says how that begins.
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
        batch, drafts, _ = p.shape
        tokens = torch.full((batch, drafts + 1), -1)
        accepted = torch.zeros(batch, dtype=torch.int64)
        for row in range(batch):
            emitted, accepted[row] = _speculative_sampling(
                drafted[row : row + 1],
                p[row : row + 1].log(),
                drafts,
                q[row : row + 1].log(),
                assistant_ensemble_weight=weight,
            )
            tokens[row, : emitted.shape[1]] = emitted[0]
        return accepted, tokens

    return sampler


def tiny_model(seed: int) -> LlamaForCausalLM:
    """A random model over a few tokens, none of which ends a text."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=32, initializer_range=0.4,
        bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def generations(settings: SamplingSettings, count: int) -> np.ndarray:
    """Texts [count, LENGTH] of assisted decoding: one draft a round."""
    verifier, draft = tiny_model(0), tiny_model(1)
    draft.generation_config.num_assistant_tokens = 1
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    prompt = torch.tensor([PROMPT])
    torch.manual_seed(2)
    options = {
        "do_sample": True,
        "temperature": settings.temperature,
        "top_k": settings.top_k or 0,
        "top_p": settings.top_p or 1.0,
        "attention_mask": torch.ones_like(prompt),
        "min_new_tokens": LENGTH,
        "max_new_tokens": LENGTH,
    }
    texts = [verifier.generate(prompt, assistant_model=draft, **options) for _ in range(count)]
    return torch.cat(texts)[:, len(PROMPT) :].numpy()


def text_law(settings: SamplingSettings) -> np.ndarray:
    """The probability of every text, [VOCABULARY] * LENGTH, of the verifier by itself."""
    verifier = tiny_model(0)
    law = np.ones([VOCABULARY] * LENGTH)
    texts = torch.tensor(list(product(range(VOCABULARY), repeat=LENGTH)))
    with torch.no_grad():
        ids = torch.cat([torch.tensor(PROMPT).expand(len(texts), -1), texts], dim=1)
        logits = verifier(ids).logits[:, len(PROMPT) - 1 : -1]
    rows = settings.probabilities(logits).numpy()
    each = np.take_along_axis(rows, texts.numpy()[..., None], axis=-1)[..., 0]
    return law * each.prod(axis=-1).reshape(law.shape)


def p_value(texts: np.ndarray, law: np.ndarray) -> float:
    """Of Pearson's test; texts expected fewer than five times are one; 0 for an impossible text."""
    seen = np.zeros(law.shape)
    np.add.at(seen, tuple(texts.T), 1)
    if bool((seen[law == 0] > 0).any()):
        return 0.0
    expected = law * len(texts)
    often = expected >= 5
    pairs = [*zip(seen[often], expected[often]), (seen[~often].sum(), expected[~often].sum())]
    statistic = sum((found - mean) ** 2 / mean for found, mean in pairs if mean > 0)
    return float(chi2.sf(statistic, len(pairs) - 1))


if __name__ == "__main__":
    sys.exit(main())

"""What takes the place of vLLM's `rejection_sample`, with its arguments and its result.

* A random request is tested by the rule (`verification`).
* A greedy request (temperature 0) is verified as the engine does it: by equality with the argmax.
* Without draft probabilities (`draft_sample_method="greedy"`, n-grams) p is the one-hot at n.
* A padded draft (token −1) was drawn from nothing: it is rejected, and q itself is emitted.
* A request with a seed draws from its own generator, two numbers a draft whatever happens to it, so
  that its text does not depend on the requests beside it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from speculative_lab_vllm.drafts import PADDING, Drafts, Verdict
from speculative_lab_vllm.verification import verify
from theory import Rule

__all__ = ["RuleSampler", "expand_batch_to_tokens", "greedy_verdicts"]


class RuleSampler:
    """A function of the signature of vLLM's `rejection_sample`, for one rule.

    seen : called with the drafts and the verdicts of every call that tests a random request.
    """

    def __init__(
        self, rule: Rule, seen: Callable[[Drafts, dict[int, Verdict]], None] | None = None
    ) -> None:
        self.rule, self.seen = rule, seen

    def __call__(
        self,
        draft_token_ids: torch.Tensor,  # [Σ n_i]
        num_draft_tokens: list[int],
        max_spec_len: int,
        cu_num_draft_tokens: torch.Tensor,  # what num_draft_tokens says already
        draft_probs: torch.Tensor | None,  # [Σ n_i, V]
        target_logits: torch.Tensor,  # [Σ n_i, V]
        bonus_token_ids: torch.Tensor,  # [requests, 1]
        sampling_metadata: Any,
        synthetic_mode: bool = False,
        synthetic_conditional_rates: torch.Tensor | None = None,
        use_fp64_gumbel: bool = False,
    ) -> torch.Tensor:
        """Return int32 [requests, max_spec_len + 1]: what each request emits, then −1."""
        if synthetic_mode:
            raise ValueError(f"{self.rule!r} and rejection_sample_method='synthetic' exclude each "
                             "other: both say what is accepted")  # fmt: skip
        drafts = Drafts(
            draft_token_ids.tolist(), list(num_draft_tokens), draft_probs, target_logits
        )
        greedy = _greedy_requests(sampling_metadata, len(drafts.counts))
        verdicts = greedy_verdicts(drafts, greedy)
        random = [i for i in range(len(drafts.counts)) if i not in greedy]
        if random:
            uniforms = _uniforms(drafts, sampling_metadata.generators)
            tested = verify(self.rule, drafts, random, uniforms)
            if self.seen is not None:
                self.seen(drafts, tested)
            verdicts |= tested
        return _output(drafts, verdicts, bonus_token_ids, max_spec_len)


def _greedy_requests(metadata: Any, requests: int) -> set[int]:
    if metadata.all_greedy:
        return set(range(requests))
    if metadata.all_random:
        return set()
    return {i for i, zero in enumerate((metadata.temperature == 0).tolist()) if zero}


def greedy_verdicts(drafts: Drafts, requests: Iterable[int]) -> dict[int, Verdict]:
    """A draft is accepted while it is the argmax; the argmax takes the place of the first other."""
    rows = [row for request in requests for row in drafts.rows(request)]
    best = dict(zip(rows, drafts.logits[rows].argmax(dim=-1).tolist())) if rows else {}
    verdicts = {}
    for request in requests:
        wrong = (row for row in drafts.rows(request) if drafts.tokens[row] != best[row])
        row = next(wrong, None)
        verdicts[request] = (
            Verdict(drafts.counts[request], None)
            if row is None
            else Verdict(row - drafts.rows(request)[0], best[row])
        )
    return verdicts


def _uniforms(drafts: Drafts, generators: dict[int, torch.Generator]) -> torch.Tensor:
    """[Σ n_i, 2], float64 in [0, 1); those of a request with a seed from its own generator."""
    options: dict[str, Any] = {"dtype": torch.float64, "device": drafts.logits.device}
    drawn = torch.rand((len(drafts.tokens), 2), **options)
    for request, generator in generators.items():
        if rows := drafts.rows(request):
            own = torch.rand((len(rows), 2), generator=generator, **options)
            drawn[rows[0] : rows[-1] + 1] = own
    return drawn


def _output(
    drafts: Drafts, verdicts: dict[int, Verdict], bonus: torch.Tensor, longest: int
) -> torch.Tensor:
    """The accepted drafts of each request, the token behind them, and −1 to the end of the row."""
    followed = bonus[:, 0].tolist()
    lines = []
    for request, last in enumerate(followed):
        accepted, token = verdicts[request]
        kept = [drafts.tokens[row] for row in drafts.rows(request)[:accepted]]
        line = [*kept, last if token is None else token]
        lines.append(line + [PADDING] * (longest + 1 - len(line)))
    return torch.tensor(lines, dtype=torch.int32, device=bonus.device).reshape(-1, longest + 1)


def expand_batch_to_tokens(
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """vLLM's function of this name in plain torch: x_i once for each token of request i.

    The one of vLLM 0.32.0 returns uninitialised memory on CPUs for every dtype but int64, so that
    temperature, top-k and top-p of random requests are whatever lies there.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    replaced = torch.where(x == replace_from, replace_to, x).to(x.dtype)
    return replaced.repeat_interleave(counts.long(), output_size=num_tokens)

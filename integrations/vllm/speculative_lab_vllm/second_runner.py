"""What takes the place of the second model runner's `rejection_sample`; never run in the engine.

The second runner (`VLLM_USE_V2_MODEL_RUNNER=1`) needs Triton. This was read against vLLM 0.32.0 and
audited by itself; with the engine around it, and on CUDA, nobody has run it here. It differs from
the first runner in what is handed over:

* every request has a row more of the verifier than drafts, and draws its bonus token here;
* the token of row i + 1 is the draft that row i is about;
* the draft's logits lie by the state of the request, before its temperature;
* randomness is a function of the request's seed and of the position, and every request has a seed.
"""

import hashlib
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from speculative_lab_vllm.drafts import PADDING, Drafts, Verdict
from speculative_lab_vllm.rejection import greedy_verdicts
from speculative_lab_vllm.verification import draw, verify
from theory import Rule

__all__ = ["SecondRunnerSampler"]


class SecondRunnerSampler:
    """A function of the signature of the second runner's `rejection_sample`, for one rule.

    seen : called with the states of the requests in the call, the drafts and the verdicts.
    """

    def __init__(
        self,
        rule: Rule,
        seen: Callable[[list[int], Drafts, dict[int, Verdict]], None] | None = None,
    ) -> None:
        self.rule, self.seen = rule, seen

    def __call__(
        self,
        target_logits: torch.Tensor,  # [Σ (n_i + 1), V], processed
        draft_logits: torch.Tensor | None,  # [states, places, V], before temperature
        draft_sampled: torch.Tensor,  # [Σ (n_i + 1)]: the last token, then the drafts
        cu_num_logits: torch.Tensor,  # [requests + 1]
        pos: torch.Tensor,  # [Σ (n_i + 1)]
        idx_mapping: torch.Tensor,  # [requests]: their states
        expanded_idx_mapping: torch.Tensor,
        expanded_local_pos: torch.Tensor,
        temperature: torch.Tensor,  # [states]
        seed: torch.Tensor,  # [states]
        num_speculative_steps: int,
        synthetic_conditional_rates: torch.Tensor | None = None,
        use_fp64: bool = False,
        use_block_verification: bool = False,
        contexts: torch.Tensor | None = None,
        watermarking: torch.Tensor | None = None,
        watermarking_skip_mask: torch.Tensor | None = None,
        watermark_key: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return int64 [requests, steps + 1], −1 behind each, and how many tokens each emits."""
        for option, used in (
            ("rejection_sample_method='synthetic'", synthetic_conditional_rates is not None),
            ("rejection_sample_method='block'", use_block_verification),
            ("watermarking", contexts is not None),
        ):
            if used:
                raise ValueError(f"{self.rule!r} and {option} exclude each other")
        ends = cu_num_logits.tolist()
        states = idx_mapping[: len(ends) - 1].tolist()
        drafts = _drafts(target_logits, draft_logits, draft_sampled, ends, states, temperature)
        warm = [float(value) != 0.0 for value in temperature[states].tolist()]
        uniforms = _uniforms(seed[states].tolist(), pos.tolist(), ends).to(target_logits.device)
        verdicts = greedy_verdicts(drafts, [i for i, random in enumerate(warm) if not random])
        if any(warm):
            rows = torch.tensor(
                [row for start, end in pairwise(ends) for row in range(start, end - 1)],
                dtype=torch.long,
                device=uniforms.device,
            )
            random = [i for i, sampled in enumerate(warm) if sampled]
            tested = verify(self.rule, drafts, random, uniforms[rows])
            if self.seen is not None:
                self.seen(states, drafts, tested)
            verdicts |= tested
        bonus = _bonus(target_logits, ends, verdicts, warm, uniforms)
        return _emitted(drafts, verdicts, bonus, num_speculative_steps)


def _drafts(
    logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    sampled: torch.Tensor,
    ends: Sequence[int],
    states: Sequence[int],
    temperature: torch.Tensor,
) -> Drafts:
    """The drafts as the first runner hands them over."""
    spans = list(pairwise(ends))
    tokens = sampled.tolist()
    rows = [row for start, end in spans for row in range(start, end - 1)]
    drafted = [token for start, end in spans for token in tokens[start + 1 : end]]
    counts = [end - start - 1 for start, end in spans]
    at = torch.tensor(rows, dtype=torch.long, device=logits.device)
    p = None
    if draft_logits is not None:
        parts = [
            _scaled(draft_logits[state, :count], temperature[state])
            for state, count in zip(states, counts)
        ]
        p = _widened(torch.cat(parts), logits.shape[-1])
    return Drafts(drafted, counts, p, logits[at])


def _scaled(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """What the draft drew from; of a greedy request nothing is asked."""
    safe = torch.where(temperature == 0, torch.ones_like(temperature), temperature)
    return (logits.double() / safe.double()).softmax(dim=-1)


def _widened(rows: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """A draft with fewer columns than the verifier's padded table gives the others nothing."""
    missing = vocabulary - rows.shape[-1]
    if missing < 0:
        raise ValueError(
            f"the draft has {rows.shape[-1]} tokens, the verifier {vocabulary}: a rule needs one "
            "vocabulary"
        )
    return torch.nn.functional.pad(rows, (0, missing))


def _uniforms(seeds: Sequence[int], positions: Sequence[int], ends: Sequence[int]) -> torch.Tensor:
    """[Σ (n_i + 1), 2], float64 in [0, 1), from the request's seed and the position alone."""
    drawn = [
        torch.rand(2, generator=_generator(seed, position), dtype=torch.float64)
        for seed, (start, end) in zip(seeds, pairwise(ends))
        for position in positions[start:end]
    ]
    return torch.stack(drawn) if drawn else torch.zeros(0, 2, dtype=torch.float64)


def _generator(seed: int, position: int) -> torch.Generator:
    """Numbers of their own at each position: the engine's own stream also draws the drafts."""
    key = f"{seed} {position}".encode()
    mixed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    return torch.Generator().manual_seed(mixed >> 1)


def _bonus(
    logits: torch.Tensor,
    ends: Sequence[int],
    verdicts: dict[int, Verdict],
    warm: Sequence[bool],
    uniforms: torch.Tensor,
) -> dict[int, int]:
    """The token behind the drafts of each request that keeps them all."""
    whole = [request for request, verdict in verdicts.items() if verdict.token is None]
    if not whole:
        return {}
    rows = torch.tensor([ends[request + 1] - 1 for request in whole], device=logits.device)
    law = logits[rows].softmax(dim=-1, dtype=torch.float64)
    sampled = draw(law, uniforms[rows, 1]).tolist()
    likeliest = logits[rows].argmax(dim=-1).tolist()
    return {
        request: (drawn if warm[request] else best)
        for request, drawn, best in zip(whole, sampled, likeliest)
    }


def _emitted(
    drafts: Drafts, verdicts: dict[int, Verdict], bonus: dict[int, int], steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    lines, counts = [], []
    for request in range(len(drafts.counts)):
        accepted, token = verdicts[request]
        kept = [drafts.tokens[row] for row in drafts.rows(request)[:accepted]]
        line = [*kept, bonus[request] if token is None else token]
        counts.append(len(line))
        lines.append(line + [PADDING] * (steps + 1 - len(line)))
    device = drafts.logits.device
    return (
        torch.tensor(lines, dtype=torch.int64, device=device).reshape(-1, steps + 1),
        torch.tensor(counts, dtype=torch.int32, device=device),
    )

"""A hook of SGLang's plug-in registry: a rule in the place of its rejection sampling kernel.

Written against the source of sglang 0.5.23 and never run inside it. What is tested is the function
itself, on plain tensors, with the arguments and the buffers of the kernel that it replaces.

`eagle_sample` calls `chain_speculative_sampling_triton` in servers that sample with
`--speculative-use-rejection-sampling`: chains of drafts (topk 1), drawn from `draft_probs`.
The rows are those behind temperature, top-k and top-p. A greedy request among random ones has rows
that are certain: it is verified strictly. So is every request whose rows are all certain.
"""

import sys
from typing import Any

import torch

from speculative_lab_vllm.choice import Choice, choose
from speculative_lab_vllm.drafts import Drafts, Verdict
from speculative_lab_vllm.verification import verify
from theory import Rule, make_rule

__all__ = ["TARGET", "TESTED", "register", "rule_kernel"]

TESTED = "0.5.23"
"""The version that the hook was written against."""

TARGET = "sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton"
"""What is replaced; the registry takes every module along that has imported it by name."""


def register() -> None:
    """Entry point of `sglang.srt.plugins`: replace the kernel where a rule was chosen.

    The choice is that of the environment variables of `speculative_lab_vllm.choice`. SGLang only
    notes what a plug-in raises and serves without it, so that a mistake ends the process here.
    """
    try:
        chosen = choose()
        if chosen is not None:
            _hook(chosen)
    except (ValueError, ImportError) as error:
        sys.exit(f"speculative-lab-sglang: {error}")


def _hook(chosen: Choice) -> None:
    import sglang
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if sglang.__version__ != TESTED:
        raise ValueError(f"written for sglang {TESTED}, this is {sglang.__version__}: no rule runs")
    if chosen.report is not None:
        raise ValueError("a report needs the names of requests, which SGLang's kernel has not")
    HookRegistry.register(TARGET, rule_kernel(chosen.rule), HookType.REPLACE)


def rule_kernel(rule: Rule) -> Any:
    """A function with the arguments of the kernel's, which tests the drafts with a rule."""

    def kernel(
        predicts: torch.Tensor,  # [requests · slots], what follows each slot
        accept_index: torch.Tensor,  # [requests, slots], the slots that are kept
        accept_token_num: torch.Tensor,  # [requests], accepted drafts
        candidates: torch.Tensor,  # [requests, slots], the last token, then the drafts
        retrive_index: torch.Tensor,  # [requests, slots], the place of each slot in predicts
        retrive_next_token: torch.Tensor | None,
        retrive_next_sibling: torch.Tensor | None,
        uniform_samples: torch.Tensor,  # [requests, slots]
        uniform_samples_for_final_sampling: torch.Tensor,  # [requests]
        target_probs: torch.Tensor,  # [requests, slots, V]
        draft_probs: torch.Tensor,  # [requests, slots − 1, V]
        *thresholds: float,
        block_verification: bool = False,
        **options: Any,
    ) -> None:
        if block_verification:
            raise ValueError(f"{rule!r} is tested token by token, not by block verification")
        q = target_probs.flatten(0, 1).double().log()
        coins = uniform_samples.double(), uniform_samples_for_final_sampling.double()
        found = _verdicts(rule, candidates[:, 1:], draft_probs, q.view_as(target_probs), *coins)
        for request, (accepted, token) in enumerate(found):
            kept = retrive_index[request, : accepted + 1].long()
            accept_index[request, : accepted + 1] = kept.to(accept_index.dtype)
            accept_token_num[request] = accepted
            predicts[kept[:-1]] = candidates[request, 1 : accepted + 1].to(predicts.dtype)
            predicts[kept[-1]] = token

    return kernel


def _verdicts(
    rule: Rule,
    tokens: torch.Tensor,
    p: torch.Tensor,
    logits: torch.Tensor,
    coins: torch.Tensor,
    last: torch.Tensor,
) -> list[tuple[int, int]]:
    """The accepted drafts of each request, and the token behind them."""
    requests, count = tokens.shape
    drafts = Drafts(tokens.flatten().tolist(), [count] * requests, p.flatten(0, 1),
                    logits[:, :-1].flatten(0, 1))  # fmt: skip
    uniforms = torch.stack([coins[:, :count], last[:, None].expand(-1, count)], dim=-1)
    certain = (logits.exp().amax(dim=-1) == 1).all(dim=-1).tolist()
    verdicts: dict[int, Verdict] = {}
    for strict, one in ((True, make_rule("sps")), (False, rule)):
        some = [request for request in range(requests) if certain[request] == strict]
        verdicts |= verify(one, drafts, some, uniforms.flatten(0, 1))
    bonus = _bonus(logits[:, -1], last)
    return [(verdicts[i].accepted, bonus[i] if verdicts[i].token is None else verdicts[i].token)
            for i in range(requests)]  # fmt: skip


def _bonus(logits: torch.Tensor, last: torch.Tensor) -> list[int]:
    """A token of each row at its quantile."""
    cdf = logits.softmax(dim=-1).cumsum(dim=-1)
    drawn = torch.searchsorted(cdf, last[:, None] * cdf[:, -1:], right=True)
    return drawn[:, 0].tolist()

"""The audit of vLLM's whole `RejectionSampler.forward`, without a rule and with the plug-in's.

    python -m integrations.audits.vllm_forward

forward is given the logits T·log q, so that behind its temperature T the verifier's row is q. Runs
where vLLM is installed, and writes `vllm_forward.json`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

from integrations.audits.pair import RULES, TEMPERATURES
from integrations.audits.records import Case, parser, run
from sim.audit import Blocks, hostile_pairs
from speculative_lab_vllm.choice import read_rule
from speculative_lab_vllm.rejection import RuleSampler, expand_batch_to_tokens

__all__ = ["certain_drafts", "forward_sampler", "main"]

_ROUNDING = 1e-4  # of rows that go through logarithms in single precision


def main(argv: list[str] | None = None) -> int:
    """Audit forward; returns the exit status."""
    args = parser("Audit vLLM's RejectionSampler.forward.").parse_args(argv)
    import vllm

    options = {"samples": args.samples, "backend": "torch", "dtype": "float32",
               "rounding": _ROUNDING}  # fmt: skip
    return run(_cases(options), args.results / "vllm_forward.json", {"vllm": vllm.__version__})


def _cases(options: dict[str, Any]) -> Iterator[Case]:
    """Everything with the draft's probabilities, then some where the draft is certain."""
    expand = {"expand_batch_to_tokens": expand_batch_to_tokens}
    forms = {"forward as it is shipped": ("sps", {}), "forward, torch form": ("sps", expand)}
    for rule in RULES:
        forms[f"plug-in, {rule}"] = (
            rule,
            {"rejection_sample": RuleSampler(read_rule(rule)), **expand},
        )
    for form, (rule, taken) in forms.items():
        for temperature in TEMPERATURES:
            sampler = forward_sampler(temperature, taken)
            yield Case(f"{form}, T = {temperature:g}", sampler, read_rule(rule), options)
    certain = {**options, "pairs": certain_drafts()}
    for form in ("forward, torch form", *(f"plug-in, {rule}" for rule in RULES)):
        rule, taken = forms[form]
        sampler = forward_sampler(0.7, taken, certain=True)
        yield Case(f"{form}, T = 0.7, greedy drafts", sampler, read_rule(rule), certain)


def certain_drafts() -> Blocks:
    """The hostile rows with a draft that is certain of its likeliest token."""
    rows = hostile_pairs()
    return Blocks(np.eye(rows.p.shape[-1])[rows.p.argmax(axis=-1)], rows.q, rows.names)


def forward_sampler(
    temperature: float, taken: dict[str, Any], *, certain: bool = False
) -> Callable[..., Any]:
    """forward as a sampler of rounds, with other functions under the names that it looks up.

    certain : the draft's probabilities are not handed over, as for greedy drafts.
    """
    module, forward = _forward()

    def sampler(p: torch.Tensor, q: torch.Tensor, drafted: torch.Tensor, generator: Any) -> Any:
        # The engine draws from the global generator, and this one says how it begins.
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
        vocabulary = p.shape[-1]
        logits = (temperature * q.double().log()).float().reshape(-1, vocabulary)
        rows = None if certain else p.float().reshape(-1, vocabulary).contiguous()
        with _replaced(module, taken):
            found = forward(
                _spec_metadata(drafted), rows, logits, _sampling_metadata(len(p), temperature)
            ).sampled_token_ids
        return (found >= 0).sum(dim=-1) - 1, found

    return sampler


@cache
def _forward() -> tuple[Any, Any]:
    """The engine's module and sampler, with the kernels of this machine, as a worker has them."""
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.sampler import Sampler

    return rejection_sampler, rejection_sampler.RejectionSampler(Sampler())


def _spec_metadata(drafted: torch.Tensor) -> Any:
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    batch, drafts = drafted.shape
    rows = torch.arange(batch * (drafts + 1), dtype=torch.int32).reshape(batch, drafts + 1)
    ends = torch.arange(1, batch + 1, dtype=torch.int32)
    return SpecDecodeMetadata(
        draft_token_ids=drafted.to(torch.int32).reshape(-1),
        num_draft_tokens=[drafts] * batch,
        cu_num_draft_tokens=ends * drafts,
        cu_num_sampled_tokens=ends * (drafts + 1),
        target_logits_indices=rows[:, :-1].reshape(-1).contiguous(),
        bonus_logits_indices=rows[:, -1].contiguous(),
        logits_indices=rows.reshape(-1),
    )


def _sampling_metadata(batch: int, temperature: float) -> Any:
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    none = torch.empty(0)
    return SamplingMetadata(
        temperature=torch.full((batch,), temperature), all_greedy=False, all_random=True,
        top_p=None, top_k=None, generators={}, max_num_logprobs=None, no_penalties=True,
        prompt_token_ids=None, frequency_penalties=none, presence_penalties=none,
        repetition_penalties=none, output_token_ids=[], allowed_token_ids_mask=None,
        bad_words_token_ids={}, logitsprocs=LogitsProcessors(),
    )  # fmt: skip


@contextmanager
def _replaced(module: Any, taken: dict[str, Any]) -> Iterator[None]:
    """Other functions under names of the module, for a while."""
    kept = {name: getattr(module, name) for name in taken}
    try:
        vars(module).update(taken)
        yield
    finally:
        vars(module).update(kept)


if __name__ == "__main__":
    sys.exit(main())

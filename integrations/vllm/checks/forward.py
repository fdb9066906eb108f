"""The audit of vLLM's whole `RejectionSampler.forward`, without a rule and with the plug-in's.

    PYTHONPATH=integrations/vllm python -m checks.forward build/vllm-pair

The logits that forward is given are T·log q: behind its temperature T the verifier's row is q. Runs
where vLLM is installed, and writes `forward.json`: the audits, each with its verdict.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from checks.records import RULES, TEMPERATURES
from sim.audit import audit
from sim.jobs.files import make_folder, write_json
from speculative_lab_vllm.choice import read_rule
from speculative_lab_vllm.rejection import RuleSampler, expand_batch_to_tokens

__all__ = ["main"]

_ROUNDING = 1e-4  # of rows that go through logarithms in single precision


def main(argv: list[str] | None = None) -> int:
    """Audit forward; returns the exit status."""
    parser = argparse.ArgumentParser(description="Audit vLLM's RejectionSampler.forward.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=100_000, help="rounds (default 100000)")
    args = parser.parse_args(argv)
    make_folder(args.folder)
    module = engine_module()
    with_expand = {"expand_batch_to_tokens": expand_batch_to_tokens}
    samplers = {"as it is shipped": ("sps", {}), "with the torch form": ("sps", with_expand)}
    for rule in RULES:
        taken = {"rejection_sample": RuleSampler(read_rule(rule)), **with_expand}
        samplers[f"plug-in, {rule}"] = (rule, taken)
    found = []
    for name, (claim, taken) in samplers.items():
        for temperature in TEMPERATURES:
            with _replaced(module, taken):
                report = audit(
                    forward_sampler(module, temperature),
                    read_rule(claim),
                    samples=args.samples,
                    backend="torch",
                    dtype="float32",
                    rounding=_ROUNDING,
                )
            label = f"{name}, T = {temperature:g}"
            print(f"{label}: {report.verdict}", *report.diagnosis, sep="\n  ", flush=True)
            found.append({"sampler": label, "claim": claim, "rejected": report.rejected,
                          "verdict": report.verdict, "diagnosis": report.diagnosis,
                          "samples": report.samples, "power": report.power})  # fmt: skip
    write_json(args.folder / "forward.json", {"audits": found})
    return 0


def engine_module() -> Any:
    """`vllm.v1.sample.rejection_sampler`, with the kernels of this machine, as a worker has it."""
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    from vllm.v1.sample import rejection_sampler

    return rejection_sampler


def forward_sampler(module: Any, temperature: float) -> Callable[..., Any]:
    """forward as a sampler of rounds: `(p, q, drafted, generator) -> (accepted, tokens)`."""
    from vllm.v1.sample.sampler import Sampler

    forward = module.RejectionSampler(Sampler())

    def sampler(p: torch.Tensor, q: torch.Tensor, drafted: torch.Tensor, generator: Any) -> Any:
        # The engine draws from the global generator, and this one says how it begins.
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
        batch, vocabulary = len(p), p.shape[-1]
        logits = (temperature * q.double().log()).float()
        found = forward(
            _spec_metadata(drafted),
            p.float().reshape(-1, vocabulary).contiguous(),
            logits.reshape(-1, vocabulary),
            _sampling_metadata(batch, temperature),
        ).sampled_token_ids
        return (found >= 0).sum(dim=-1) - 1, found

    return sampler


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
        temperature=torch.full((batch,), temperature),
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=none,
        presence_penalties=none,
        repetition_penalties=none,
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


@contextmanager
def _replaced(module: Any, taken: dict[str, Any]) -> Iterator[None]:
    """Other functions under the names of the module, for a while."""
    kept = {name: getattr(module, name) for name in taken}
    try:
        vars(module).update(taken)
        yield
    finally:
        vars(module).update(kept)


if __name__ == "__main__":
    sys.exit(main())

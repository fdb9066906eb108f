"""The audit of this project's own decoder: the rule's step of a round, as `decode` runs it.

PYTHONPATH=integrations python -m integrations.audits.ours build/audits
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import theory
from integrations.audits.records import Case, parser, run
from real_models.decoding.verifying.by_token import verify
from real_models.decoding.verifying.candidates import Candidates
from theory import Rule, make_rule

__all__ = ["decoder_sampler", "main"]

RULES = (
    make_rule("sps"),
    make_rule("cactus", delta=0.1),
    make_rule("lenience", l=0.43),
    make_rule("frontier", level=0.1),
    make_rule("typical"),
    make_rule("cactus_target_only", delta=0.1),
)


def main(argv: list[str] | None = None) -> int:
    """Audit the decoder with several rules; returns the exit status."""
    args = parser("Audit the project's own decoder.").parse_args(argv)
    options = {"samples": args.samples, "backend": "torch", "rounding": 1e-9}
    cases = (Case(f"decoder, {rule!r}", decoder_sampler(rule), rule, options) for rule in RULES)
    return run(cases, args.results / "ours.json", {"speculative-lab": theory.__version__})


def decoder_sampler(rule: Rule) -> Callable[..., Any]:
    """`real_models.decoding.verifying.by_token.verify` as a sampler, for torch rows in float64."""

    def sampler(p: torch.Tensor, q: torch.Tensor, drafted: torch.Tensor, generator: Any) -> Any:
        batch, drafts, vocabulary = p.shape
        shape = (batch, drafts + 1, 2)
        uniforms = torch.rand(shape, generator=generator, dtype=torch.float64).numpy()
        rows = p.reshape(-1, vocabulary), q.reshape(-1, vocabulary)
        verdicts = verify(rule, Candidates(drafted.tolist(), *rows), uniforms)
        accepted = np.array([verdict.accepted for verdict in verdicts])
        tokens = np.full((batch, drafts + 1), -1)
        tokens[:, :-1] = np.where(np.arange(drafts) < accepted[:, None], drafted.numpy(), -1)
        tokens[np.arange(batch), accepted] = [verdict.token for verdict in verdicts]
        return accepted, tokens

    return sampler


if __name__ == "__main__":
    sys.exit(main())

"""What a run of the decoding loop is worth: rates, lengths, times, and its exact divergence.

Accepted length counts the drafts that were kept, without the token that the verifier adds in every
round; tokens per round counts that one too.

The divergence of the run. At each visited place the law of the emitted token, given everything
before it, is known, and so is its KL divergence from the verifier's law there (0 at a bonus place).
Let P be the law of texts together with the places in the blocks at which their tokens were emitted,
and Q the verifier's texts with places drawn as the run draws them given the tokens. By the chain
rule KL(P‖Q) is the expected sum of those divergences, so that the sum over a text estimates it
without bias. A reader of the text does not see the places, and forgetting them can only bring the
two laws nearer: the estimate bounds KL of the texts alone, P_alg from the verifier, from above. It
is an equality only where the places tell nothing, as for `sps`, where both are 0.
"""

from typing import Any

import numpy as np

from real_models.decoding.loop import DecodedText, Decoding
from real_models.decoding.verifying.placed_rules import PlacedRules
from sim.rounds.metrics import acceptance_metrics, clustered_mean
from theory import Rule

__all__ = ["rule_label", "summary"]


def summary(run: Decoding) -> dict[str, Any]:
    """The figures of a run as one dictionary; `*_se` is a standard error, clustered by text.

    Times are in seconds, divergences and likelihoods in nats. What was not measured is absent; a
    rate of nothing and the standard error of a single text are nan.
    """
    accepted = np.concatenate([text.accepted for text in run.texts]).astype(int)
    drafted = np.concatenate([text.drafted for text in run.texts]).astype(int)
    tokens = sum(len(text.tokens) for text in run.texts)
    counts = acceptance_metrics(accepted, drafted)
    return {
        "rule": run.rule.name,
        "parameters": run.rule.parameters,
        "draft_tokens": run.draft_tokens,
        "verification": run.verification,
        "candidates": run.candidates,
        "settings": run.settings.label,
        "texts": len(run.texts),
        "tokens": tokens,
        "rounds": counts.rounds,
        "accepted_length": counts.accepted_length,
        "accepted_length_se": _length_error(run.texts),
        "tokens_per_round": counts.tokens_per_round,
        "acceptance_rate": counts.acceptance_rate,
        "acceptance_by_position": counts.conditional.tolist(),
        "kept_by_position": counts.unconditional.tolist(),
        **({"cut": {role: mass.facts() for role, mass in run.cut.items()}} if run.cut else {}),
        **_times(run, tokens),
        **_observed(run.texts),
    }


def rule_label(rule: Rule | PlacedRules) -> str:
    """`cactus(delta=0.5)`."""
    return f"{rule.name}({', '.join(f'{n}={v}' for n, v in rule.parameters.items())})"


def _length_error(texts: list[DecodedText]) -> float:
    sums = np.array([sum(text.accepted) for text in texts], dtype=np.float64)
    return clustered_mean(sums, np.array([len(text.accepted) for text in texts]))[1].item()


def _times(run: Decoding, tokens: int) -> dict[str, Any]:
    """Seconds by part; what the rule costs beside the verifier; the gain over the verifier alone.

    The time of a token counts everything but the measuring, on both sides, prefill included.
    """
    spent = sum(seconds for part, seconds in run.seconds.items() if part != "measure")
    times = {
        "seconds": dict(run.seconds),
        "seconds_per_token": spent / tokens,
        "rule_over_verify": run.seconds["rule"] / run.seconds["verify"],
    }
    if run.alone_tokens:
        alone = run.alone_seconds / run.alone_tokens
        times |= {"alone_seconds_per_token": alone, "speed_up": alone * tokens / spent}
    return times


def _observed(texts: list[DecodedText]) -> dict[str, Any]:
    """The exact quantities over the tokens of the texts."""
    seen = [text.observed for text in texts if text.observed is not None]
    if not seen:
        return {}
    sizes = np.array([observed.surprise.size for observed in seen])
    tested = [np.isfinite(observed.strict) for observed in seen]
    visited = np.array([mask.sum() for mask in tested])
    found: dict[str, Any] = {"bonus_share": float(1.0 - visited.sum() / sizes.sum())}
    of_text = np.array([observed.divergence.sum() for observed in seen])
    one_each = np.ones(len(seen), dtype=int)
    means = {
        "kl_per_token": (of_text, sizes),
        "kl_per_text": (of_text, one_each),
        "nll_per_token": (np.array([observed.surprise.sum() for observed in seen]), sizes),
    }
    if visited.sum():
        for name, field in (("acceptance", "acceptance"), ("strict_acceptance", "strict")):
            sums = [getattr(o, field)[mask].sum() for o, mask in zip(seen, tested)]
            means[name] = (np.array(sums), visited)
    for name, (sums, counts) in means.items():
        mean, error = clustered_mean(sums, counts)
        found |= {name: mean.item(), f"{name}_se": error.item()}
    if visited.sum() and found["strict_acceptance"] < 1.0:
        rejected, strict = 1.0 - found["acceptance"], 1.0 - found["strict_acceptance"]
        found["rejection_vs_sps"] = rejected / strict - 1.0
    return found

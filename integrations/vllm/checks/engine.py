"""The rules in the real engine: vLLM with the plug-in, one engine for each rule.

    PYTHONPATH=integrations/vllm python -m checks.engine build/vllm-pair --rules sps

Writes `engine.json`: by rule and temperature, the plug-in's report of every request, and for
`native`, the engine without a rule, the engine's own counts. Runs where vLLM is installed.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from checks.records import DRAFT_TOKENS, NEW_TOKENS, RULES, TEMPERATURES, pair_facts
from sim.jobs.files import json_text, write_json

__all__ = ["NATIVE", "main"]

NATIVE = "native"
_COUNTS = ("drafts", "draft_tokens", "accepted_tokens")


def main(argv: list[str] | None = None) -> int:
    """Generate with each rule at each temperature; returns the exit status."""
    parser = argparse.ArgumentParser(description="Run the rules in vLLM.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rules", nargs="+", default=(NATIVE, *RULES))
    args = parser.parse_args(argv)
    found: dict[str, Any] = {}
    for rule in args.rules:
        found |= _run(args.folder, rule)
        print(
            json_text({name: found[name] for name in found if name.startswith(rule)}, indent=None)
        )
    write_json(args.folder / "engine.json", found)
    return 0


def _run(folder: Path, rule: str) -> dict[str, Any]:
    """One engine, as a user starts it: the rule comes from the environment."""
    report = folder / "report.jsonl"
    report.unlink(missing_ok=True)
    os.environ |= {"SPECULATIVE_LAB_REPORT": "" if rule == NATIVE else str(report.resolve()),
                   "SPECULATIVE_LAB_RULE": "" if rule == NATIVE else rule,
                   "VLLM_USE_V2_MODEL_RUNNER": "0"}  # fmt: skip
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    import vllm

    prompts = pair_facts(folder)["prompts"]
    engine = vllm.LLM(
        model=str(folder / "verifier"),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=len(prompts),
        disable_log_stats=False,
        speculative_config={
            "method": "draft_model",
            "model": str(folder / "draft"),
            "num_speculative_tokens": DRAFT_TOKENS,
            "draft_sample_method": "probabilistic",
        },
    )
    counts, names = {}, {}
    for temperature in TEMPERATURES:
        label = f"{rule} T={temperature:g}"
        before = _counts(engine)
        options = vllm.SamplingParams(temperature=temperature, max_tokens=NEW_TOKENS, seed=1)
        asked = [{"prompt_token_ids": ids} for ids in prompts.values()]
        answers = engine.generate(asked, options, use_tqdm=False)
        names |= {a.request_id: (label, prompt) for a, prompt in zip(answers, prompts)}
        counts[label] = {key: value - before[key] for key, value in _counts(engine).items()}
    engine.llm_engine.engine_core.shutdown()
    del engine
    return counts if rule == NATIVE else _reported(report, names)


def _counts(engine: Any) -> dict[str, int]:
    """The engine's own counters of speculative decoding."""
    metrics = {metric.name: metric for metric in engine.get_metrics()}
    return {name: int(metrics[f"vllm:spec_decode_num_{name}"].value) for name in _COUNTS}


def _reported(report: Path, names: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """The plug-in's documents by label and prompt; the engine lengthens the names of requests."""
    import json

    found: dict[str, Any] = {label: {} for label, _ in names.values()}
    for line in report.read_text(encoding="utf-8").splitlines():
        document = json.loads(line)
        label, prompt = names[document["request"].partition("-")[0]]
        found[label][prompt] = document
    return found


if __name__ == "__main__":
    sys.exit(main())

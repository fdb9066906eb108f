"""The entry point of `vllm.general_plugins`: puts a rule in the place of vLLM's rejection sampling.

vLLM calls `register` in each of its processes. What is replaced, and only where a rule was chosen:

* `vllm.v1.sample.rejection_sampler.rejection_sample`, which `RejectionSampler.forward` looks up at
  call time, when the first `RejectionSampler` is built;
* `GPUModelRunner._sample`, to know the requests of a batch by name;
* on CPUs `expand_batch_to_tokens` (see `rejection`);
* the choice of the model runner: the first, unless the second is asked for; there its own
  `rejection_sample` is replaced (see `second_runner`), which was never run inside the engine.

A version that this was not tested with is left alone, or refused where a rule was asked for.
"""

import os
import sys
from collections.abc import Callable
from functools import wraps
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from speculative_lab_vllm.choice import Choice, choose
from speculative_lab_vllm.realised import Accounts
from speculative_lab_vllm.rejection import RuleSampler, expand_batch_to_tokens
from speculative_lab_vllm.second_runner import SecondRunnerSampler

__all__ = ["TESTED", "register"]

TESTED = ("0.32.0",)
"""The versions of vLLM in which the replaced function was audited."""

_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_LOGGER = "vllm.speculative_lab"  # vLLM shows what loggers below its own name are told


def register() -> None:
    """Prepare this process of vLLM; costs nothing the second time.

    Raises ValueError of one line for a rule that cannot run, and for an untested version.
    """
    import vllm
    from vllm.logger import init_logger

    chosen = choose()
    version = vllm.__version__.split("+")[0]
    if version not in TESTED:
        told = f"speculative-lab-vllm was tested with vLLM {', '.join(TESTED)}, this is {version}"
        if chosen is not None:
            raise ValueError(f"{told}: no rule runs")
        init_logger(_LOGGER).warning("%s: it does nothing", told)
        return
    _take_runner()
    _take_sampler()


def _take_runner() -> None:
    """Let every configuration with a rule use the first model runner, or prepare the second."""
    from vllm.config import VllmConfig

    second = VllmConfig.use_v2_model_runner
    if getattr(second.fget, "speculative_lab", False):
        return

    @wraps(second.fget)
    def use_v2_model_runner(config: Any) -> bool:
        if choose(config.additional_config) is None:
            return second.fget(config)
        if getattr(config, "watermark_config", None) is not None:
            raise ValueError("a rule and watermarking exclude each other")
        os.environ.setdefault(_RUNNER, "0")
        if not second.fget(config):
            return False
        from vllm.logger import init_logger

        init_logger(_LOGGER).warning(
            "a rule in the second model runner was never run inside the engine: set %s=0", _RUNNER
        )
        _take_second_sampler()
        return True

    use_v2_model_runner.speculative_lab = True
    VllmConfig.use_v2_model_runner = property(use_v2_model_runner)


def _take_sampler() -> None:
    """Let the first `RejectionSampler` that is built put the rule in its place."""
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    _when_built(RejectionSampler, install)


def _take_second_sampler() -> None:
    """The same for the second model runner's."""
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

    _when_built(RejectionSampler, install_second)


def _when_built(sampler: Any, put_rule: Callable[[Choice], Accounts]) -> None:
    build = sampler.__init__
    if getattr(build, "speculative_lab", False):
        return

    @wraps(build)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        build(self, *args, **options)
        from vllm.config import get_current_vllm_config_or_none

        config = get_current_vllm_config_or_none()
        chosen = choose(config.additional_config if config else None)
        if chosen is not None:
            put_rule(chosen)

    __init__.speculative_lab = True
    sampler.__init__ = __init__


def install(chosen: Choice) -> Accounts:
    """Put the rule in its place in this process, and return the accounts of its requests."""
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    accounts = _accounts(chosen)
    rejection_sampler.rejection_sample = RuleSampler(chosen.rule, accounts.seen)
    if current_platform.is_cpu():
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    _name_requests(accounts)
    return accounts


def install_second(chosen: Choice) -> Accounts:
    """The same for the second model runner, whose requests are known by their states."""
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    accounts, names = _accounts(chosen), {}
    sampler = rejection_sampler.RejectionSampler
    sample = getattr(sampler.__call__, "speculative_lab", sampler.__call__)

    @wraps(sample)
    def __call__(self: Any, logits: Any, input_batch: Any, *args: Any, **options: Any) -> Any:
        names.clear()
        names.update(zip(input_batch.idx_mapping_np.tolist(), input_batch.req_ids))
        accounts.begin(input_batch.req_ids, self.sampler.req_states.req_id_to_index)
        return sample(self, logits, input_batch, *args, **options)

    def seen(states: list[int], drafts: Any, verdicts: Any) -> None:
        # A large batch comes in parts.
        accounts.batch = [names[state] for state in states if state in names]
        accounts.seen(drafts, verdicts)

    __call__.speculative_lab = sample
    sampler.__call__ = __call__
    rejection_sampler.rejection_sample = SecondRunnerSampler(chosen.rule, seen)
    return accounts


def _accounts(chosen: Choice) -> Accounts:
    """The accounts of a rule, which tell the log and the report, also at the end of a process."""
    from vllm.logger import init_logger

    logger, first = init_logger(_LOGGER), _first_rank()

    def tell(line: str, document: str) -> None:
        if not first:
            return  # every rank of a tensor-parallel group draws the same tokens
        logger.info("speculative-lab: %s", line)
        if chosen.report is not None:
            try:
                _append(chosen.report, document)
            except OSError as error:  # a full disk is no reason to end an engine that serves
                logger.warning("speculative-lab: report %s: %s", chosen.report, error.strerror)

    accounts = Accounts(chosen.rule, tell, measure=chosen.realised)
    Finalize(None, accounts.close_all, exitpriority=0)  # in worker processes too
    logger.info("speculative-lab: %r tests the drafts", chosen.rule)
    return accounts


def _first_rank() -> bool:
    from vllm.distributed import parallel_state

    initialised = parallel_state.model_parallel_is_initialized()
    return not initialised or parallel_state.get_tensor_model_parallel_rank() == 0


def _append(path: Path, document: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(document + "\n")


def _name_requests(accounts: Accounts) -> None:
    """Let the model runner say, before it samples, which requests are in the batch."""
    module = sys.modules.get("vllm.v1.worker.gpu_model_runner")
    if module is None:  # the sampler was built without a runner
        return
    runner = module.GPUModelRunner
    sample = getattr(runner._sample, "speculative_lab", runner._sample)

    @wraps(sample)
    def _sample(self: Any, *args: Any, **options: Any) -> Any:
        accounts.begin(self.input_batch.req_ids, self.requests)
        return sample(self, *args, **options)

    _sample.speculative_lab = sample
    runner._sample = _sample

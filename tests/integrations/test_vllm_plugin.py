"""The plug-in's hooks, on a stand-in for the few names of vLLM that it touches."""

import importlib
import logging
import os
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from engine_rounds import call, metadata

from speculative_lab_vllm import plugin
from speculative_lab_vllm.choice import Choice
from speculative_lab_vllm.realised import Realised
from speculative_lab_vllm.rejection import RuleSampler, expand_batch_to_tokens
from speculative_lab_vllm.second_runner import SecondRunnerSampler
from theory import make_rule

FOLDER = Path(__file__).resolve().parents[2] / "integrations" / "vllm"


def engine_module(version, *, second_runner=True, forced=False):
    """The modules of a vLLM, as far as the plug-in knows them, by name."""

    class VllmConfig:
        additional_config = {}  # noqa: RUF012 - as the engine's default

        @property
        def use_v2_model_runner(self):
            wanted = os.environ.get("VLLM_USE_V2_MODEL_RUNNER")
            return forced or (second_runner if wanted is None else wanted == "1")

    class RejectionSampler:
        def __init__(self, sampler, spec_config=None):
            self.sampler = sampler

    calls: list = []

    class SecondSampler:
        def __init__(self, sampler):
            self.sampler = sampler

        def __call__(self, logits, input_batch):
            return [call() for call in calls]

    class GPUModelRunner:
        def __init__(self, sampler):
            self.requests = {"a": 0}
            self.input_batch = SimpleNamespace(req_ids=["a"])
            self.sample = sampler

        def _sample(self, *arguments):
            return self.sample(*arguments)

    current = SimpleNamespace(config=None)
    parallel = SimpleNamespace(model_parallel_is_initialized=lambda: False)
    return {
        "vllm": {"__version__": version},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.config": {"VllmConfig": VllmConfig, "current": current,
                        "get_current_vllm_config_or_none": lambda: current.config},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: True)},
        "vllm.distributed": {"parallel_state": parallel},
        "vllm.v1": {},
        "vllm.v1.sample": {},
        "vllm.v1.sample.rejection_sampler": {"RejectionSampler": RejectionSampler,
                                             "rejection_sample": "native",
                                             "expand_batch_to_tokens": "native"},
        "vllm.v1.worker": {},
        "vllm.v1.worker.gpu_model_runner": {"GPUModelRunner": GPUModelRunner},
        "vllm.v1.worker.gpu": {},
        "vllm.v1.worker.gpu.spec_decode": {},
        "vllm.v1.worker.gpu.spec_decode.rejection_sampler": {"RejectionSampler": SecondSampler,
                                                             "rejection_sample": "native",
                                                             "calls": calls},
    }  # fmt: skip


@pytest.fixture
def engine(monkeypatch):
    """Puts a stand-in into Python's modules and gives the names that matter."""
    for name in ("VLLM_USE_V2_MODEL_RUNNER", "SPECULATIVE_LAB_RULE", "SPECULATIVE_LAB_REPORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(plugin, "Finalize", lambda *_, **__: None)  # nothing at pytest's own end

    def make(version=plugin.TESTED[0], **options):
        for name, contents in engine_module(version, **options).items():
            module = ModuleType(name)
            vars(module).update(contents)
            monkeypatch.setitem(sys.modules, name, module)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, module)
        return SimpleNamespace(
            sampler=sys.modules["vllm.v1.sample.rejection_sampler"],
            second=sys.modules["vllm.v1.worker.gpu.spec_decode.rejection_sampler"],
            runner=sys.modules["vllm.v1.worker.gpu_model_runner"].GPUModelRunner,
            config=sys.modules["vllm.config"],
        )

    return make


def test_the_entry_point_names_this_function():
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))
    (target,) = project["project"]["entry-points"]["vllm.general_plugins"].values()
    module, _, name = target.partition(":")
    assert getattr(importlib.import_module(module), name) is plugin.register


def test_a_rule_takes_the_place_when_a_sampler_is_built(engine, monkeypatch):
    vllm = engine()
    monkeypatch.setenv("SPECULATIVE_LAB_RULE", "cactus:delta=0.1")
    plugin.register()
    assert vllm.sampler.rejection_sample == "native"
    assert vllm.sampler.RejectionSampler("x").sampler == "x"
    assert isinstance(vllm.sampler.rejection_sample, RuleSampler)
    assert vllm.sampler.rejection_sample.rule == make_rule("cactus", delta=0.1)
    assert vllm.sampler.expand_batch_to_tokens is expand_batch_to_tokens


def test_the_configuration_of_the_engine_chooses_too(engine):
    vllm = engine()
    plugin.register()
    config = vllm.config.VllmConfig()
    config.additional_config = {"speculative_lab": {"rule": "sps"}}
    vllm.config.current.config = config
    vllm.sampler.RejectionSampler("x")
    assert vllm.sampler.rejection_sample.rule == make_rule("sps")


def test_nothing_is_touched_where_no_rule_was_chosen(engine):
    vllm = engine()
    plugin.register()
    vllm.sampler.RejectionSampler("x")
    assert vllm.sampler.rejection_sample == "native"
    assert vllm.sampler.expand_batch_to_tokens == "native"
    assert vllm.config.VllmConfig().use_v2_model_runner


def test_the_second_time_costs_nothing(engine):
    vllm = engine()
    plugin.register()
    build, second = vllm.sampler.RejectionSampler.__init__, vllm.config.VllmConfig
    held = vars(second)["use_v2_model_runner"]
    plugin.register()
    assert vllm.sampler.RejectionSampler.__init__ is build
    assert vars(second)["use_v2_model_runner"] is held


def test_an_untested_version_is_refused_where_a_rule_was_asked_for(engine, monkeypatch):
    vllm = engine("0.99.1+cpu")
    build = vllm.sampler.RejectionSampler.__init__
    monkeypatch.setenv("SPECULATIVE_LAB_RULE", "sps")
    with pytest.raises(ValueError, match=r"tested with vLLM 0\.32\.0, this is 0\.99\.1: no rule"):
        plugin.register()
    assert vllm.sampler.RejectionSampler.__init__ is build


def test_an_untested_version_is_left_alone_otherwise(engine, caplog):
    vllm = engine("0.31.0")
    build = vllm.sampler.RejectionSampler.__init__
    plugin.register()
    assert vllm.sampler.RejectionSampler.__init__ is build
    assert "was tested with vLLM 0.32.0, this is 0.31.0: it does nothing" in caplog.text
    assert caplog.records[0].name.startswith("vllm.")  # others are not shown


def test_a_rule_that_is_none_ends_the_engine_at_once(engine, monkeypatch):
    engine()
    monkeypatch.setenv("SPECULATIVE_LAB_RULE", "cactsu")
    with pytest.raises(ValueError, match="did you mean 'cactus'"):
        plugin.register()


def test_a_rule_means_the_first_model_runner(engine, monkeypatch, caplog):
    vllm = engine(second_runner=True)
    monkeypatch.setenv("SPECULATIVE_LAB_RULE", "sps")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "")  # so that what is set is taken back
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
    plugin.register()
    assert vllm.config.VllmConfig().use_v2_model_runner is False
    assert not caplog.records


def test_the_second_model_runner_is_used_where_it_is_asked_for(engine, monkeypatch, caplog):
    vllm = engine()
    monkeypatch.setenv("SPECULATIVE_LAB_RULE", "cactus:delta=0.1")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    plugin.register()
    assert vllm.config.VllmConfig().use_v2_model_runner is True
    assert "was never run inside the engine: set VLLM_USE_V2_MODEL_RUNNER=0" in caplog.text
    vllm.second.RejectionSampler("x")
    assert isinstance(vllm.second.rejection_sample, SecondRunnerSampler)
    assert vllm.second.rejection_sample.rule == make_rule("cactus", delta=0.1)
    assert vllm.sampler.rejection_sample == "native"


def test_a_watermark_and_a_rule_exclude_each_other(engine, monkeypatch):
    vllm = engine(forced=True)
    monkeypatch.setenv("SPECULATIVE_LAB_RULE", "sps")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    plugin.register()
    config = vllm.config.VllmConfig()
    config.watermark_config = object()
    with pytest.raises(ValueError, match="a rule and watermarking exclude each other"):
        _ = config.use_v2_model_runner


def test_requests_of_the_second_runner_are_told_by_their_states(engine, monkeypatch, tmp_path):
    vllm = engine()
    report = tmp_path / "report.jsonl"
    monkeypatch.setenv("SPECULATIVE_LAB_RULE", "sps")
    monkeypatch.setenv("SPECULATIVE_LAB_REPORT", str(report))
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    plugin.register()
    assert vllm.config.VllmConfig().use_v2_model_runner
    known = SimpleNamespace(req_id_to_index={"a": 7})
    sampler = vllm.second.RejectionSampler(SimpleNamespace(req_states=known))
    said = SimpleNamespace(req_ids=["a"], idx_mapping_np=np.array([7]))
    logits = torch.zeros(2, 3)

    def batch():
        state, rows = torch.tensor([7]), torch.tensor([0, 1])
        return vllm.second.rejection_sample(
            logits, None, torch.tensor([2, 1]), torch.tensor([0, 2]), rows, state, state, rows,
            torch.ones(8), torch.zeros(8, dtype=torch.int64), 1,
        )  # fmt: skip

    vllm.second.calls.append(batch)
    sampler(logits, said)
    assert not report.exists()
    known.req_id_to_index = {"b": 3}
    said.req_ids, said.idx_mapping_np = ["b"], np.array([3])
    sampler(logits, said)
    (line,) = report.read_text(encoding="utf-8").splitlines()
    assert '"request": "a"' in line
    assert '"drafted": 1' in line


def test_requests_are_told_by_the_names_of_the_runner(engine, monkeypatch, tmp_path):
    vllm = engine()
    report = tmp_path / "report.jsonl"
    monkeypatch.setenv("SPECULATIVE_LAB_RULE", "sps")
    monkeypatch.setenv("SPECULATIVE_LAB_REPORT", str(report))
    plugin.register()
    vllm.sampler.RejectionSampler("x")

    def sample(said):
        rows = torch.zeros(1, 3)
        return call(vllm.sampler.rejection_sample, [[0]], rows.softmax(-1), rows, said)

    runner = vllm.runner(sample)
    assert runner._sample(metadata(1)).shape == (1, 2)
    assert not report.exists()
    runner.requests = {"b": 0}
    runner.input_batch.req_ids = ["b"]
    runner._sample(metadata(1))
    (line,) = report.read_text(encoding="utf-8").splitlines()
    assert '"request": "a"' in line
    assert '"drafted": 1' in line


def test_a_rule_that_is_put_in_again_takes_the_place_of_the_first(engine, monkeypatch):
    vllm = engine()
    monkeypatch.setenv("SPECULATIVE_LAB_RULE", "sps")
    plugin.register()
    native = vllm.runner._sample
    vllm.sampler.RejectionSampler("x")
    vllm.sampler.RejectionSampler("y")
    assert vllm.runner._sample.speculative_lab is native


def test_a_report_that_cannot_be_written_is_told_and_ends_nothing(engine, tmp_path, caplog):
    engine()
    report = tmp_path / "report.jsonl"
    accounts = plugin.install(Choice(make_rule("sps"), report))
    report.mkdir()  # after the start, as a disk fills
    accounts.open["a"] = Realised(rounds=1, drafted=1, tokens=1)
    accounts.close_all()
    assert not accounts.open
    assert f"report {report}: Is a directory" in caplog.text

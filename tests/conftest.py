"""What all tests share: long checks on demand, devices on demand, reproducible random cases.

`--nightly` adds the tests marked nightly; without it they are left out silently. The environment
variable HYPOTHESIS_PROFILE chooses `ci` (the default: the same cases every time) or `nightly` (many
more cases, new ones at each run; a failure prints the blob that repeats it).
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
# The folders tests/theory, tests/sim and tests/real_models must never stand in for the packages.
sys.path.insert(0, str(ROOT))

_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, max_examples=30, **_COMMON)
settings.register_profile("nightly", derandomize=False, max_examples=500, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="run the long checks as well")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--nightly"):
        _deselect_nightly(config, items)
    for item in items:
        if item.get_closest_marker("cuda") and not _has_cuda():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _deselect_nightly(config, items):
    long = [item for item in items if item.get_closest_marker("nightly")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def _has_cuda():
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def forgotten(monkeypatch):
    """Forget at the end what `--import` brings: rules, modules, and that they were imported."""
    from sim import extensions
    from theory import RULES

    known, modules = set(RULES), set(sys.modules)
    kept = [(here, dict(here)) for here in (extensions._LOADED, extensions._FILES)]
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in set(RULES) - known:
        del RULES[name]
    for name in set(sys.modules) - modules:
        if name.startswith(("half", "helper", "warm")):
            del sys.modules[name]
    for here, before in kept:
        here.clear()
        here.update(before)

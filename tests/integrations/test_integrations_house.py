"""The rules of the house for what is installed beside engines: little, and nothing heavy."""

import re
import sys
from pathlib import Path

import pytest
from test_house import ROOT, imported, unencoded

FOLDER = ROOT / "integrations"
SOURCES = sorted(FOLDER.rglob("*.py"))
CORE = {"theory", "sim", "torch", "speculative_lab_vllm"}
PLUGINS = {
    FOLDER / "vllm/speculative_lab_vllm": CORE | {"vllm"},
    FOLDER / "sglang": CORE | {"sglang"},
}


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
def test_a_plugin_needs_the_core_and_torch_only(folder):
    files = sorted(folder.rglob("*.py"))
    assert files
    tops = {top for path in files for top, _ in imported(path.read_text(encoding="utf-8"))}
    assert tops - set(sys.stdlib_module_names) <= PLUGINS[folder]


def test_the_engine_is_imported_inside_functions_only():
    """So that the plug-in is tested, and its mistakes are told, where there is no engine."""
    for path in (path for folder in PLUGINS for path in folder.rglob("*.py")):
        at_once = re.findall(r"^(?:import|from) (\w+)", path.read_text(encoding="utf-8"), re.M)
        assert not {"vllm", "sglang"} & set(at_once)
        assert at_once or path.name == "__init__.py"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(Path(path).relative_to(FOLDER)))
def test_files_are_short_and_say_their_encoding(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    assert not list(unencoded(text))

"""The command `speculative-lab`: one door to every command line, quick and without torch."""

import importlib
import importlib.metadata
import subprocess
import sys
import time
from pathlib import Path

import pytest

import speculative_lab
import theory
from speculative_lab import COMMANDS, main

ROOT = Path(__file__).resolve().parents[1]
NO_TORCH = """
import importlib.util as util, sys
HIDDEN, find = ("torch", "transformers"), util.find_spec
util.find_spec = lambda name, *more: None if name in HIDDEN else find(name, *more)
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Hidden())
"""


def console(*arguments, before="", cwd=ROOT):
    code = (
        f"import sys; sys.argv[0] = 'speculative-lab'\n{before}\n"
        f"from speculative_lab import main; sys.exit(main({list(arguments)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def ended(*arguments):
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code


def test_the_package_installs_the_command():
    scripts = importlib.metadata.entry_points(group="console_scripts", name="speculative-lab")
    assert {script.value for script in scripts} == {"speculative_lab:main"}


def test_the_help_names_every_command_and_imports_none():
    code = "import sys, speculative_lab\ntry: speculative_lab.main(['--help'])\nfinally:\n"
    code += " print(sorted({'numpy', 'theory', 'sim', 'torch'} & sys.modules.keys()))"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert time.monotonic() - began < 5
    assert done.stdout.endswith("[]\n")
    assert all(f"  {name}" in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", [*COMMANDS, "calibrate TRACE"])
def test_help_and_version_of_every_command_name_it_as_it_was_called(name, capsys, tmp_path):
    words = [word.replace("TRACE", str(tmp_path)) for word in name.split()]
    assert ended(*words, "--help") == 0
    told = capsys.readouterr().out
    assert told.startswith(f"usage: speculative-lab {words[0]} ")
    module = "real_models.calibrate" if len(words) > 1 else COMMANDS[words[0]][0]
    assert f"python -m {module} " not in told
    assert ended(*words, "--version") == 0
    assert capsys.readouterr().out == f"speculative-lab {theory.__version__}\n"


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "validate"])
def test_every_command_can_import(name, capsys):
    assert ended(name, "--import", "nowhere.py") == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"speculative-lab {name}: error: --import nowhere.py: No such file")
    assert errors.count("\n") == 1


def test_afterwards_a_module_is_called_by_its_own_name(capsys):
    assert ended("sweep", "--rows", "0") == 2
    assert capsys.readouterr().err.startswith("speculative-lab sweep: error: ")
    assert importlib.import_module("sim.sweep").main(["--rows", "0"]) == 2
    assert capsys.readouterr().err.startswith("python -m sim.sweep: error: ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "which command? known: sweep"),
        (["swep"], "unknown command 'swep'; did you mean 'sweep'?"),
        (["--nothing"], "unrecognized arguments: --nothing"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(arguments, told, capsys):
    assert ended(*arguments) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"speculative-lab: error: {told}")
    assert errors.count("\n") == 1


def test_the_version_is_told(capsys):
    assert ended("--version") == 0
    assert capsys.readouterr().out == f"speculative-lab {theory.__version__}\n"


def test_without_torch_the_commands_of_sim_and_theory_work(tmp_path):
    small = ("--vocab", "16", "--rows", "2", "--rules", "sps")
    for arguments in (("validate", "1"), ("calibrate", *small), ("sweep", *small, "--jobs", "1")):
        status, _, errors = console(*arguments, before=NO_TORCH, cwd=tmp_path)
        assert status == 0, errors
    status, _, errors = console("decode", before=NO_TORCH, cwd=tmp_path)
    assert status == 2
    assert errors.startswith("speculative-lab: error: real_models needs torch")
    assert errors.count("\n") == 1


def test_calibrate_goes_to_the_trace_where_one_is_named(tmp_path, capsys):
    assert ended("calibrate", str(tmp_path)) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert ended("calibrate", "--pairs", "zipg") == 2
    assert "unknown family 'zipg'" in capsys.readouterr().err


def test_every_command_line_of_the_laboratory_has_its_name():
    files = [path for wing in ("sim", "real_models") for path in (ROOT / wing).glob("*.py")]
    lines = {f"{p.parent.name}.{p.stem}" for p in files if "__main__" in p.read_text("utf-8")}
    lines |= {f"sim.{path.parent.name}" for path in (ROOT / "sim").glob("*/__main__.py")}
    known = {module for module, _ in COMMANDS.values()} | {speculative_lab._TRACES}
    assert lines | {"theory.validate"} == known

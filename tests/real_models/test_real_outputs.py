"""The command lines of models print in every encoding, and at an interruption one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from measured_traces import SMALL

ROOT = Path(__file__).resolve().parents[2]


def run(module, *arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "cp1252"}],
    ids=lambda e: e["PYTHONIOENCODING"],
)
@pytest.mark.parametrize("command", ["decode", "measure", "calibrate"])
def test_results_are_printed_in_every_encoding(
    command, environment, trace, tiny_folder, tiny_prompts, tmp_path
):
    arguments = {
        "decode": ("--verifier", tiny_folder, "--draft", "skip:0", "--prompts", tiny_prompts,
                   "--new-tokens", "3", "--no-compare", "--out", "out.jsonl"),
        "measure": (trace, *SMALL, "--out", "out"),
        "calibrate": (trace, "--rules", "sps", "--settings", "T=1", "--out", "out"),
    }[command]  # fmt: skip
    done = run(f"real_models.{command}", *arguments, cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr.decode()
    assert b"\\u" in done.stdout or b"\xb1" in done.stdout  # ± is a sign of cp1252


def test_an_interruption_during_the_imports_is_one_line(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'transformers':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n",
        encoding="utf-8",
    )
    done = run("real_models.decode", cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (done.returncode, done.stdout) == (130, b"")
    assert done.stderr.endswith(b"python -m real_models.decode: error: interrupted\n")
    assert b"Traceback" not in done.stderr

"""Threads of the forward passes, and the first line that a person sees."""

import os
import subprocess
import sys
import time

import joblib
import pytest

THREADS = """
import torch
from real_models.options.threads import set_threads
set_threads({asked})
print(torch.get_num_threads())
"""
CORES = joblib.cpu_count(only_physical_cores=True)


def threads(asked, **environment):
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_"))}
    done = subprocess.run(
        [sys.executable, "-c", THREADS.format(asked=asked)],
        env=plain | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


@pytest.mark.parametrize(
    ("asked", "environment", "expected"),
    [
        (None, {}, CORES),
        (3, {}, 3),
        (None, {"LOCAL_WORLD_SIZE": "2"}, max(1, CORES // 2)),
        (None, {"LOCAL_WORLD_SIZE": "1000"}, 1),
        (None, {"LOCAL_WORLD_SIZE": "many"}, CORES),
        (None, {"OMP_NUM_THREADS": "1"}, 1),
        (2, {"OMP_NUM_THREADS": "1"}, 2),
    ],
)
def test_threads_are_those_asked_for_or_the_cores_that_are_there(asked, environment, expected):
    assert threads(asked, **environment) == expected


@pytest.mark.parametrize(
    ("wish", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")]
)
def test_threads_do_not_spin_unless_the_user_wants_it(wish, policy):
    code = "import os, real_models; print(os.environ['OMP_WAIT_POLICY'])"
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | wish
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == policy


def test_a_command_says_something_before_pytorch_is_there(tmp_path):
    """Reading a line ends long before the command does."""
    command = [sys.executable, "-m", "real_models.measure", str(tmp_path / "no trace")]
    begun = time.monotonic()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        first = process.stderr.readline()
        waited = time.monotonic() - begun
        rest = process.stderr.read()
    if waited < 1.5:
        pytest.skip("the command was over before it had to say anything")
    assert first == (
        "python -m real_models.measure: loading PyTorch, and then the models or the trace\n"
    )
    assert rest.count("error") == 1


def test_a_library_announces_nothing():
    command = [sys.executable, "-c", "import real_models.decoding, time; time.sleep(2)"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr == ""

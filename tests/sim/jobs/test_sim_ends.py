"""A sweep that is killed, ended or out of disk: no orphan, and the same bytes when resumed."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from endings import ended_and_resumed, result_bytes, wait_until_gone

from sim.jobs.processes import Ended, end_with_parent, interruptible

SWEEP = ["sim.sweep", "--pairs", "zipf", "gaussian", "dirichlet", "--vocab", "512"]
SWEEP += ["--rules", "sps", "cactus", "frontier", "cactus_target_only", "typical", "--rows", "24"]


@pytest.mark.parametrize(
    ("times", "seed"), [(3, 0), pytest.param(10, 1, marks=pytest.mark.nightly)]
)
def test_a_sweep_resumed_after_many_ends_has_the_same_bytes(tmp_path, times, seed):
    whole, out = tmp_path / "whole", tmp_path / "out"
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", *SWEEP, "--out", str(whole)], check=True)
    longest = 1.2 * (time.monotonic() - begun)
    command = [*SWEEP, "--jobs", "2", "--out", str(out)]
    ended_and_resumed(command, out, times=times, longest=longest, seed=seed)
    assert result_bytes(out) == result_bytes(whole)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_process_that_started_them(tmp_path, number):
    """Ended in the middle of long cells; the pipes of the workers would stay open with them."""
    command = [sys.executable, "-m", "sim.sweep", "--jobs", "2", "--vocab", "32768", "--rows"]
    command += ["4000", "--pairs", "zipf", "gaussian", "--rules", "frontier", "--out"]
    with subprocess.Popen(
        [*command, str(tmp_path)], start_new_session=True, stderr=subprocess.PIPE
    ) as process:
        process.stderr.readline()
        time.sleep(3)
        os.kill(process.pid, number)
        process.stderr.read()
    wait_until_gone(process.pid)
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_interruption_with_a_status_of_its_own(number):
    with pytest.raises(Ended) as caught, interruptible():
        signal.raise_signal(number)
    assert caught.value.status == 128 + number
    assert signal.getsignal(number) == signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_ignored():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_no_thread_watches_the_process_itself():
    before = threading.active_count()
    end_with_parent(os.getpid())
    assert threading.active_count() == before

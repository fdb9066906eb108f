"""One writer a folder: the second is told who holds it, and a killed one holds nothing."""

import json
import os
import signal
import subprocess
import sys

import pandas as pd
import pytest
from paused import paused

from sim import calibrate, sweep
from sim.jobs.folder_lock import FolderInUse, owned, require_free, withdraw_manifest

HOLD = """
import sys, time
from pathlib import Path
from sim import calibrate, sweep
from sim.jobs.folder_lock import owned
with owned(Path(sys.argv[1])):
    print("owned", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that owns the folder tmp_path / "out"."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "owned\n"
        yield process
        process.kill()


def own(folder, part=0):
    with owned(folder, part):
        return sorted(path.name for path in folder.iterdir())


def test_the_second_is_told_who_holds_the_folder(tmp_path, holder):
    with pytest.raises(FolderInUse, match=f"out is being written by process {holder.pid} on "):
        own(tmp_path / "out")
    with pytest.raises(FolderInUse, match="since"):
        require_free(tmp_path / "out")


def test_the_lock_dies_with_its_process(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert own(tmp_path / "out") == [".lock", ".lock.json"]
    require_free(tmp_path / "out")


def test_a_holder_that_has_not_said_who_it_is_is_another_process(tmp_path, holder):
    (tmp_path / "out" / ".lock.json").write_text("{")
    with pytest.raises(FolderInUse, match="out is being written by another process"):
        own(tmp_path / "out")


def test_ranks_of_one_recording_own_parts_of_their_own(tmp_path):
    with owned(tmp_path), owned(tmp_path, 1):
        with pytest.raises(FolderInUse):
            own(tmp_path, 1)
        assert own(tmp_path, 2)


def test_a_folder_that_nobody_has_made_is_free_and_stays_unmade(tmp_path):
    require_free(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file is a file; a folder is needed there"):
        own(tmp_path / "file" / "out")


@pytest.mark.parametrize("module", ["sim.sweep", "sim.calibrate"])
def test_a_command_that_finds_its_folder_taken_takes_one_line(tmp_path, holder, module):
    command = [sys.executable, "-m", module, "--vocab", "8", "--rows", "2", "--rules", "sps"]
    command += ["--pairs", "zipf", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"is being written by process {holder.pid}" in line


def test_two_sweeps_on_one_folder_mix_nothing(tmp_path, capsys):
    """A second one in the middle of the first, for the same results or for others."""
    out = tmp_path / "out"
    small = ["--pairs", "zipf", "--rules", "sps", "--jobs", "1", "--rows", "2", "--out", str(out)]
    with paused("sim.sweep", "sim.sweep.run_cells", *small, "--vocab", "16") as first:
        for more in (["--vocab", "16", "--resume"], ["--vocab", "32"]):
            assert sweep.main([*small, *more]) == 2
            said = capsys.readouterr().err
            assert f"out is being written by process {first.pid} on " in said
        first.communicate("\n")
        assert first.returncode == 0
    table = pd.read_parquet(out / "tradeoff.parquet")
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert table["vocab"].unique().tolist() == manifest["arguments"]["vocab"] == [16]


def test_a_manifest_is_withdrawn_or_was_never_there(tmp_path):
    withdraw_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    withdraw_manifest(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_results_of_another_command_are_not_taken_over(tmp_path, capsys):
    small = ["--vocab", "8", "--rows", "2", "--rules", "sps", "--pairs", "zipf"]
    assert sweep.main([*small, "--jobs", "1", "--out", str(tmp_path)]) == 0
    before = {path: path.read_bytes() for path in tmp_path.glob("[!.]*")}
    assert calibrate.main([*small, "--out", str(tmp_path)]) == 2
    assert f"{tmp_path} holds the results of sim.sweep" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.glob("[!.]*")} == before
    assert sweep.main([*small, "--jobs", "1", "--out", str(tmp_path)]) == 0


def test_a_folder_whose_name_is_no_text_is_refused_before_any_work(tmp_path):
    out = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    small = ["--vocab", "8", "--rows", "2", "--rules", "sps", "--pairs", "zipf", "--jobs", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "sim.sweep", *small, "--out", out], check=False, capture_output=True
    )
    assert done.returncode == 2
    assert b"is no text in UTF-8; name another folder" in done.stderr
    assert done.stderr.count(b"\n") == 1

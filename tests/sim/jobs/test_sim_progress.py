"""Progress off a terminal: a line at the start, one every ten seconds, with the time left."""

import time

import pytest

from sim.jobs import progress
from sim.jobs.progress import Progress, plain_lines, track


def test_a_library_is_silent_where_there_is_no_terminal(capsys):
    assert list(track("abc", "letters")) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""


def test_a_command_says_that_work_starts(capsys):
    with plain_lines(), Progress(3, "measure", "cell", done=2):
        assert capsys.readouterr().err == "measure: 3 cells, 2 of them kept from before\n"
    assert capsys.readouterr().err == ""


def test_nothing_to_do_is_not_announced(capsys):
    with plain_lines():
        assert list(track([], "record")) == []
    assert capsys.readouterr().err == ""


def test_lines_come_even_while_one_step_takes_long(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.05)
    with plain_lines(), Progress(1, "measure", "cell"):
        time.sleep(0.4)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 3
    assert lines[1] == "measure: 0 of 1 cell, 0 s so far, time left not known yet"


@pytest.mark.parametrize(
    ("kept", "done", "elapsed", "line"),
    [
        (0, 2, 10.0, "2 of 8 cells, 10 s so far, about 30 s left"),
        (4, 6, 60.0, "6 of 8 cells, 1 min 00 s so far, about 1 min 00 s left"),
        (4, 4, 61.0, "4 of 8 cells, 1 min 01 s so far, time left not known yet"),
    ],
)
def test_what_was_kept_does_not_count_as_speed(monkeypatch, kept, done, elapsed, line):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    told = Progress(8, "measure", "cell", done=kept)
    told.update(done - kept)
    now[0] = elapsed
    assert told.line() == line

"""The commands of `benchmarks`: a help text or a mistake changes nothing."""

import hashlib
import importlib
from pathlib import Path

import pytest

from benchmarks.recorded import read_rows

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = sorted(
    ".".join(path.relative_to(ROOT / "benchmarks").with_suffix("").parts)
    for path in (ROOT / "benchmarks").rglob("*.py")
    if "__main__" in path.read_text("utf-8")
)


def files():
    """Every file that a command of the folder writes, by its digest."""
    folders = [ROOT / "README.md", *(ROOT / "docs").rglob("*"), *(ROOT / "benchmarks").rglob("*")]
    return {p: hashlib.sha256(p.read_bytes()).digest() for p in folders if p.is_file()}


def call(name, *arguments):
    try:
        return importlib.import_module(f"benchmarks.{name}").main(list(arguments))
    except SystemExit as end:
        return end.code


def test_every_command_is_seen():
    assert set(COMMANDS) >= {"equal", "rule_step", "run", "study", "study_page"}
    assert set(COMMANDS) >= {"rounds.__main__", "rounds.page", "rounds.held_out"}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("argument", "status"), [("--help", 0), ("--version", 0), ("--nothing", 2)]
)
def test_a_help_text_and_a_mistake_change_nothing(name, argument, status, capsys):
    before, called = files(), f"python -m benchmarks.{name.removesuffix('.__main__')}"
    assert call(name, argument) == status
    said = capsys.readouterr()
    assert files() == before
    if argument == "--help":
        assert said.out.startswith(f"usage: {called} [-h]")
    if status:
        assert said.err.startswith(f"{called}: error: ")
        assert said.err.count("\n") == 1


def test_the_study_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """The cell that failed and those after it are run; an altered one is run again."""
    study = importlib.import_module("benchmarks.study")
    cells, ran = study.CELLS[:3], []
    figures = {cell.name: read_rows(study.RESULTS)[n] for n, cell in enumerate(cells)}

    def run_cell(cell):
        ran.append(cell)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return figures[cell.name]

    monkeypatch.setattr(study, "CELLS", cells)
    monkeypatch.setattr(study, "RESULTS", tmp_path / "study.parquet")
    monkeypatch.setattr(study, "run_cell", run_cell)
    command = ["--cells", str(tmp_path / "cells")]
    assert study.main(command) == 130
    assert study.main(command) == 0
    assert ran == [cells[0], cells[1], cells[1], cells[2]]
    whole = read_rows(tmp_path / "study.parquet")
    assert [row["rule"] for row in whole] == [cell.rule for cell in cells]
    (place,) = (tmp_path / "cells").glob(f"{cells[0].name}-*")
    (place / "figures.parquet").write_bytes(b"")
    assert study.main(command) == 0
    assert ran[4:] == [cells[0]]
    assert read_rows(tmp_path / "study.parquet") == whole

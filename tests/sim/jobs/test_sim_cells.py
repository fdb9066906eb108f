"""Finished cells: whole ones are kept, and whatever is not whole is told and run again."""

import json
import shutil

import pandas as pd
import pytest

from sim.jobs.cells import CellStore
from sim.jobs.engine import run_cells

FRAME = pd.DataFrame({"x": [1.0, 2.0], "name": ["a", "b"]})
ran = []


def work(number):
    ran.append(number)
    return {"table": FRAME.assign(number=number), "second": FRAME}


CELLS = {"one": (1,), "two": (2,)}


@pytest.fixture
def folder(tmp_path):
    """Two finished cells."""
    run_cells(work, CELLS, tmp_path / "cells", stamp="s")
    ran.clear()
    return tmp_path / "cells"


def run(folder, **options):
    return run_cells(work, CELLS, folder, **({"resume": True, "stamp": "s"} | options))


def cell(folder, name):
    (place,) = folder.glob(f"{name}-*")
    return place


def test_whole_cells_are_read_and_not_run(folder, capsys):
    frames = run(folder)
    assert ran == []
    assert frames["table"]["number"].tolist() == [1, 1, 2, 2]
    assert capsys.readouterr().err == ""


def emptied(place):
    for path in place.iterdir():
        path.unlink()


def cut(place):
    path = place / "table.parquet"
    path.write_bytes(path.read_bytes()[:-20])


def one_table_gone(place):
    (place / "second.parquet").unlink()


def altered(place):
    data = bytearray((place / "table.parquet").read_bytes())
    data[20] ^= 1
    (place / "table.parquet").write_bytes(bytes(data))


def other_whole_table(place):
    FRAME.iloc[:1].to_parquet(place / "table.parquet")


def seal_gone(place):
    (place / "cell.json").unlink()


def seal_nested(place):
    (place / "cell.json").write_text("[" * 100_000)


def seal_of_nothing(place):
    (place / "cell.json").write_text("null")


def seal_without_tables(place):
    path = place / "cell.json"
    seal = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(seal | {"tables": {}}), encoding="utf-8")


def a_file_in_its_place(place):
    shutil.rmtree(place)
    place.write_text("")


def foreign(place):
    """The folder of another cell under this one's name."""
    (other,) = place.parent.glob("two-*")
    shutil.rmtree(place)
    shutil.copytree(other, place)


@pytest.mark.parametrize(
    "harm",
    [
        emptied,
        cut,
        one_table_gone,
        altered,
        other_whole_table,
        seal_gone,
        seal_nested,
        seal_of_nothing,
        seal_without_tables,
        a_file_in_its_place,
        foreign,
    ],
)
def test_a_cell_that_is_not_whole_is_told_and_run_again(folder, harm, capsys):
    whole = run(folder)
    harm(cell(folder, "one"))
    frames = run(folder)
    assert ran == [1]
    said = capsys.readouterr().err
    assert said.startswith("cells: one-")
    assert said.endswith("; this cell is run again\n")
    assert said.count("\n") == 1
    for name in ("table", "second"):
        pd.testing.assert_frame_equal(frames[name], whole[name])
    run(folder)
    assert ran == [1]


def test_a_cell_that_is_not_there_is_run_without_a_word(folder, capsys):
    shutil.rmtree(cell(folder, "two"))
    run(folder)
    assert ran == [2]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("options", [{"resume": False}, {"stamp": "other"}])
def test_nothing_is_taken_over_unasked_or_from_other_code(folder, options):
    run(folder, **options)
    assert ran == [1, 2]


def test_what_a_killed_run_left_half_done_is_cleared_away(folder):
    (folder / "three-0123.part").mkdir()
    CellStore(folder)
    assert not list(folder.glob("*.part"))


def test_a_disk_that_is_full_leaves_no_half_cell(folder, monkeypatch):
    shutil.rmtree(cell(folder, "two"))

    def full(path, document):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sim.jobs.cells.write_json", full)
        with pytest.raises(OSError, match="No space left"):
            run(folder)
    assert [path.name.split("-")[0] for path in folder.iterdir()] == ["one"]
    ran.clear()
    run(folder)
    assert ran == [2]


def test_the_seal_names_the_cell_and_every_table(folder):
    place = cell(folder, "one")
    seal = json.loads((place / "cell.json").read_text(encoding="utf-8"))
    assert seal["cell"] == place.name
    assert set(seal["tables"]) == {"table.parquet", "second.parquet"}

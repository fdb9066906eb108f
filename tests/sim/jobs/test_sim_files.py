"""Files that are whole or absent, and what they never take the place of."""

import os

import pytest

from sim.jobs.files import write_whole


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(file):
        file.write(b"ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(path, fail)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_link_is_followed_and_stays(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_whole(link, lambda file: file.write(b"new"))
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_plain_file_is_not_replaced(tmp_path, kind):
    path = tmp_path / kind
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(OSError, match="is no plain file, and is not replaced by one"):
        write_whole(path, lambda file: file.write(b"new"))
    assert not path.is_file()
    assert [entry.name for entry in tmp_path.iterdir()] == [kind]

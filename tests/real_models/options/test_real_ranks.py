"""RANK, WORLD_SIZE and LOCAL_RANK of the environment: two numbers, or one line."""

import pytest

from real_models.errors import UserError
from real_models.options.ranks import ranks
from real_models.record import main

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@pytest.fixture
def environment(monkeypatch):
    def given(**values):
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return given


def test_a_process_alone_and_one_of_many(environment):
    environment()
    assert ranks() == (0, 1)
    environment(RANK="2", WORLD_SIZE="3", LOCAL_RANK="1")
    assert ranks() == (2, 3)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"RANK": "-1"}, "RANK='-1'"),
        ({"RANK": "abc"}, "RANK='abc'"),
        ({"RANK": ""}, "RANK=''"),
        ({"RANK": "1.0", "WORLD_SIZE": "2"}, "RANK='1.0'"),
        ({"RANK": "1"}, "RANK=1, which must be below WORLD_SIZE=1"),
        ({"RANK": "3", "WORLD_SIZE": "3"}, "RANK=3, which must be below WORLD_SIZE=3"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0'"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two'"),
        ({"WORLD_SIZE": "9" * 400}, "400 characters"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK='x'"),
        ({"LOCAL_RANK": "\u0663"}, "LOCAL_RANK="),
    ],
)
def test_nonsense_is_one_line(environment, values, named, tmp_path, capsys):
    environment(**values)
    with pytest.raises(UserError) as caught:
        ranks()
    assert named in str(caught.value)
    assert main(["--out", str(tmp_path / "t")]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert named in error[0]

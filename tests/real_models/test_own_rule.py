"""docs/own-rule.md: its files are complete, its commands run, its numbers are those they print."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from real_models import decode

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/own-rule.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.S | re.M)
FILES = {m[1]: text for kind, text in BLOCKS if (m := re.match(r'"""(\w+\.py):', text))}


def printed_after(index):
    """The text block beside a block, as lines; none where the next block is something else."""
    kind, text = BLOCKS[index + 1] if index + 1 < len(BLOCKS) else ("", "")
    return text.splitlines() if kind == "text" else []


SNIPPETS = [
    (text, printed_after(i))
    for i, (kind, text) in enumerate(BLOCKS)
    if kind == "python" and text not in FILES.values()
]
COMMANDS = [
    (line.split(), printed_after(i))
    for i, (kind, text) in enumerate(BLOCKS)
    if kind == "sh"
    for line in text.splitlines()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files of the page and nothing else."""
    place = tmp_path_factory.mktemp("own-rule")
    for name, text in FILES.items():
        (place / name).write_text(text, encoding="utf-8")
    return place


def run(arguments, cwd):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def test_the_page_has_files_snippets_and_commands():
    assert set(FILES) == {"half.py", "raised.py"}
    assert len(SNIPPETS) == 2
    assert [words[2] for words, _ in COMMANDS] == [
        "sim.sweep", "sim.calibrate", "real_models.record", "real_models.measure",
        "real_models.calibrate", "real_models.decode",
    ]  # fmt: skip


@pytest.mark.parametrize(("code", "printed"), SNIPPETS, ids=["law", "certificate"])
def test_the_snippets_print_what_stands_beside_them(code, printed, folder):
    done = run(["-c", code], folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == printed


@pytest.mark.parametrize(
    ("words", "printed"),
    [command for command in COMMANDS if command[0][2].startswith("sim.")],
    ids=["sweep", "calibrate"],
)
def test_the_commands_on_synthetic_pairs_print_what_stands_beside_them(words, printed, folder):
    done = run(words[1:], folder)
    assert done.returncode == 0, done.stderr
    assert printed
    assert set(printed) <= set(done.stdout.splitlines())


def test_the_commands_on_models_run_in_their_order(
    folder, tiny_folder, tiny_prompts, forgotten, monkeypatch, capsys
):
    """The pair of the page stands for a tiny one here, and its ten prompts for five short ones."""
    monkeypatch.chdir(folder)
    tiny = ["--verifier", str(tiny_folder), "--draft", "skip:0", "--prompts", str(tiny_prompts)]
    smaller = {"record": ["--positions", "4"], "decode": ["--new-tokens", "4"]}
    for words, _ in COMMANDS:
        package, _, command = words[2].partition(".")
        if package == "sim":
            continue
        at = words.index("--pair") if "--pair" in words else len(words)
        models = tiny if "--pair" in words else []
        arguments = [*words[3:at], *models, *words[at + 2 :], *smaller.get(command, [])]
        status = importlib.import_module(words[2]).main(arguments)
        said = capsys.readouterr()
        assert status == 0, (words, said.err)
        if "--import" in words:
            assert re.search(r"\bhalf\b", said.out), words
    assert "half(share=0.3)" in said.out


def test_the_numbers_of_the_text_are_printed_by_something_beside_them():
    """Every number with two decimals or more in a sentence stands in a block of the page, too."""
    prose = re.sub(r"^```.*?^```", "", PAGE, flags=re.S | re.M)
    told = {text for _, block in BLOCKS for text in re.findall(r"\d+\.\d+|\d+ %", block)}
    numbers = set(re.findall(r"\d+\.\d\d+|\d+ %", prose))
    assert numbers
    assert numbers <= told


def test_the_readme_shows_the_same_file():
    assert FILES["half.py"] in README
    assert "(docs/own-rule.md)" in README


def test_a_parameter_whose_name_is_taken_has_an_option_of_another(
    folder, tiny_folder, forgotten, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    text = FILES["half.py"].replace("share", "temperature").replace('"half"', '"warm"')
    Path("warm.py").write_text(text, encoding="utf-8")
    models = ["--verifier", str(tiny_folder), "--draft", "skip:0", "--prompt", "w4"]
    rule = ["--import", "warm.py", "--rule", "warm", "--rule-temperature", "0.3"]
    assert decode.main([*models, *rule, "--new-tokens", "2", "--temperature", "0.9"]) == 0
    assert "warm(temperature=0.3), T=0.9" in capsys.readouterr().out


def test_a_value_at_which_a_rule_emits_no_distribution_is_refused(
    folder, tiny_folder, forgotten, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    models = ["--verifier", str(tiny_folder), "--draft", "skip:0", "--prompt", "w4"]
    assert decode.main([*models, "--import", "half.py", "--rule", "half", "--share", "2"]) == 2
    errors = capsys.readouterr().err
    assert "--rule half: Half(share=2): the output must be in [0, 1], got -0.2" in errors
    assert errors.count("\n") == 1

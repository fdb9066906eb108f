"""docs/own-pair.md: its snippets and its commands run, in their order, as they stand."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from served_answers import TEXTS, Engine, V, chat, completions, prompt_logprobs, serving, text_of

from real_models.ingest import _DEFAULTS
from real_models.served.apis import APIS
from real_models.served.reading.forms import FORMS
from real_models.traces.array_files import SUFFIXES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/own-pair.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.S | re.M)
PROMPTS = {name: text_of(ids) for name, ids in TEXTS.items()}


def printed_after(index):
    """The text block beside a block, as lines; none where the next block is something else."""
    kind, text = BLOCKS[index + 1] if index + 1 < len(BLOCKS) else ("", "")
    return text.splitlines() if kind == "text" else []


def steps():
    """(kind, code, what it prints): a snippet, or one line of commands; the last one prints."""
    for index, (kind, text) in enumerate(BLOCKS):
        codes = {"python": [text], "sh": text.splitlines()}.get(kind, [])
        for code in codes:
            yield kind, code, printed_after(index) if code == codes[-1] else []


STEPS = list(steps())


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder of a user: a file of prompts, and answers that two servers gave before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "*")
    lines = [{"prompt": text, "id": name, "chat": False} for name, text in PROMPTS.items()]
    Path("prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for role in ("draft", "verifier"):
        answers = [prompt_logprobs(role[0], ids, 20) for ids in TEXTS.values()]
        Path(f"{role}.json").write_text(json.dumps(answers))
    return tmp_path


def test_the_page_has_its_commands_in_this_order():
    commands = [code.split()[2] for kind, code, _ in STEPS if kind == "sh"]
    assert commands == [
        "real_models.ingest", "real_models.calibrate", "real_models.measure",
        "real_models.ingest", "real_models.calibrate", "real_models.measure",
        "real_models.calibrate", "real_models.ingest", "real_models.calibrate",
    ]  # fmt: skip
    assert [kind for kind, *_ in STEPS].count("python") == 2


def test_everything_on_the_page_runs(place, capsys):
    """The two servers of the page stand for two small ones, of few tokens, on this machine."""
    with serving(Engine("d")) as draft, serving(Engine("v")) as verifier:
        known = {"http://localhost:8001": draft, "http://localhost:8000": verifier,
                 "vocabulary 49152": f"vocabulary {V}", "tokens 64": "tokens 4"}  # fmt: skip
        for kind, code, printed in STEPS:
            if kind == "python":
                run = [sys.executable, "-c", code]
                done = subprocess.run(run, capture_output=True, text=True, encoding="utf-8",
                                      check=True, env={"PYTHONPATH": str(ROOT)})  # fmt: skip
                told = done.stdout
            else:
                for shown, here in known.items():
                    code = code.replace(shown, here)
                told = run_command(code, capsys)
            assert set(printed) <= set(told.splitlines()), code
    assert {path.name for path in Path("traces").iterdir()} == {
        "served",
        "saved",
        "mine",
        "mine-too",
    }


def run_command(line, capsys):
    """What a command line of the page prints."""
    words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)]
    assert words[:2] == ["python", "-m"]
    # Workers of an earlier test would look for the trace in its folder.
    alone = ["--jobs", "1"] if words[2] == "real_models.measure" else []
    status = importlib.import_module(words[2]).main([*words[3:], *alone])
    said = capsys.readouterr()
    assert status == 0, (line, said.err)
    return said.out


def test_the_trace_of_the_first_command_lists_the_20_likeliest(place, capsys):
    from real_models.traces import open_trace

    first = next(code for kind, code, _ in STEPS if kind == "sh")
    with serving(Engine("d")) as draft, serving(Engine("v")) as verifier:
        first = first.replace("http://localhost:8001", draft)
        first = first.replace("http://localhost:8000", verifier).replace("49152", str(V))
        run_command(first.replace("--new-tokens 64", "--new-tokens 4"), capsys)
    trace = open_trace("traces/served")
    assert (trace.header.listed, trace.positions) == (20, 12)
    assert len(list(Path("traces/served/answers").iterdir())) == 9


@pytest.mark.parametrize("answer", [completions, chat])
def test_the_other_forms_of_the_page_are_read_by_the_same_command(place, capsys, answer):
    for role in ("draft", "verifier"):
        # Two generations agree as far as they do; these are of one model.
        answers = [answer("v", ids, 20) for ids in TEXTS.values()]
        Path(f"{role}.json").write_text(json.dumps(answers))
    lines = [code for kind, code, _ in STEPS if kind == "sh" and "saved" in code]
    assert len(lines) == 2
    for line in lines:
        out = run_command(line.replace("--vocabulary 49152", f"--vocabulary {V}"), capsys)
    assert "T=1 top-k 20" in out


def rows_of(heading):
    """The first column of the table behind a heading of the page."""
    _, _, rest = PAGE.partition(f"| {heading} |")
    table = rest.partition("\n\n")[0].splitlines()[2:]
    return [re.findall(r"`([^`]+)`", line.split("|")[1]) for line in table]


def test_the_tables_name_every_api_form_and_file():
    assert [names[0] for names in rows_of("`--api`")] == list(APIS)
    assert sorted(names[0] for names in rows_of("form")) == sorted(FORMS)
    files = {name for names in rows_of("file") for name in names}
    assert files | {".pth"} == set(SUFFIXES)


def test_every_option_that_is_named_is_there():
    options = set(re.findall(r"`--([a-z-]+)", PAGE)) - {"max-logprobs", "logprobs-mode"}
    known = {name.replace("_", "-") for names in _DEFAULTS.values() for name in names}
    assert options <= known | {"draft", "verifier", "out", "settings"}


def test_the_readme_leads_to_the_page():
    assert "(docs/own-pair.md)" in README

"""docs/engines.md: its code and its commands run, and its numbers are those that they print."""

import contextlib
import importlib
import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from real_models.traces.reader import open_trace
from theory import RULES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/engines.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.S | re.M)
COMMANDS = [
    re.findall(r'"[^"]*"|\S+', line)
    for kind, text in BLOCKS
    if kind == "sh"
    for line in text.splitlines()
]
PRINTED = [text.splitlines() for kind, text in BLOCKS if kind == "text"]
OPTIONS = PAGE.partition("| option |")[2].partition("\n\n")[0].splitlines()[2:]
TABLE = PAGE.partition("<!-- spans -->")[2].partition("<!-- end of spans -->")[0]
HERE = ("--jobs", "1")  # workers would stay in the folder of an earlier test
TOLD = {  # a rule with its value → what the three columns say
    name: cells
    for name, *cells in (re.findall(r"[^|\s][^|]*[^|\s]", row) for row in TABLE.splitlines()[5:])
}


def arguments(words):
    return [word.strip('"') for word in words[3:]]


def test_the_page_has_the_commands_that_are_tried_here():
    assert [words[2] for words in COMMANDS] == [
        "sim.calibrate", "real_models.record", "real_models.measure",
    ]  # fmt: skip
    assert [kind for kind, _ in BLOCKS] == ["python", "text", "sh", "text", "sh"]


def test_the_code_prints_what_stands_beside_it():
    (code,) = (text for kind, text in BLOCKS if kind == "python")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "engines.md", "exec"), {})
    assert out.getvalue().splitlines() == PRINTED[0]


def test_the_command_on_synthetic_rows_prints_what_stands_beside_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert importlib.import_module("sim.calibrate").main(arguments(COMMANDS[0])) == 0
    assert set(PRINTED[1]) <= {line.rstrip() for line in capsys.readouterr().out.splitlines()}


def test_decoding_takes_the_names_of_the_engine(tiny_folder, tiny_prompts, capsys):
    (words,) = re.findall(r"`decode (--rule .*?)`", PAGE)
    models = ["--verifier", str(tiny_folder), "--draft", "skip:0", "--prompts", str(tiny_prompts)]
    decode = importlib.import_module("real_models.decode").main
    assert decode([*words.split(), *models, "--new-tokens", "4"]) == 0
    assert "top_n_delta(n=10, delta=0.6)" in capsys.readouterr().out
    assert decode([*words.split(), "--delta", "0.5", *models]) == 2
    assert "is given 'delta' twice" in capsys.readouterr().err


def test_every_rule_of_an_engine_is_in_the_table_and_nothing_else_is():
    named = {name for row in OPTIONS for name in re.findall(r"`(\w+)`", row.split("|")[2])}
    fields = {field for cls in RULES.values() for field in cls.__dataclass_fields__}
    rules = named - fields - {"argmax"}
    assert rules <= set(RULES)
    assert rules >= {"constant_threshold", "truncated_typical", "synthetic", "top_n_delta",
                     "target_only", "typical", "sps"}  # fmt: skip
    for name in ("ratio_threshold", "truncated_top_k", "truncated_top_p"):
        assert f"`{name}`" in PAGE


def test_every_option_has_its_source():
    sources = re.findall(r"^(\d+)\. ", PAGE.partition("## Sources")[2], re.M)
    assert sources == [str(n + 1) for n in range(len(sources))]
    cited = [re.findall(r"\[(\d+(?:, \d+)*)\]", row.split("|")[1]) for row in OPTIONS]
    assert all(cited)
    assert {n for row in cited for found in row for n in found.split(", ")} == set(sources)


def test_the_commands_on_models_run_in_their_order(
    tmp_path, tiny_folder, tiny_prompts, monkeypatch, capsys, tables_only
):
    """The pair stands for a tiny one here, its prompts and markers for those of that pair."""
    monkeypatch.chdir(tmp_path)
    record, measure = (arguments(words) for words in COMMANDS[1:])
    at = record.index("--pair")
    record[at : at + 2] = ["--verifier", str(tiny_folder), "--draft", "skip:0"]
    for option, value in (("--prompts", str(tiny_prompts)), ("--positions", "4")):
        record[record.index(option) + 1] = value
    assert importlib.import_module("real_models.record").main(record) == 0
    texts = [chunk.context for chunk in open_trace(measure[0]).chunks]
    at = measure.index("--span")
    measure[at + 1 : at + 3] = str(texts[0][-2]), str(max(map(np.max, texts)) + 1)
    assert importlib.import_module("real_models.measure").main([*measure, *HERE]) == 0
    assert "positions are inside the span; acceptance and KL, nats" in capsys.readouterr().out
    table = pd.read_parquet("results/thinking/spans.parquet")
    assert set(table["rule"]) == {name.split()[0] for name in TOLD}


@pytest.mark.nightly
def test_the_table_of_the_span_is_that_of_the_bundled_pair(tmp_path, monkeypatch):
    """A minute and a half on two cores; another machine may differ in the last digit."""
    prompts = str(ROOT / "real_models/prompts/thinking.jsonl")
    record, measure = (arguments(words) for words in COMMANDS[1:])
    record[record.index("--prompts") + 1] = prompts
    monkeypatch.chdir(tmp_path)
    assert importlib.import_module("real_models.record").main(record) == 0
    assert importlib.import_module("real_models.measure").main([*measure, *HERE]) == 0
    table = pd.read_parquet("results/thinking/spans.parquet")
    names = [f"{r} {v:g}" if p else r for r, p, v in zip(table["rule"], table["parameter"],
                                                         table["value"])]  # fmt: skip
    found = table.assign(name=names).set_index(["name", "group"])
    counts = found["positions"].groupby("group").first()
    assert f"{counts['inside']} of {counts['inside only']} positions are inside" in TABLE
    for name, cells in TOLD.items():
        for group, cell in zip(("inside", "outside", "inside only"), cells):
            told = [float(number) for number in cell.split(", ")]
            measured = found.loc[(name, group), ["acceptance", "kl_output_verifier"]]
            np.testing.assert_allclose(measured.to_numpy(dtype=float), told, rtol=0, atol=2e-3)


def test_the_readme_leads_to_the_page():
    assert "(docs/engines.md)" in (ROOT / "README.md").read_text(encoding="utf-8")

"""The documents agree with the data and the code that they are made from."""

import json
import re
from pathlib import Path

import pytest

import theory
from benchmarks.equal import LEVEL, PAIRS, SETTINGS, load_equal
from benchmarks.recorded import read_facts, read_rows, write_rows
from benchmarks.study import CELLS, Cell
from benchmarks.study_page import RECORDED, readme_table, study_tables
from sim.tables.calibration import MISSED
from theory.ledger.claims import ledger_page, ledger_table
from theory.ledger.verdicts import load_claims

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RECORDS = json.loads((ROOT / "docs/ledger.json").read_text(encoding="utf-8"))["claims"]


def _between(text: str, name: str) -> str:
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- end of {name} -->")[0]


def test_the_readme_carries_the_recorded_ledger():
    assert _between(README, "ledger") == ledger_table(RECORDS)


def test_the_ledger_page_is_the_recorded_one():
    page = (ROOT / "docs/ledger.md").read_text(encoding="utf-8")
    assert _between(page, "ledger in full") == ledger_page(RECORDS)


def test_the_recorded_ledger_is_that_of_the_code():
    written = [(r["number"], r["name"], r["statement"], r["instead"]) for r in RECORDS]
    assert written == [(c.number, c.name, c.statement, c.instead) for c in load_claims()]
    assert all(r["in_order"] for r in RECORDS)


def test_the_readme_names_every_rule():
    assert set(theory.RULES) <= set(re.findall(r"`(\w+)`", README))


def test_the_example_of_the_readme_runs_and_gives_its_numbers():
    code = re.search(r"## In Python\n\n```python\n(.*?)```", README, re.S).group(1)
    scope: dict = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert scope["law"].acceptance == pytest.approx(0.763307, abs=1e-6)
    assert scope["law"].output == pytest.approx([0.2016, 0.5633, 0.2351], abs=1e-4)
    assert scope["kl"] == pytest.approx(0.094382, abs=1e-6)
    assert scope["best"] == pytest.approx(0.763307, abs=1e-6)
    assert scope["worst"] == pytest.approx(0.434560, abs=1e-6)


@pytest.mark.parametrize("target", re.findall(r"\]\(((?!http)[^)]+)\)", README))
def test_every_link_of_the_readme_leads_somewhere(target):
    assert (ROOT / target).exists()


def test_the_study_is_the_recorded_one():
    study = (ROOT / "docs/study.md").read_text(encoding="utf-8")
    tables = study_tables()
    assert set(re.findall(r"<!-- end of (.*?) -->", study)) == set(tables)
    for name, table in tables.items():
        assert _between(study, name) == table, name
    assert _between(README, "decoding") == readme_table()


def test_the_study_is_complete():
    names = [Cell.of(cell).name for cell in read_rows(RECORDED)]
    assert names == [cell.name for cell in CELLS]


def test_recorded_rows_come_back_as_they_were_written(tmp_path):
    rows = [
        {"rule": "sps", "parameters": {}, "kl": 0.0, "kept": [0.5, None], "seconds": {"rule": 0.1}},
        {"rule": "typical", "parameters": {"epsilon": 0.1, "alpha": 0.3}, "kl": float("inf")},
        {"rule": "top_k", "parameters": {"k": 8.0}, "tokens": 3, "kept": []},
    ]
    write_rows(tmp_path / "rows.parquet", rows, {"device": "CPU", "level": 0.02})
    assert read_rows(tmp_path / "rows.parquet") == rows
    assert read_facts(tmp_path / "rows.parquet") == {"device": "CPU", "level": 0.02}


def test_what_no_person_reads_is_not_json():
    """A large document belongs in parquet, which is a sixth of it and keeps its types."""
    large = [p.name for p in (ROOT / "benchmarks/results").glob("*.json") if p.stat().st_size > 3e4]
    assert not large


def test_every_rule_is_calibrated_for_every_pair_and_setting():
    rows = load_equal()
    assert len(rows) == len(theory.RULES) * len(PAIRS) * len(SETTINGS)
    for (draft, settings), found in rows.groupby(["draft", "settings"]):
        assert set(found["rule"]) == set(theory.RULES), (draft, settings)
        assert (found["acceptance"] <= found["best_acceptance"] + 1e-6).all()
    kept = rows[rows["status"] != MISSED]
    assert (kept["js"] <= LEVEL * (1 + 1e-9)).all()
    assert (rows.loc[rows["status"] == MISSED, "js"] > LEVEL).all()


def test_the_speed_table_is_the_recorded_benchmark():
    ratios = json.loads((ROOT / "benchmarks/results/cpu.json").read_text(encoding="utf-8"))[
        "ratios"
    ]
    for ratio in ratios:
        assert f"| {ratio['ratio']:.3g} |" in README, ratio["name"]

"""The documents agree with the data and the code that they are made from."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

import theory
from benchmarks.equal import LEVEL, PAIRS, SETTINGS, STUDIED, load_equal
from benchmarks.recorded import read_facts, read_rows, write_rows
from benchmarks.run import speed_section
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


def test_all_say_one_thing_of_how_long_the_study_takes():
    told = {}
    for path in (*PAGES, ROOT / "benchmarks/study.py"):
        text = path.read_text(encoding="utf-8")
        for found in re.finditer(r"benchmarks\.study\b(?!_).{0,60}?(\w+) hours?\b", text, re.S):
            told[path.name] = found[1]
    assert told.keys() >= {"study.md", "study.py", "08_decoding.ipynb"}
    assert set(told.values()) == {"three"}


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


def test_every_rule_of_the_study_is_calibrated_for_every_pair_and_setting():
    rows = load_equal()
    assert len(rows) == len(STUDIED) * len(PAIRS) * len(SETTINGS)
    for (draft, settings), found in rows.groupby(["draft", "settings"]):
        assert set(found["rule"]) == set(STUDIED), (draft, settings)
        assert (found["acceptance"] <= found["best_acceptance"] + 1e-6).all()
    kept = rows[rows["status"] != MISSED]
    assert (kept["js"] <= LEVEL * (1 + 1e-9)).all()
    assert (rows.loc[rows["status"] == MISSED, "js"] > LEVEL).all()


def test_the_speed_table_is_the_recorded_benchmark():
    recorded = json.loads((ROOT / "benchmarks/results/cpu.json").read_text(encoding="utf-8"))
    assert _between(README, "speed") == speed_section(recorded)
    plain = json.loads((ROOT / "benchmarks/results/cpu_plain.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    assert _between(page, "speed") == speed_section(plain)


# --- names and places that the documents tell ----------------------------------------------------

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "notebooks").glob("*.ipynb"))]  # fmt: skip
SOURCES = [p for room in ("theory", "sim", "real_models", "benchmarks") for p in
           sorted((ROOT / room).rglob("*.py"))]  # fmt: skip
NAMED = re.compile(r"(?<![\w./-])(?:theory|sim|real_models|benchmarks)(?:\.[A-Za-z_]\w*)+")
PLACED = re.compile(r"(?<![\w./-])(?:theory|sim|real_models|benchmarks|docs|notebooks)/[\w./-]*\w")


def is_there(name):
    """Whether a dotted name is a module, or something in one; a field may have no default."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return part in getattr(found, "__annotations__", {})
            found = getattr(found, part)
        return True
    return False


def test_the_search_for_names_tells_what_is_there():
    assert is_there("sim.tables.grid")
    assert is_there("theory.RULES")
    assert is_there("real_models.models.load_pair")
    assert not is_there("real_models.decode_metrics.summary")
    assert not is_there("theory.rulez")
    text = "run `python -m sim.sweep`, see sim/tables/grid.py, not my.theory.x"
    assert NAMED.findall(text) == ["sim.sweep"]
    assert PLACED.findall(text) == ["sim/tables/grid.py"]


@pytest.mark.parametrize("path", [*PAGES, *SOURCES], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_that_is_named_can_be_imported(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    assert [name for name in sorted(set(NAMED.findall(text))) if not is_there(name)] == []
    assert [place for place in sorted(set(PLACED.findall(text))) if not _stands(place)] == []


def blocks(path):
    """The Python that a page shows: code cells of a notebook, fenced code of a document."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return re.findall(r"```python\n(.*?)```", text, re.S)
    return ["".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "code"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_import_that_is_shown_works(path):
    missing = [
        f"{node.module}.{alias.name}"
        for block in blocks(path)
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if not is_there(f"{node.module}.{alias.name}")
    ]
    assert missing == []


def _stands(place):
    return (ROOT / place).exists() or any(ROOT.glob(f"{place}*.ipynb"))


TREE = README.partition("## The house")[2].partition("```text\n")[2].partition("```")[0]


def test_the_tree_of_the_readme_names_every_wing_and_no_other():
    assert re.findall(r"^(\w+)/ ", TREE, re.M) == ["theory", "sim", "real_models"]
    for part in re.split(r"^(?=\w)", TREE, flags=re.M)[1:]:
        package, lines = part.partition("/")[0], part.splitlines()[1:]
        told = [name for line in lines if line.strip() for name in line[2:30].split()]
        wings = {p.name for p in (ROOT / package).iterdir() if p.is_dir() and any(p.rglob("*.py"))}
        assert {name.rstrip("/") for name in told if name.endswith("/")} == wings
        assert len(told) == len(set(told))
        files = [name for name in told if not name.endswith("/")]
        assert all((ROOT / package / name).is_file() for name in files)
        assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize(
    ("looked_for", "place"),
    [
        ("decoder", "real_models/decoding"),
        ("trace format", "real_models/traces"),
        ("frontier", "sim/figures"),
        ("claims", "theory/ledger"),
    ],
)
def test_a_stranger_finds_it_from_the_tree(looked_for, place):
    package, wing = place.split("/")
    room = re.search(rf"^{package}/.*?(?=^\w|\Z)", TREE, re.S | re.M)[0]
    (line,) = re.findall(rf"^  {wing}/.*$", room, re.M)
    assert looked_for in line


def test_calibration_on_own_arrays_is_told_and_runs():
    code = re.search(r"### On arrays of your own\n.*?```python\n(.*?)```", README, re.S)[1]
    scope: dict = {}
    exec(compile(code, "README.md", "exec"), scope)
    found = scope["found"].set_index("rule")
    assert set(found["status"]) == {"met"}
    assert (found["kl_output_verifier"] <= 0.05).all()
    assert (found["kl_output_verifier"] > 0.0495).all()
    for told in re.findall(r"# (\w+) +([\d.]+) +([\d.]+)", code):
        row = found.loc[told[0]]
        assert (f"{row['value']:.4f}", f"{row['acceptance']:.3f}") == told[1:]

"""The notebooks as stored: no outputs, a question first, assertions, figures of the package only.

That they run is checked by `python -m pytest --nbmake notebooks`.
"""

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CLAIMS = {
    "01": {1, 8, 9},
    "02": {2, 3},
    "03": {6, 7, 11, 12},
    "04": {3, 13, 14, 19, 20},
    "05": {4, 5},
    "06": {10, 15, 16, 17, 18},
    "07": {13, 14, 17, 19, 20, 36, 37, 38},
    "08": {9, 13, 20},
    "09": {21, 22, 23, 24, 28},
    "10": {25, 26, 27, 29},
    "11": {30, 31, 32, 33},
}
NUMBERS = ("figures.true_cost", "figures.reads_per_token")
PLOTTING = {"matplotlib", "seaborn", "plotly", "pylab"}
_ABSOLUTE = re.compile(r"""["'](?:/[A-Za-z]|[A-Za-z]:\\|~)|/(?:home|root|tmp|work|Users)/""")


def cells(path, kind):
    """The sources of the cells of one kind."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [source(cell) for cell in notebook["cells"] if cell["cell_type"] == kind]


def source(cell):
    return "".join(cell["source"])


def imported(tree):
    """The top-level packages that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def test_they_are_all_there_in_order():
    assert [path.name[:2] for path in NOTEBOOKS] == list(CLAIMS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_is_stored_without_outputs(self, path):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert notebook["metadata"]["kernelspec"]["name"] == "python3"
        assert set(notebook["metadata"]) <= {"kernelspec", "language_info"}
        for cell in notebook["cells"]:
            assert cell["metadata"] == {}
            assert not cell.get("outputs")
            assert cell.get("execution_count") is None

    def test_opens_with_a_question_and_its_claims(self, path):
        first = cells(path, "markdown")[0]
        assert first.startswith(f"# {path.name[:2]} · ")
        question = re.search(r"\*\*Question\.\*\*(.*?)\n\n", first, re.S)
        assert question
        assert question[1].rstrip().endswith("?")
        told = first.split("**Claims of the ledger")[1]
        # A claim is told with its name in brackets; other numbers are those of papers.
        claims = {int(number) for number in re.findall(r"\b(\d+)\s+\(", told)}
        assert claims == CLAIMS[path.name[:2]]

    def test_ends_with_things_to_try(self, path):
        last = json.loads(path.read_text(encoding="utf-8"))["cells"][-1]
        assert last["cell_type"] == "markdown"
        assert len(re.findall(r"^\* ", source(last).split("## Things to try")[1], re.M)) >= 3

    def test_is_of_a_length_to_be_read(self, path):
        code, text = cells(path, "code"), cells(path, "markdown")
        assert 10 <= len(code) + len(text) <= 22
        assert max(len(cell.splitlines()) for cell in code) <= 45

    def test_asserts_its_own_numbers(self, path):
        trees = [ast.parse(cell) for cell in cells(path, "code")]
        checks = [
            node
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.Assert)
            or (isinstance(node, ast.Attribute) and node.attr.startswith("assert_"))
        ]
        assert len(checks) >= 8

    def test_takes_its_figures_from_the_package(self, path):
        trees = [ast.parse(cell) for cell in cells(path, "code")]
        packages = {name for tree in trees for name in imported(tree)}
        assert not packages & PLOTTING
        drawn = re.findall(r"\bfigures\.([a-z_]+)\(", "\n".join(cells(path, "code")))
        assert len(set(drawn)) >= 3

    def test_hides_no_warning_and_knows_no_place(self, path):
        text = path.read_text(encoding="utf-8")
        assert "filterwarnings" not in text
        assert "simplefilter" not in text
        for cell in cells(path, "code"):
            assert not _ABSOLUTE.search(cell)
            assert not cell.lstrip().startswith(("!", "%"))

    def test_shows_no_figure_twice(self, path):
        assert not repeated("\n".join(cells(path, "code")))


def repeated(code):
    """Calls of figures with the same arguments, as they are written."""
    tree = ast.parse(code)
    calls = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("figures.")
    ]
    # Numbers are no figures, and a table of the same name may be another one by then.
    told = [call for call in calls if not call.startswith(NUMBERS) and "(table" not in call]
    return sorted({call for call in told if told.count(call) > 1})


def test_the_search_for_repeated_figures_finds_them():
    assert repeated("figures.overlap(p, q)\nfigures.overlap(p,\n q)") == ["figures.overlap(p, q)"]
    assert repeated("figures.overlap(p, q)\nfigures.overlap(q, p)") == []

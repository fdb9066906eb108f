"""The rules of the house, held by reading the code: who imports whom, names, docstrings, sizes."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import theory

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("theory", "sim", "real_models")
MAY_IMPORT = {"theory": {"theory"}, "sim": {"theory", "sim"}, "real_models": set(PACKAGES)}
SOURCES = {name: sorted((ROOT / name).rglob("*.py")) for name in PACKAGES}
ALL_SOURCES = [path for paths in SOURCES.values() for path in paths]
LONGEST = 400


def short(path):
    return str(path.relative_to(ROOT))


def imported(source):
    """(top-level name, full name) of every import of a module, those inside functions included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module.split(".")[0], node.module


def test_the_lint_sees_imports_inside_functions():
    source = "import numpy as np\ndef f():\n    from sim.pairs import Zipf\n    import torch.nn\n"
    assert {top for top, _ in imported(source)} == {"numpy", "sim", "torch"}


@pytest.mark.parametrize("name", PACKAGES)
def test_imports_point_from_real_models_to_sim_to_theory(name):
    assert SOURCES[name]
    forbidden = (set(PACKAGES) | {"tests", "benchmarks"}) - MAY_IMPORT[name]
    wrong = [
        f"{short(path)} imports {full}"
        for path in SOURCES[name]
        for top, full in imported(path.read_text())
        if top in forbidden
    ]
    assert not wrong


# Each package from top to bottom: a wing imports the wings below it and nothing above. Rooms of one
# floor do not know each other. The package itself stands for its `__init__`.
FLOORS = {
    "theory": "validate | ledger | theory | step | certificates | partial candidates blocks "
    "| rules | frontier | optimum law | pair | divergences | arrays | terminal",
    "sim": "sweep calibrate audit chain | commandline | report | figures | drawing | tables "
    "| rounds | jobs | pairs | checks extensions",
    "real_models": "record ingest measure calibrate budget decode distill search_layers "
    "transformers_generate | generate | options | decoding | drafts | measuring served | traces "
    "| models | derived laws | prompts | errors | real_models",
}
FLOOR_OF = {
    (package, wing): floor
    for package, text in FLOORS.items()
    for floor, wings in enumerate(text.split("|"))
    for wing in wings.split()
}


def wing_of(module):
    """(package, wing) of a module: the first name below the package, or the package itself."""
    package, *rest = module.split(".")
    return package, rest[0] if rest and (package, rest[0]) in FLOOR_OF else package


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def runs_up(module, target):
    """Whether an import within a package leaves a wing for one that is not below it."""
    here, there = wing_of(module), wing_of(target)
    return here[0] == there[0] and here != there and FLOOR_OF[there] <= FLOOR_OF[here]


def test_the_lint_knows_up_from_down():
    assert runs_up("sim.tables.grid", "sim.figures.budget")
    assert runs_up("sim.sweep", "sim.calibrate")
    assert runs_up("theory.rules.base", "theory")
    assert not runs_up("sim.figures.budget", "sim.tables.grid")
    assert not runs_up("sim.figures.budget", "sim.figures.table")


@pytest.mark.parametrize("name", PACKAGES)
def test_every_room_has_its_floor(name):
    rooms = {path.relative_to(ROOT / name).parts[0].removesuffix(".py") for path in SOURCES[name]}
    known = {wing for package, wing in FLOOR_OF if package == name}
    assert rooms - {"__init__"} == known - {name}


@pytest.mark.parametrize("path", ALL_SOURCES, ids=short)
def test_no_wing_imports_one_above_it(path):
    module = module_of(path)
    assert not [full for _, full in imported(path.read_text()) if runs_up(module, full)]


def circles(graph):
    """The modules that lie on a circle: what stays when modules without imports are taken away."""
    left = {module: set(targets) & graph.keys() for module, targets in graph.items()}
    while free := {module for module, targets in left.items() if not targets}:
        left = {m: targets - free for m, targets in left.items() if m not in free}
    return sorted(left)


def test_the_lint_finds_a_circle():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": {"numpy"}}) == []


def test_no_modules_import_each_other_in_a_circle():
    graph = {module_of(p): {full for _, full in imported(p.read_text())} for p in ALL_SOURCES}
    assert circles(graph) == []


def test_no_folder_holds_more_than_a_dozen_files():
    sizes = Counter(short(path.parent) for path in ALL_SOURCES if path.parent.name != "derivations")
    assert {folder: size for folder, size in sizes.items() if size > 12} == {}


def test_no_file_repeats_the_name_of_its_wing():
    assert [short(p) for p in ALL_SOURCES if p.stem.startswith(p.parent.name.rstrip("s"))] == []


def test_theory_needs_no_torch_and_sympy_only_in_the_derivations():
    for path in SOURCES["theory"]:
        tops = {top for top, _ in imported(path.read_text())}
        assert not tops & {"torch", "transformers", "pandas", "matplotlib", "tqdm", "joblib"}, path
        if "derivations" not in path.parts:
            assert "sympy" not in tops, path


def test_sim_does_not_load_torch():
    for path in SOURCES["sim"]:
        assert not {top for top, _ in imported(path.read_text())} & {"torch", "transformers"}, path


def unencoded(source):
    """Lines that read or write text in whatever encoding the machine has."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        modes = [*map(ast.unparse, node.args), options.get("mode", "")]
        binary = any(re.fullmatch(r"'[rwax+]*b[rwax+]*'", mode) for mode in modes)
        of_text = name in ("read_text", "write_text") or options.get("text") == "True"
        of_file = name == "open" and ast.unparse(node.func) != "os.open" and not binary
        if (of_text or of_file) and "encoding" not in options:
            yield node.lineno


def test_the_lint_sees_text_without_an_encoding():
    bad = "p.read_text()\nopen(p)\np.open('w')\nrun(x, text=True)\np.write_text(t)\n"
    good = "open(p, 'rb')\np.open('ab')\np.read_text(encoding='utf-8')\nos.open(p, 1)\n"
    assert list(unencoded(bad)) == [1, 2, 3, 4, 5]
    assert list(unencoded(good)) == []


@pytest.mark.parametrize("path", [*ALL_SOURCES, *ROOT.glob("benchmarks/*.py")], ids=short)
def test_text_files_are_utf_8_on_every_machine(path):
    assert not list(unencoded(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", ALL_SOURCES, ids=short)
def test_files_are_short(path):
    assert len(path.read_text().splitlines()) <= LONGEST


def modules_of(package):
    module = importlib.import_module(package)
    yield module
    for info in pkgutil.walk_packages(module.__path__, prefix=f"{package}."):
        if not info.name.endswith("__main__"):
            yield importlib.import_module(info.name)


THEORY = list(modules_of("theory"))


def defined_in(module):
    """Public functions and classes that are written in the module."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value


def test_all_of_theory_is_what_it_imports():
    public = {
        name
        for name, value in vars(theory).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(theory.__all__)
    assert theory.__all__ == sorted(theory.__all__, key=_constants_first)


def _constants_first(name):
    return (not name.isupper(), name[0].islower(), name)


def all_of(path):
    """The names in `__all__` and the names bound at the top level of a module, by its source."""
    listed, bound = None, set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            flat = [node for target in targets for node in ast.walk(target)]
            names = {target.id for target in flat if isinstance(target, ast.Name)}
            bound |= names
            if "__all__" in names:
                listed = [element.value for element in node.value.elts]
    return listed, bound


@pytest.mark.parametrize("path", ALL_SOURCES, ids=short)
def test_every_listed_name_exists(path):
    listed, bound = all_of(path)
    if listed is not None:
        assert len(listed) == len(set(listed))
        assert set(listed) <= bound


def test_every_public_thing_of_theory_is_documented():
    missing = [
        f"{module.__name__}.{name}"
        for module in THEORY
        for name, value in defined_in(module)
        if not (value.__doc__ or "").strip() or _is_generated(value)
    ]
    assert all((module.__doc__ or "").strip() for module in THEORY)
    assert not missing


def _is_generated(value):
    """A dataclass without a docstring gets its signature for one."""
    signature = str(inspect.signature(value)).removesuffix(" -> None")
    return inspect.isclass(value) and value.__doc__ == value.__name__ + signature


def test_every_public_method_of_theory_is_documented_or_inherits_it():
    missing = [
        f"{module.__name__}.{name}.{method}"
        for module in THEORY
        for name, cls in defined_in(module)
        if inspect.isclass(cls)
        for method, value in vars(cls).items()
        if not method.startswith("_") and inspect.isfunction(value)
        if not (inspect.getdoc(getattr(cls, method)) or "").strip()
    ]
    assert not missing


# --- tests that cannot fail --------------------------------------------------------------------

# These return a truth value; numpy.testing.assert_allclose and friends raise by themselves.
SILENT = {"allclose", "isclose", "array_equal", "array_equiv", "equal", "approx", "all", "any"}


def unasserted(source):
    """Lines with a comparison whose result is thrown away."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr):
            continue
        value = node.value
        if isinstance(value, ast.Compare | ast.BoolOp):
            yield node.lineno
        elif isinstance(value, ast.Call):
            function = value.func
            name = getattr(function, "attr", getattr(function, "id", ""))
            if name in SILENT:
                yield node.lineno


def test_the_lint_finds_a_comparison_that_is_not_asserted():
    source = "np.allclose(a, b)\nassert np.allclose(a, b)\nx == 1\nok = isclose(a, b)\nall(x)\n"
    assert list(unasserted(source)) == [1, 3, 5]


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=short)
def test_no_comparison_in_a_test_is_thrown_away(path):
    assert not list(unasserted(path.read_text()))


def test_every_test_can_fail():
    """A test without any assertion, `raises` or helper that checks would pass whatever happens."""
    empty = [
        f"{short(path)}::{node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if not any(map(_may_fail, ast.walk(node)))
    ]
    assert not empty


def _may_fail(node):
    if isinstance(node, ast.Assert | ast.Raise):
        return True
    if isinstance(node, ast.Subscript):  # a table of checking functions, as in globals()[name](…)
        return True
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return bool(re.match(r"assert|raises|fail|check|close", name))


# --- what may stand in the repository ----------------------------------------------------------

FOREIGN = re.compile(
    r"(?<![\w.}/])/(?:home|root|work|tmp|Users|mnt|opt|var)/\w"
    r"|\b[A-Z]:\\\\?Users|index-url|://[^\s/]*proxy"
)


def tracked():
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.decode().split("\0") if name]


def test_the_search_for_paths_finds_them():
    hits = ["open('/home/me/x')", "--index-url y", "https://proxy.example/simple", "'/tmp/x.json'"]
    assert all(FOREIGN.search(text) for text in hits)
    assert not any(FOREIGN.search(text) for text in ["real/root/x", "a/tmp/b", "https://arxiv.org"])


def test_no_tracked_file_names_a_place_of_one_machine():
    wrong = []
    for path in tracked():
        if path == Path(__file__) or not path.is_file() or path.suffix in {".png", ".parquet"}:
            continue
        text = path.read_bytes().decode("utf-8", errors="replace")
        wrong += [f"{short(path)}: {match.group()}" for match in FOREIGN.finditer(text)]
    assert not wrong

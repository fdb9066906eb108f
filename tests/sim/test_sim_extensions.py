"""Rules of one's own: imported by name or path, once, in every process, and told in one line."""

import importlib.metadata
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from sim import extensions
from sim.commandline import parse_families
from sim.tables.calibration import calibrate
from sim.tables.cells import make_sources, prepared_batches
from sim.tables.corpus import Corpus
from sim.tables.grid import settings
from sim.tables.target import Target
from theory import RULES, make_rule

HALF = """
from dataclasses import dataclass
from theory import TargetRule, register

@register
@dataclass(frozen=True)
class Half(TargetRule):
    share: float = 0.5
    name = "NAME"
    values = (0.0, 0.5, 1.0)

    def target(self, pair):
        return (1 - self.share) * pair.q + self.share * pair.p
"""


@pytest.fixture
def write(tmp_path, monkeypatch, forgotten):
    """Write files of rules under a folder that is the working one; all is forgotten at the end."""
    monkeypatch.chdir(tmp_path)

    def build(name="half.py", text=HALF, rule="half"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("NAME", rule), encoding="utf-8")
        return path

    return build


def run(*arguments, cwd, **options):
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "", **options}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


SMALL = ("--pairs", "zipf", "--vocab", "16", "--rows", "3", "--jobs", "2")


@pytest.mark.parametrize("text", ["half.py", "half", "./half.py"])
def test_a_rule_is_known_by_the_path_of_its_file_and_by_its_module(write, text):
    write()
    extensions.load(text)
    assert make_rule("half", share=0.25).share == 0.25
    assert RULES["half"].parameter == "share"


@pytest.mark.parametrize("second", ["half.py", "half", "./half.py", "link.py"])
def test_a_file_imported_twice_is_imported_once(write, second):
    path = write()
    (path.parent / "link.py").symlink_to(path)
    extensions.load("half.py")
    first = RULES["half"]
    extensions.load(second)
    extensions.ensure(extensions.loaded())
    assert RULES["half"] is first
    assert len(extensions.loaded()) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def half(:", "line 1: invalid syntax"),
        ("import nothing_like_this", "half.py line 1: ModuleNotFoundError: No module named"),
        ("\n1 / 0", "half.py line 2: ZeroDivisionError"),
        ("raise SystemExit(3)", "half.py line 1: SystemExit: 3"),
        (HALF.replace("NAME", "cactus"), "a rule named 'cactus' is registered already"),
        (HALF.replace("@dataclass(frozen=True)\n", ""), "put @dataclass(frozen=True) above it"),
        (HALF.replace("def target", "def other"), "the rule 'NAME' lacks target"),
        (HALF.replace("NAME", "a,b"), "needs a name of letters"),
        ("from theory import register\nregister(3)", "a rule is a class derived from theory.Rule"),
        ("\0", "null bytes"),
    ],
)
def test_whatever_is_wrong_with_a_file_is_told_in_one_line(write, text, told):
    write(text=text, rule="NAME")
    before = set(RULES)
    with pytest.raises(ValueError, match=r"^--import half\.py: ") as caught:
        extensions.load("half.py")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert set(RULES) == before
    assert not extensions.loaded()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nowhere.py", "No such file or directory"),
        ("no/where", "No such file or directory"),
        ("nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("nowhere.at.all", "No module named 'nowhere'"),
        (".", "directory"),
        ("", "directory"),
    ],
)
def test_what_is_not_there_is_told_in_one_line(write, text, told):
    with pytest.raises(ValueError, match=told):
        extensions.load(text)


def test_rules_of_a_failing_file_are_taken_back(write):
    write(text=HALF + "\nraise RuntimeError('late')")
    with pytest.raises(ValueError, match="late"):
        extensions.load("half.py")
    assert "NAME" not in RULES


def test_the_digest_changes_with_the_file_and_with_what_it_imports(write):
    helped = "from helper import SHARE\n" + HALF.replace("0.5", "SHARE", 1)
    found = []
    for share in ("SHARE = 0.5", "SHARE = 0.6"):
        helper = write(name="helper.py", text=share)
        write(text=helped)
        done = _digest_in_a_new_process(helper.parent)
        found.append(done)
        assert done == _digest_in_a_new_process(helper.parent)
    write(text=helped + "\n# a word\n")
    found.append(_digest_in_a_new_process(helper.parent))
    assert len(set(found)) == 3
    assert all(len(digest) == 16 for digest in found)


def _digest_in_a_new_process(folder):
    code = "from sim import extensions as e; e.load('half.py'); print(e.digest())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_file_that_changes_while_it_is_used_is_refused(write):
    write()
    extensions.load("half.py")
    told = extensions.loaded()
    write(text=HALF + "# edited", rule="half")
    with pytest.raises(ValueError, match="has changed since it was imported"):
        extensions.load("half.py")
    extensions._LOADED.clear()
    del RULES["half"]
    for name in [n for n in sys.modules if n.startswith("half_")]:
        del sys.modules[name]
    with pytest.raises(ValueError, match="changed while it was in use"):
        extensions.ensure(pickle.loads(pickle.dumps(told)))


def test_without_imports_there_is_no_digest():
    assert extensions.digest() == ""


def test_the_help_of_a_sweep_lists_the_rule(write):
    path = write()
    status, out, _ = run("sim.sweep", "--import", path, "--help", cwd=path.parent)
    assert status == 0
    assert "synthetic, half" in out


def test_a_sweep_of_two_workers_knows_the_rule_and_runs_an_edited_one_again(write):
    path = write()
    tables = []
    for share in ("0.5", "0.6"):
        write(text=HALF.replace("0.0, 0.5, 1.0", "0.25,").replace("self.share", share))
        command = ("sim.sweep", "--import", "half.py", "--rules", "half", "sps", *SMALL)
        status, _, errors = run(*command, "--out", "out", "--resume", cwd=path.parent)
        assert status == 0, errors
        tables.append(pd.read_parquet(path.parent / "out" / "tradeoff.parquet"))
    accepted = [table.set_index("rule")["acceptance"] for table in tables]
    assert accepted[0]["sps"] == accepted[1]["sps"]
    assert accepted[0]["half"] < accepted[1]["half"]


def test_a_rule_without_values_says_how_to_give_some(write):
    path = write(text=HALF.replace("    values = (0.0, 0.5, 1.0)\n", ""))
    command = ("sim.sweep", "--import", "half.py", "--rules", "half", *SMALL)
    status, _, errors = run(*command, cwd=path.parent)
    assert status == 2
    assert "--values half=0.1,0.5" in errors
    assert errors.count("\n") == 1
    status, _, errors = run(*command, "--values", "half=0.1", "--json", cwd=path.parent)
    assert status == 0, errors


@pytest.mark.parametrize("command", ["sim.sweep", "sim.calibrate"])
def test_an_import_that_fails_is_one_line_and_status_2(write, command):
    path = write(text="1 / 0")
    status, out, errors = run(command, "--import", "half.py", cwd=path.parent)
    assert (status, out) == (2, "")
    told = f"python -m {command}: error: --import half.py: half.py line 1: ZeroDivisionError"
    assert errors.startswith(told)
    assert errors.count("\n") == 1


# --- packages that bring rules --------------------------------------------------------------------


def _installed(folder, name, entry, text):
    """A distribution as pip leaves it: a module and its metadata."""
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[speculative_lab.rules]\n{name} = {entry}\n")


@pytest.mark.parametrize("entry", ["halves", "halves:Half"])
@pytest.mark.parametrize("registered", [True, False])
def test_a_rule_of_an_installed_package_is_known(tmp_path, entry, registered):
    text = HALF.replace("NAME", "half")
    if not registered:
        text = text.replace("@register\n", "") + ("\nregister(Half)" if ":" not in entry else "")
    _installed(tmp_path, "halves", entry, text)
    code = "import theory; print(theory.make_rule('half'), 'half' in theory.RULES)"
    status, out, errors = _python(tmp_path, code)
    assert (status, out, errors) == (0, "Half(share=0.5) True\n", "")
    path = f"{Path(__file__).parents[2]}:{tmp_path}"
    command = ("sim.sweep", "--rules", "half", *SMALL, "--out", "out", "--json")
    status, out, errors = run(*command, cwd=tmp_path, PYTHONPATH=path)
    assert status == 0, errors
    assert json.loads(out)["manifest"]["arguments"]["rules"] == ["half"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit", "SystemExit"),
        (HALF.replace("NAME", "sps"), "ValueError: a rule named 'sps' is registered already"),
        ("Half = 3", "ValueError: a rule is a class derived from theory.Rule, got 3"),
        ("", "AttributeError"),
    ],
)
def test_a_broken_package_is_one_line_of_warning(tmp_path, text, told):
    _installed(tmp_path, "halves", "halves:Half", text)
    status, out, errors = _python(tmp_path, "import theory; print(len(theory.RULES))")
    assert (status, out) == (0, f"{len(RULES)}\n")
    assert errors.count("\n") == 1
    assert f"the rule 'halves' (halves:Half) of halves is left out: {told}" in errors


def test_packages_are_asked_only_when_rules_are_looked_up(tmp_path):
    _installed(tmp_path, "halves", "halves", "print('loaded')")
    assert _python(tmp_path, "import theory; theory.make_rule('sps')")[1] == ""
    assert _python(tmp_path, "import theory; list(theory.RULES)")[1] == "loaded\n"


def _python(folder, code):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{Path(__file__).parents[2]}:{folder}"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_no_package_of_this_environment_brings_rules():
    """Otherwise the tests above would count them."""
    assert not importlib.metadata.entry_points(group="speculative_lab.rules")


# --- the parameter that is varied -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ("share: float = 0.5", "share"),
        ("kind: str = 'a'\n    share: float = 0.5", "share"),
        ("count: int = 1", None),
        ("share: 'float | None' = 0.5", "share"),
        ("share: float | None = 0.5", "share"),
        ("one: float = 1\n    two: float = 2\n    parameter = 'two'", "two"),
        ("share: float = 0.5\n    parameter = None", None),
    ],
)
def test_the_parameter_is_the_first_float_where_none_is_named(write, fields, parameter):
    write(text=HALF.replace("share: float = 0.5", fields))
    extensions.load("half.py")
    assert RULES["half"].parameter == parameter


# --- rules that emit no distribution --------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("return 1.5 * pair.q", "the sum of the output must be 1, got 1.5"),
        ("return 2 * pair.p - pair.q", "the output must be in [0, 1], got -0.2"),
        ("return 1 / 0", "ZeroDivisionError: division by zero"),
        ("return pair.q * float('nan')", "nan"),
        ("return pair.q / 0.0", "nan"),
        ("return pair.nothing", "AttributeError"),
        ("return None", "TypeError"),
    ],
)
def test_a_rule_that_emits_no_distribution_is_refused_before_any_work(write, code, told):
    write(text=HALF.replace("return (1 - self.share) * pair.q + self.share * pair.p", code))
    extensions.load("half.py")
    with pytest.raises(ValueError, match="rule 'half': Half") as caught:
        settings(["half"])
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", ["kl=100", "kl=1e-9", "acceptance=0.1", "acceptance=1"])
def test_a_calibration_stays_where_the_rule_emits_distributions(write, target):
    write()
    extensions.load("half.py")
    (source,) = make_sources(parse_families(["zipf"]), [64], 4, 0)
    pairs = [(pair, range(4)) for pair in prepared_batches(source)]
    corpus, asked = Corpus("zipf", "", 64, pairs), Target.parse(target)
    (choice,) = calibrate(lambda tried: corpus.points(tried, asked.measure), ["half"], asked)
    assert 0 <= choice.setting.value <= 1


@pytest.mark.parametrize("name", sorted(RULES))
def test_the_rules_of_the_laboratory_pass_the_same_trial(name, monkeypatch):
    monkeypatch.setattr(RULES[name], "__module__", "elsewhere")
    assert settings([name])

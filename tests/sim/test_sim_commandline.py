"""What command lines share: names given once, numbers of any size, outputs that cannot print."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import theory
from sim import calibrate, sweep
from sim.checks import read_number, shortest
from sim.commandline import Parser, parse_rules, parse_values
from theory.terminal.printing import Output

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--pairs", "zipf", "--vocab", "16", "--rows", "3", "--rules", "sps", "lenience")
HUGE = "9" * 400


@pytest.mark.parametrize("main", [sweep.main, calibrate.main])
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--vocab", "64", "64"], "vocab: 64 was given twice"),
        (["--pairs", "zipf", "zipf:noise=0.7"], "was given twice"),
        (["--pairs", "zipf:noise=1,noise=2"], "noise was given twice"),
        (["--rules", "sps", "sps"], "--rules: sps was given twice"),
        (["--rules", "sps,lenience,sps"], "--rules: sps was given twice"),
        (["--values", "0.1", "0.10"], "--values: 0.1 was given twice"),
        (["--values", "lenience=0.1,1e-1"], "--values: 0.1 was given twice"),
    ],
)
def test_what_is_given_twice_is_refused(main, arguments, told, capsys, tmp_path):
    assert main([*SMALL, "--out", str(tmp_path / "out"), *arguments]) == 2
    errors = capsys.readouterr().err
    assert told in errors
    assert errors.count("\n") == 1


def test_names_and_values_given_once_keep_their_order():
    assert parse_rules(["sps,cactus", "lenience"]) == ["sps", "cactus", "lenience"]
    assert parse_values(["0.3,0.1", "cactus=0.1"], ["sps"]) == {"sps": [0.3, 0.1], "cactus": [0.1]}


@pytest.mark.parametrize("main", [sweep.main, calibrate.main])
@pytest.mark.parametrize(
    "arguments",
    [
        *(["--rows", value] for value in (HUGE, "1e400", "-" + HUGE, "nan", "0", str(2**31))),
        *(["--vocab", value] for value in (HUGE, "1e400", "-" + HUGE, "0", "9" * 5000)),
        *(["--seed", value] for value in (HUGE, "-1", "1e400")),
        *(["--values", value] for value in ("lenience=1e999", f"lenience={HUGE}", "nan")),
        ["--pairs", f"zipf:noise={HUGE}"],
        ["--pairs", f"filtered:top_k={HUGE}"],
        ["--pairs", "zipf:noise=1e999"],
    ],
)
def test_numbers_of_any_size_cost_one_line_and_status_2(main, arguments, capsys, tmp_path):
    try:
        status = main([*SMALL, "--out", str(tmp_path / "out"), *arguments])
    except SystemExit as end:
        status = end.code
    errors = capsys.readouterr().err
    assert status == 2
    assert errors.startswith("python -m sim.")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("jobs", [HUGE, "-" + HUGE, "100000", "0"])
def test_more_processes_than_there_can_be_cost_one_line_and_status_2(jobs, capsys, tmp_path):
    assert sweep.main([*SMALL, "--jobs", jobs, "--out", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert "--jobs must be" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("main", [sweep.main, calibrate.main])
def test_the_version_is_told(main, capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"speculative-lab {theory.__version__}\n"


def test_rules_may_be_asked_for_by_either_name_of_the_option(capsys, tmp_path):
    told = []
    for option in ("--rules", "--rule"):
        arguments = [*SMALL[:-3], option, "sps", "lenience", "--out", str(tmp_path / option)]
        assert calibrate.main(arguments) == 0
        told.append(capsys.readouterr().out.replace(option + "/", ""))
    assert "lenience" in told[0]
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("number", "text"),
    [(2.0, "2"), (0.6, "0.6"), (0.60000012, "0.60000012"), (1e-308, "1e-308"), (7, "7")],
)
def test_the_shortest_text_of_a_number(number, text):
    assert shortest(number) == text
    assert float(text) == number


# --- outputs --------------------------------------------------------------------------------------

COMMANDS = ["sim.sweep", "sim.calibrate", "theory.validate"]
ARGUMENTS = {"theory.validate": ("1",)}
ENCODINGS = [
    {"PYTHONIOENCODING": "cp1252"},
    {"PYTHONIOENCODING": "latin-1"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "ascii:strict"},
    {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
]


def run(module, *arguments, cwd, stdout=subprocess.PIPE, **environment):
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
    )


def arguments_of(module):
    jobs = ("--jobs", "1") if module == "sim.sweep" else ()
    return ARGUMENTS.get(module, (*SMALL, *jobs, "--out", "out"))


@pytest.mark.parametrize("module", COMMANDS)
@pytest.mark.parametrize("argument", ["--nothing", "--import"])
def test_arguments_that_do_not_parse_are_one_line(module, argument, tmp_path):
    done = run(module, argument, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(f"python -m {module}: error: ".encode())
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("module", COMMANDS)
@pytest.mark.parametrize("environment", ENCODINGS[::2], ids=str)
def test_results_are_printed_in_every_encoding(module, environment, tmp_path):
    done = run(module, *arguments_of(module), cwd=tmp_path, **environment)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr.decode()
    assert len(done.stdout) > 50


@pytest.mark.parametrize("module", COMMANDS)
@pytest.mark.parametrize("environment", ENCODINGS[1::2], ids=str)
def test_help_is_printed_in_every_encoding(module, environment, tmp_path):
    done = run(module, "--help", cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(f"usage: python -m {module}".encode())


def test_json_in_a_poor_encoding_is_the_same_document(tmp_path):
    text = "≤ é 𝄞 \udcff ∑"
    code = (
        "import json; from theory.terminal.printing import escape_unprintable as start; start();"
        f"print(json.dumps([{text!r}], ensure_ascii=False))"
    )
    for encoding in ("ascii", "latin-1", "cp1252", "utf-8"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding},
            capture_output=True,
            check=True,
        )
        assert json.loads(done.stdout.decode(encoding)) == [text]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("module", COMMANDS)
def test_results_that_cannot_be_printed_are_written_and_the_status_says_so(module, tmp_path):
    with open("/dev/full", "w") as full:
        done = run(module, *arguments_of(module), cwd=tmp_path, stdout=full)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"could be printed: [Errno 28] No space left on device" in done.stderr
    if module != "theory.validate":
        assert (tmp_path / "out" / "manifest.json").is_file()


@pytest.mark.parametrize("module", COMMANDS)
def test_a_closed_standard_output_loses_nothing(module, tmp_path):
    command = " ".join([sys.executable, "-m", module, *arguments_of(module), ">&-"])
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        check=False,
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (1, False), done.stderr.decode()
    assert b"could be printed: standard output is closed" in done.stderr


class Failing(io.StringIO):
    """A stream on a full disk."""

    def write(self, text):
        raise OSError(28, "No space left on device")

    def fileno(self):
        return os.open(os.devnull, os.O_WRONLY)


def test_after_a_failure_nothing_more_is_written():
    output = Output(Failing())
    assert output.write("one") == 3
    output.write("two")
    output.flush()
    assert output.error.errno == 28


# --- interruptions while modules are imported -----------------------------------------------------


@pytest.mark.parametrize("module", COMMANDS)
@pytest.mark.parametrize("after", ["numpy", "scipy"])
def test_an_interruption_during_the_imports_is_one_line(module, after, tmp_path):
    """The module imported first is made to send the signal that Ctrl-C sends."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {after!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", module],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == f"python -m {module}: error: interrupted\n"


def test_a_library_leaves_the_keyboard_alone():
    code = "import signal, theory, sim.sweep; print(signal.getsignal(signal.SIGINT).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{signal.default_int_handler.__name__}\n"


@pytest.mark.parametrize("text", ["inf", "Infinity", "0", "-0.0", "0e99", "1e-300", "9" * 300])
def test_numbers_are_read_as_they_stand(text):
    assert read_number("value", text) == float(text)


@pytest.mark.parametrize("text", ["1e400", "-1e400", "9" * 400, "1e-400", " 1e-400 "])
def test_a_text_never_becomes_infinite_or_zero_by_rounding(text):
    with pytest.raises(ValueError, match=r"value: .* is beyond the numbers of float64"):
        read_number("value", text)


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_name_is_no_folder(text, capsys):
    parser = Parser("sim.sweep")
    parser.add_argument("--out", type=Path)
    with pytest.raises(SystemExit):
        parser.parse_args(["--out", text])
    assert f"argument --out: expected a name, got {text!r}" in capsys.readouterr().err

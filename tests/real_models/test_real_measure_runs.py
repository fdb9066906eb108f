"""Measuring a trace: no batching, device or interruption shows; files, output and mistakes."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pandas as pd
import pytest
import torch
from endings import ended_and_resumed, result_bytes
from measured_traces import LABELS, PROMPTS, SMALL, TABLES, parts_of, record, table_bytes, tables

from real_models import measure as module
from real_models.errors import UserError
from real_models.measure import main
from real_models.measuring import parts
from real_models.options.recording import parse_bytes
from real_models.traces.reader import open_trace
from theory import Pair, make_rule


@pytest.mark.usefixtures("tables_only")
@pytest.mark.parametrize("size", ["1", "20KiB", "1MiB"])
def test_the_memory_limit_does_not_show(finished, trace, tmp_path, size, monkeypatch):
    rows = []
    prepare = Pair.prepare
    monkeypatch.setattr(
        parts.Pair, "prepare", lambda **arrays: rows.append(len(arrays["p"])) or prepare(**arrays)
    )
    command = [str(trace), *SMALL, "--memory-limit", size, "--out", str(tmp_path)]
    assert main(command) == 0
    assert max(rows) == {"1": 1, "20KiB": 4, "1MiB": 6}[size]
    for one, other in zip(tables(finished).values(), tables(tmp_path).values()):
        pd.testing.assert_frame_equal(one, other, rtol=1e-12, atol=1e-12)


PEAK = """
import re, sys
from pathlib import Path
from real_models.measuring import parts
from real_models.laws.distributions import SamplingSettings
from real_models.traces.reader import open_trace
from sim.tables.grid import settings

def measure(folder, limit):
    resources = parts.Resources("cpu", limit)
    samplings = [SamplingSettings.parse("T=0.7 top-p 0.9"), SamplingSettings(greedy_draft=True)]
    chosen = settings(["sps", "cactus"], {"cactus": [0.1]})
    for part in parts.make_parts(open_trace(folder), samplings, chosen, resources).values():
        parts.measure_part(*part)
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])

small, large, limit = *map(Path, sys.argv[1:3]), int(sys.argv[3])
before = measure(small, limit)
print(measure(large, limit) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_the_memory_limit_bounds_the_memory(tmp_path):
    """Of 300 positions, which take four times the limit where it allows them at once."""
    wide = {"vocabulary": 6000, "logit_widths": {"draft": 6000, "verifier": 6000}}
    folders = [
        record(tmp_path / str(rows), [("a", "prose", rows)], positions=rows, **wide)
        for rows in (1, 300)
    ]

    recorded = sum(path.stat().st_size for path in folders[1].iterdir())  # mapped, and read once

    def grown(limit):
        command = [sys.executable, "-c", PEAK, *map(str, folders), str(limit)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(done.stdout) - recorded

    limit = 32 << 20
    found = grown(limit), grown(1 << 30)
    assert found[0] < limit < 2 * limit < found[1], found


@pytest.mark.usefixtures("tables_only")
def test_torch_rows_give_the_same_table(finished, trace, tmp_path, monkeypatch):
    kinds = set()
    prepare = Pair.prepare
    monkeypatch.setattr(parts, "native", lambda rows: rows)
    monkeypatch.setattr(
        parts.Pair, "prepare", lambda **arrays: kinds.add(type(arrays["q"])) or prepare(**arrays)
    )
    assert main([str(trace), *SMALL, "--out", str(tmp_path)]) == 0
    assert kinds == {torch.Tensor}
    for one, other in zip(tables(finished).values(), tables(tmp_path).values()):
        pd.testing.assert_frame_equal(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("tables_only")
@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_agrees(trace, tmp_path):
    """Every rule at every default value, with and without filters and with a greedy draft."""
    for device in ("cpu", "cuda"):
        command = [str(trace), "--settings", *LABELS, "--device", device, "--jobs", "1"]
        assert main([*command, "--out", str(tmp_path / device)]) == 0
    for one, other in zip(*(tables(tmp_path / device).values() for device in ("cpu", "cuda"))):
        pd.testing.assert_frame_equal(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("tables_only")
def test_two_processes_give_the_same_bytes(finished, trace, tmp_path):
    assert main([str(trace), *SMALL[:-1], "2", "--out", str(tmp_path)]) == 0
    assert table_bytes(tmp_path) == table_bytes(finished)


def interrupt_after(count, end):
    """A measure_part that does `end` instead of its part number `count`."""
    calls = []

    def interrupted(part, chosen):
        calls.append(part)
        return end() if len(calls) > count else parts.measure_part(part, chosen)

    return interrupted


@pytest.mark.usefixtures("tables_only")
def test_an_interruption_keeps_what_was_finished(finished, trace, tmp_path, monkeypatch, capsys):
    def stop():
        raise KeyboardInterrupt

    command = [str(trace), *SMALL, "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(module, "measure_part", interrupt_after(3, stop))
        assert main(command) == 130
    captured = capsys.readouterr()
    started, ended = captured.err.splitlines()
    assert started == "measure: 12 cells"
    assert ended.endswith("interrupted; --resume continues with the finished cells")
    assert captured.out == ""
    assert not (tmp_path / "manifest.json").exists()
    kept = parts_of(tmp_path)
    assert len(kept) == 3
    assert main([*command, "--resume", "--memory-limit", "64MiB"]) == 0
    assert table_bytes(tmp_path) == table_bytes(finished)
    assert kept.items() <= parts_of(tmp_path).items()
    # Without --resume everything is measured again.
    assert main(command) == 0
    assert kept.keys() <= parts_of(tmp_path).keys()
    assert not kept.items() & parts_of(tmp_path).items()


KILLED = """
import os, signal, sys
import pandas as pd
from real_models.measure import main

calls = 0
whole = pd.DataFrame.to_parquet

def to_parquet(frame, path, **options):
    global calls
    calls += 1
    if calls == int(sys.argv[1]):
        (path.write_bytes if hasattr(path, "write_bytes") else path.write)(b"half a file")
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(frame, path, **options)

pd.DataFrame.to_parquet = to_parquet
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("write", "parts_kept"),
    [(3 * 4 + 2, 4), (3 * len(LABELS) * len(PROMPTS) + 2, len(LABELS) * len(PROMPTS))],
    ids=["in the second frame of the fifth part", "in the second table of the results"],
)
def test_kill_and_resume_is_byte_identical(finished, trace, tmp_path, write, parts_kept):
    command = [str(trace), *SMALL, "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", KILLED, str(write), *command], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "manifest.json").exists()
    kept = parts_of(tmp_path)
    assert len(kept) == parts_kept
    assert main([*command, "--resume"]) == 0
    assert result_bytes(tmp_path) == result_bytes(finished)
    assert kept.items() <= parts_of(tmp_path).items()


@pytest.mark.parametrize(
    ("times", "seed"), [(2, 0), pytest.param(10, 1, marks=pytest.mark.nightly)]
)
def test_a_measurement_resumed_after_many_ends_has_the_same_bytes(
    finished, trace, tmp_path, times, seed
):
    command = ["real_models.measure", str(trace), *SMALL[:-1], "2", "--out", str(tmp_path)]
    ended_and_resumed(command, tmp_path, times=times, longest=9.0, seed=seed)
    assert result_bytes(tmp_path) == result_bytes(finished)


@pytest.mark.usefixtures("tables_only")
def test_parts_of_another_recording_are_not_mixed_in(trace, tmp_path, capsys):
    out = tmp_path / "out"
    command = [*SMALL, "--out", str(out)]
    assert main([str(trace), *command]) == 0
    before = parts_of(out)
    other = record(tmp_path / "other", seed=1, prompts_sha256="22")
    assert main([str(other), *command, "--resume"]) == 2
    error = capsys.readouterr().err
    assert f"{out} holds parts of another recording" in error
    assert error.count("error:") == 1
    assert parts_of(out) == before
    assert main([str(other), *command]) == 0
    assert not before.keys() & parts_of(out).keys()


@pytest.mark.usefixtures("tables_only")
def test_same_header_but_other_logits_are_measured_again(finished, trace, tmp_path):
    """As after a prompt was lost and recorded again by other code."""
    other = record(tmp_path / "other", seed=1)
    out = tmp_path / "out"
    assert main([str(trace), *SMALL, "--out", str(out)]) == 0
    assert main([str(other), *SMALL, "--out", str(out), "--resume"]) == 0
    assert len(parts_of(out)) == 2 * len(LABELS) * len(PROMPTS)
    fresh = tmp_path / "fresh"
    assert main([str(other), *SMALL, "--out", str(fresh)]) == 0
    assert table_bytes(out) == table_bytes(fresh)
    assert table_bytes(out) != table_bytes(finished)


@pytest.mark.usefixtures("tables_only")
def test_a_trace_that_grew_keeps_its_finished_parts(finished, tmp_path, capsys):
    folder, out = tmp_path / "trace", tmp_path / "out"
    record(folder, PROMPTS[:2])
    assert main([str(folder), *SMALL, "--out", str(out)]) == 0
    assert "not finished: 4 prompts were asked for" in capsys.readouterr().out
    kept = parts_of(out)
    record(folder)
    assert main([str(folder), *SMALL, "--out", str(out), "--resume"]) == 0
    assert "not finished" not in capsys.readouterr().out
    assert kept.items() <= parts_of(out).items()
    assert table_bytes(out) == table_bytes(finished)


def test_an_altered_trace_is_refused(tmp_path, capsys):
    folder = record(tmp_path / "trace")
    path = folder / "chunk-00002.draft.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert main([str(folder), *SMALL, "--out", str(tmp_path / "out")]) == 2
    assert "chunk 2 (chunk-00002.draft.npy) has been altered" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_files_report_and_manifest(finished, trace):
    names = {path.name for path in finished.glob("[!.]*") if path.is_file()}
    assert names == {
        *(f"{name}.parquet" for name in TABLES),
        *("tradeoff.png", "amplification.png", "report.html", "manifest.json"),
    }
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["command"] == "real_models.measure"
    assert manifest["arguments"]["settings"] == LABELS
    assert manifest["trace"]["positions"] == 15
    assert manifest["trace"]["sha256"] == parts.trace_digest(open_trace(trace))
    assert {"numpy", "torch", "transformers"} <= set(manifest["versions"])
    report = (finished / "report.html").read_text(encoding="utf-8")
    assert report.count("data:image/png;base64,") == 2
    assert LABELS[1] in report


def test_json_is_one_document_on_standard_output(finished, trace, tmp_path):
    lone = record(tmp_path / "lone", PROMPTS[:1])
    command = [sys.executable, "-W", "error", "-m", "real_models.measure", str(lone), *SMALL]
    result = subprocess.run(
        [*command, "--json", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    document = json.loads(result.stdout, parse_constant=pytest.fail)
    assert result.stderr.endswith("measure: 3 cells\n")
    assert set(document) == {"files", "headlines", "summary", "manifest"}
    assert [facts["pair"] for facts in document["headlines"]] == LABELS
    strict = document["headlines"][0]["sps"]
    assert 0 < strict["acceptance"] < 1
    assert strict["acceptance_se"] is None  # of a single prompt
    assert strict["kl_output_verifier"] == pytest.approx(0, abs=1e-9)
    for entry in document["summary"]:
        missing = entry["acceptance"] is None
        assert missing or entry["acceptance"] <= entry["best_acceptance"] + 1e-6
    assert all(os.path.exists(path) for path in document["files"].values())
    assert {"groups.parquet", "quantiles.parquet", "tradeoff.parquet"} <= set(document["files"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rules", "cactos"], "unknown rule 'cactos'; did you mean 'cactus'?"),
        (["--rules", "cactus", "--values", "-1"], "--values: rule 'cactus': delta must lie in"),
        (
            ["--values", "cactus=-1"],
            "--values: rule 'cactus': delta must lie in [0, inf], got -1.0",
        ),
        (["--values", "top_k=1.5"], "--values: rule 'top_k': k must be a whole number"),
        (["--values", "cactus=x"], "--values 'cactus=x': expected a number, got 'x'"),
        (["--rules", "sps", "--values", "cactus=1"], "--values: values were given for the rule"),
        (["--settings", "T=1 top-x 3"], "sampling settings 'T=1 top-x 3' are not like"),
        (["--settings", "T=-1"], "temperature must be finite and ≥ 0, got -1.0"),
        (["--settings", "T=1", "T=1.0"], "--settings: a sampling setting was given twice"),
        (["--device", "gpu"], "device must be auto, cpu, cuda or cuda:i, got 'gpu'"),
        (["--memory-limit", "lots"], "--memory-limit 'lots' is not a size like 512MiB or 2GiB"),
        (["--jobs", "0"], "--jobs must be 1 to 1024"),
        (["--backend", "lokey"], "unknown backend 'lokey'; did you mean 'loky'?"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_mistakes_cost_one_line_and_status_two(trace, arguments, message, tmp_path, capsys):
    out = tmp_path / "none"
    status = None
    with suppress(SystemExit):
        status = main([str(trace), "--out", str(out), *arguments])
    captured = capsys.readouterr()
    assert status in (2, None)
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not out.exists()


def test_a_folder_that_is_no_trace_is_a_mistake(tmp_path, capsys):
    assert main([str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    assert "is no trace" in capsys.readouterr().err
    empty = record(tmp_path / "empty", [])
    assert main([str(empty), "--out", str(tmp_path / "out")]) == 2
    assert "holds no finished prompt yet" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_sizes():
    sizes = {"1": 1, "512 MiB": 512 << 20, "1.5GiB": 3 << 29, "20kib": 20 << 10, "7B": 7}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    for text in ("0", "-1", "1.5.2", "2GB", "1e9", "", "MiB"):
        with pytest.raises(UserError, match="--memory-limit"):
            parse_bytes(text)


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert 'python -m real_models.measure traces/smollm2-skip3 --settings "T=1"' in text
    assert make_rule("sps").name in text

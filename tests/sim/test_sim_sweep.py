"""The command line: what it writes, that nothing depends on how the work was spread, its errors."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config

from sim.jobs.engine import backend_context, run_cells
from sim.sweep import main
from sim.tables.tradeoff import COLUMNS

SMALL = [
    *("--pairs", "zipf:noise=0.5", "disjoint", "amplification", "--vocab", "32"),
    *("--rules", "sps", "lenience", "cactus", "cactus_target_only", "typical"),
    *("--values", "0.5", "cactus=0.001,0.1,1", "--rows", "6", "--jobs", "1"),
]
FILES = {
    "tradeoff.parquet",
    "frontier.parquet",
    "tradeoff.png",
    "amplification.png",
    "report.html",
    "manifest.json",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep")
    assert main([*SMALL, "--out", str(out)]) == 0
    return out


def tables(out):
    return [pd.read_parquet(out / f"{name}.parquet") for name in ("tradeoff", "frontier")]


def assert_same_tables(first, second):
    for one, other in zip(tables(first), tables(second)):
        pd.testing.assert_frame_equal(one, other, rtol=0, atol=0)


def test_files_and_table(finished):
    assert {path.name for path in finished.glob("[!.]*") if path.is_file()} == FILES
    table, frontier = tables(finished)
    assert tuple(table.columns) == COLUMNS
    assert len(table) == 3 * (1 + 1 + 3 + 1 + 1)
    assert not table.isna().any(axis=None)
    assert set(frontier["source"]) == {"zipf", "disjoint", "amplification"}
    assert table["frontier_gap"].min() > -1e-7
    for name in ("tradeoff.png", "amplification.png"):
        data = (finished / name).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert len(data) > 20_000


def test_amplification_shows_what_the_budget_does_not_bound(finished):
    table, _ = tables(finished)
    rows = table[(table["source"] == "amplification") & (table["rule"] == "cactus")]
    np.testing.assert_allclose(rows["kl_output_verifier"].iloc[1:], np.log(2), rtol=1e-9)
    assert rows["value"].iloc[1] == 0.1
    coupled = table[(table["rule"] == "cactus_target_only")]
    assert (coupled["kl_output_verifier"] <= np.log1p(2 * coupled["value"])).all()


def test_manifest(finished):
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["seed"] == 0
    assert manifest["arguments"]["rows"] == 6
    assert manifest["arguments"]["values"] == ["0.5", "cactus=0.001,0.1,1"]
    assert manifest["wall_seconds"] > 0
    assert len(manifest["code"]) == 16
    assert {"python", "numpy", "pandas"} <= set(manifest["versions"])


def test_report_is_self_contained(finished):
    text = (finished / "report.html").read_text(encoding="utf-8")
    for forbidden in ("http:", "https:", "<link", 'src="/', "@import", "url("):
        assert forbidden not in text
    assert text.count("data:image/png;base64,") == 2
    assert text.count("<tr>") == 1 + 6 + 1 + 21  # summary and table, a header each
    assert "cactus_target_only" in text
    assert "addEventListener" in text


def test_result_does_not_depend_on_the_workers(finished, tmp_path):
    again = [*SMALL[:-1], "2", "--out", str(tmp_path / "loky")]
    assert main(again) == 0
    assert_same_tables(finished, tmp_path / "loky")
    threads = [*again[:-1], str(tmp_path / "threads"), "--backend", "threading"]
    assert main(threads) == 0
    assert_same_tables(finished, tmp_path / "threads")


def test_another_seed_gives_other_rows(finished, tmp_path):
    assert main([*SMALL, "--seed", "1", "--out", str(tmp_path)]) == 0
    assert not np.allclose(tables(finished)[0]["acceptance"], tables(tmp_path)[0]["acceptance"])


def test_resume_equals_uninterrupted(finished, tmp_path, monkeypatch):
    import sim.sweep

    def interrupted(source, settings, with_frontier):
        if source.family.name == "disjoint":
            raise KeyboardInterrupt
        return run(source, settings, with_frontier)

    run = sim.sweep.run_cell
    monkeypatch.setattr(sim.sweep, "run_cell", interrupted)
    arguments = [*SMALL, "--out", str(tmp_path)]
    assert main(arguments) == 130
    assert not (tmp_path / "manifest.json").exists()
    kept = sorted(path.name for path in (tmp_path / ".cells").iterdir())
    assert len(kept) == 4  # the kinds of rule on the first source
    stamps = {name: (tmp_path / ".cells" / name).stat().st_mtime_ns for name in kept}
    monkeypatch.setattr(sim.sweep, "run_cell", run)
    assert main([*arguments, "--resume"]) == 0
    assert_same_tables(finished, tmp_path)
    for name, stamp in stamps.items():
        assert (tmp_path / ".cells" / name).stat().st_mtime_ns == stamp


def count_calls(number):
    return {
        "table": pd.DataFrame({"number": [number], "again": [np.random.default_rng().random()]})
    }


def test_cells_are_reused_only_where_nothing_they_depend_on_changed(tmp_path):
    cells = {"a": (1,), "b": (2,)}
    first = run_cells(count_calls, cells, tmp_path)["table"]
    same = run_cells(count_calls, cells, tmp_path, resume=True)["table"]
    pd.testing.assert_frame_equal(first, same)
    other = run_cells(count_calls, {"a": (1,), "b": (3,)}, tmp_path, resume=True)["table"]
    assert other["number"].tolist() == [1, 3]
    assert other["again"].iloc[0] == first["again"].iloc[0]
    new = run_cells(count_calls, cells, tmp_path, resume=True, stamp="2.0")["table"]
    assert new["again"].iloc[0] != first["again"].iloc[0]
    fresh = run_cells(count_calls, cells, tmp_path)["table"]
    assert fresh["again"].iloc[0] != first["again"].iloc[0]


def test_a_half_written_cell_is_not_taken_for_a_whole_one(tmp_path):
    run_cells(count_calls, {"a": (1,)}, tmp_path)
    (place,) = tmp_path.iterdir()
    shutil.move(place, place.with_name(f"{place.name}.123.part"))
    again = run_cells(count_calls, {"a": (1,)}, tmp_path, resume=True)["table"]
    assert again["number"].tolist() == [1]
    assert place.is_dir()


def test_cells_keep_their_order_on_backends_without_generators(tmp_path):
    cells = {str(number): (number,) for number in range(5)}
    with parallel_config(backend="multiprocessing"):
        table = run_cells(count_calls, cells, tmp_path, jobs=1)["table"]
    assert table["number"].tolist() == list(range(5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pairs", "zipff"], "unknown family 'zipff'; did you mean 'zipf'?"),
        (["--pairs", "zipf:noize=1"], "'noize'; did you mean 'noise'?"),
        (["--pairs", "zipf:noise"], "expected PARAMETER=VALUE, got 'noise'"),
        (["--pairs", "zipf:noise=a"], "expected a number, got 'a'"),
        (["--pairs", "zipf:noise=1e-400"], "1e-400 is beyond the numbers of float64"),
        (["--pairs", "zipf:noise=-1"], "noise must lie in [0, inf), got -1.0"),
        (["--pairs", "zipf,zipf"], "was given twice"),
        (["--rules", "cactos"], "unknown rule 'cactos'; did you mean 'cactus'?"),
        (["--rules", "sps", "--values", "cactus=1"], "'cactus', which is not swept"),
        (["--rules", "cactus", "--values", "-0.5"], "delta must lie in"),
        (["--rules", "cactus", "--values", "x"], "expected a number, got 'x'"),
        (["--rules", "cactus", "--values", "9" * 400], "(400 characters) is beyond the numbers"),
        (["--rows", "0"], "--rows must be an integer of at least 1, got 0"),
        (["--rows", "many"], "argument --rows: invalid int value: 'many'"),
        (["--vocab", "4097"], "vocab must be even for the family 'amplification', got 4097"),
        (["--vocab", "0"], "vocab must be an integer of at least 1"),
        (["--seed", "-1"], "--seed must be an integer of at least 0, got -1"),
        (["--jobs", "0"], "--jobs must be 1 to 1024"),
        (["--backend", "lokey"], "unknown backend 'lokey'; did you mean 'loky'?"),
        (["--scheduler", "tcp://here:1"], "--scheduler is for the backend 'dask'"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_mistakes_cost_one_line_and_status_two(arguments, message, tmp_path, capsys):
    out = tmp_path / "none"
    try:
        status = main([*arguments, "--out", str(out)])
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    assert status == 2
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not out.exists()


def test_a_file_in_the_way_is_a_mistake_too(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main([*SMALL, "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_dask_is_asked_for_by_name(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs the package distributed"), backend_context("dask"):
        pass


def test_json_is_one_document_on_standard_output(tmp_path):
    command = [sys.executable, "-W", "error", "-m", "sim.sweep", *SMALL, "--json"]
    result = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, check=True
    )
    document = json.loads(result.stdout)
    assert set(document) == {"files", "summary", "manifest"}
    assert set(document["files"]) == FILES
    summary = {(entry["panel"], entry["rule"]): entry for entry in document["summary"]}
    best, cactus, strict = (summary["zipf", rule] for rule in ("best possible", "cactus", "sps"))
    assert best["acceptance"] >= cactus["acceptance"] > strict["acceptance"]
    # Beside each acceptance stands its divergence, and the most that is possible there.
    assert [entry["kl_output_verifier"] for entry in (best, strict)] == [0.1, 0.0]
    assert (cactus["status"], strict["status"]) == ("measured", "nearer")  # it accepts all
    for entry in document["summary"]:
        missing = entry["acceptance"] is None
        assert missing == (entry["status"] in ("farther", "mixed"))
        assert missing or entry["acceptance"] <= entry["best_acceptance"] + 1e-9
        assert missing or 0 <= entry["kl_output_verifier"] <= 0.1 + 1e-9
    assert result.stderr == "sweep: 12 cells\n"


def test_text_output_names_every_file(tmp_path, capsys):
    few = ["--pairs", "zipf", "--vocab", "32", "--rules", "sps", "--rows", "2", "--jobs", "1"]
    assert main([*few, "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for name in FILES - {"amplification.png"}:
        assert str(tmp_path / name) in text
    assert not (tmp_path / "amplification.png").exists()
    assert "best possible" in text


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "python -m sim.sweep --pairs zipf:exponent=1.2,noise=0.5" in capsys.readouterr().out

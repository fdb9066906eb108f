"""Measuring a trace: the numbers, their errors, and that no interruption or batching shows."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import torch

from real_models import measure as module
from real_models import parts
from real_models.distributions import SamplingSettings
from real_models.errors import UserError
from real_models.measure import DEFAULT_SETTINGS, main, parse_bytes
from real_models.stored import frontier_from_frame, frontier_to_frame
from real_models.tables import QUANTILES
from real_models.trace import open_trace
from real_models.trace_format import TraceHeader
from real_models.trace_writer import TraceWriter
from sim.grid import settings
from sim.tradeoff import COLUMNS, MEASURES
from theory import RULES, CorpusFrontier, Pair, make_rule, one_step, optimal_gamma

V = 24
PROMPTS = [("a", "prose", 5), ("b", "code", 3), ("c", "prose", 6), ("d", "code", 1)]
LABELS = ["T=1", "T=0.6 top-p 0.95 top-k 20", "T=1 greedy-draft"]
TABLES = ("tradeoff", "frontier", "groups", "quantiles")
FEW = ["--rules", "sps", "cactus", "cascade_token_v1", "typical", "mentored"]
VALUES = ["--values", "0.3", "cactus=0.01,0.5"]
SMALL = [*FEW, *VALUES, "--settings", *LABELS, "--device", "cpu", "--jobs", "1"]


def record(folder, prompts=PROMPTS, seed=0, **changes):
    """A trace of random logits; one of them is a mask."""
    header = {
        "pair": "tiny",
        "verifier": "v",
        "verifier_revision": "1",
        "draft": "d",
        "draft_revision": "2",
        "tokenizer_hash": "00",
        "contexts": "given",
        "sampling": None,
        "seed": 0,
        "positions": 6,
        "prompts": len(PROMPTS),
        "prompts_sha256": "11",
        "vocabulary": V,
        "logit_widths": {"draft": V, "verifier": V},
        "end_tokens": [0],
    }
    writer = TraceWriter(folder, TraceHeader(**(header | changes)))
    width = writer.header.vocabulary
    for chunk, (name, domain, rows) in enumerate(prompts):
        if writer.finished(chunk) is None:
            random = torch.Generator().manual_seed(100 * seed + chunk)
            verifier = 2 * torch.randn(rows, width, generator=random)
            draft = verifier + torch.randn(rows, width, generator=random)
            draft[0, chunk] = -torch.inf
            writer.append(chunk, name, domain, np.arange(rows + 2), draft, verifier)
    return folder


def tables(out):
    return {name: pd.read_parquet(out / f"{name}.parquet") for name in TABLES}


def table_bytes(out):
    return {name: (out / f"{name}.parquet").read_bytes() for name in TABLES}


def parts_of(out):
    """The finished parts, each with the time at which it was written."""
    folders = [path for path in (out / ".cells").iterdir() if path.is_dir()]
    return {path.name: path.stat().st_mtime_ns for path in folders if path.suffix != ".part"}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return record(tmp_path_factory.mktemp("trace"))


@pytest.fixture(scope="module")
def finished(trace, tmp_path_factory):
    out = tmp_path_factory.mktemp("measured")
    assert main([str(trace), *SMALL, "--out", str(out)]) == 0
    return out


@pytest.fixture
def tables_only(monkeypatch):
    """Leave out the pictures and the report, which take most of the time on a tiny trace."""

    def write(out, table, frontier, manifest, title):
        table.to_parquet(out / "tradeoff.parquet", index=False)
        frontier.to_parquet(out / "frontier.parquet", index=False)
        return {}, table

    monkeypatch.setattr(module, "write_outputs", write)


def direct(trace, label):
    """The results of every setting of SMALL at each position, one position and rule at a time."""
    sampling, plain = SamplingSettings.parse(label), SamplingSettings()
    chosen = settings(FEW[1:], {rule: [0.3] for rule in FEW[2:]} | {"cactus": [0.01, 0.5]})
    corpus, rows, prompts = CorpusFrontier("kl"), [], []
    for prompt, _, draft, verifier in open_trace(trace).batches(memory_limit=1):
        p = sampling.draft_probabilities(draft)[0].numpy()
        q = sampling.probabilities(verifier)[0].numpy()
        p_raw, q_raw = (plain.probabilities(x)[0].numpy() for x in (draft, verifier))
        corpus.add(Pair.prepare(p[None], q[None]))
        prompts.append(prompt)
        for setting in chosen:
            law = one_step(setting.build(), p, q, p_raw=p_raw, q_raw=q_raw)
            rows.append(
                {
                    "rule": setting.rule,
                    "value": setting.value,
                    "acceptance": float(law.acceptance),
                    **by_formula(law.output, q),
                }
            )
    return pd.DataFrame(rows), np.array(prompts), corpus


def by_formula(h, q):
    """The measures of one position, as a textbook writes them."""
    with np.errstate(divide="ignore", invalid="ignore"):
        forward = np.where(h > 0, h * np.log(h / q), 0).sum()
        backward = np.where(q > 0, q * np.log(q / h), 0).sum()
        ratio = np.where(h > 0, h / q, 0).max()
        chi2 = np.where((h > 0) | (q > 0), (h - q) ** 2 / q, 0).sum()
        entropies = [-np.where(x > 0, x * np.log(x), 0).sum() for x in (h, q)]
    middle = (h + q) / 2
    safe = np.where(middle > 0, middle, 1)
    halves = [np.where(x > 0, x * np.log(np.where(x > 0, x, 1) / safe), 0).sum() for x in (h, q)]
    return {
        "kl_output_verifier": forward,
        "kl_verifier_output": backward,
        "tv": np.abs(h - q).sum() / 2,
        "chi2": chi2,
        "hellinger2": ((np.sqrt(h) - np.sqrt(q)) ** 2).sum() / 2,
        "js": sum(halves) / 2,
        "max_ratio": ratio,
        "entropy_output": entropies[0],
        "entropy_verifier": entropies[1],
    }


def clustered_error(values, prompts):
    """se² = C/(C−1) Σ_c (Σ_{t∈c} (x_t − mean))² / T²."""
    if np.isinf(values).any():
        return np.inf
    deviations = values - values.mean()
    sums = [deviations[prompts == prompt].sum() for prompt in dict.fromkeys(prompts)]
    count = len(sums)
    return np.sqrt(count / (count - 1) * np.sum(np.square(sums))) / len(values)


@pytest.mark.parametrize("label", LABELS)
def test_table_is_that_of_a_direct_loop(finished, trace, label):
    table = tables(finished)["tradeoff"]
    assert tuple(table.columns) == COLUMNS
    rows = table[table["pair"] == label]
    expected, prompts, corpus = direct(trace, label)
    assert len(rows) == 6
    assert set(rows["positions"]) == {15}
    assert set(rows["source"]) == {"tiny"}
    for row in rows.to_dict("records"):
        same = (expected["rule"] == row["rule"]) & (expected["value"] == row["value"])
        at = expected[same]
        assert len(at) == 15
        for name in MEASURES:
            values = at[name].to_numpy()
            assert row[name] == pytest.approx(values.mean(), rel=1e-9, abs=1e-10), name
            error = clustered_error(values, prompts)
            assert row[f"{name}_se"] == pytest.approx(error, rel=1e-6, abs=1e-9), name
        best = corpus.acceptance(at["kl_output_verifier"].mean())
        assert row["frontier_acceptance"] == pytest.approx(best, abs=1e-9)
        assert row["frontier_gap"] == pytest.approx(best - row["acceptance"], abs=1e-9)
    curve = tables(finished)["frontier"]
    np.testing.assert_allclose(
        curve.loc[curve["pair"] == label, ["level", "acceptance"]].to_numpy().T,
        corpus.curve(),
        rtol=1e-9,
        atol=1e-12,
    )


def test_every_rule_under_both_default_settings(trace, tmp_path, capsys):
    assert main([str(trace), "--device", "cpu", "--jobs", "1", "--out", str(tmp_path)]) == 0
    found = tables(tmp_path)
    table = found["tradeoff"]
    assert tuple(dict.fromkeys(table["pair"])) == DEFAULT_SETTINGS
    assert set(table["rule"]) == set(RULES)
    assert not table.isna().any(axis=None)
    assert not found["quantiles"].isna().any(axis=None)
    assert table["frontier_gap"].min() > -1e-7
    filtered = table[table["pair"] == LABELS[1]]
    # After the filters the draft leaves the verifier's support, and so does a rule that follows it.
    follows = filtered[(filtered["rule"] == "interpolation") & (filtered["value"] == 1)]
    assert follows["kl_output_verifier"].item() == np.inf
    stays = filtered[filtered["rule"].isin(["sps", "cactus", "lenience", "mentored", "top_k"])]
    assert np.isfinite(stays["kl_output_verifier"]).all()
    text = capsys.readouterr().out
    assert "15 positions of 4 prompts" in text
    for label in DEFAULT_SETTINGS:
        row = table[(table["pair"] == label) & (table["rule"] == "sps")].iloc[0]
        told = f"{label}\n  sps accepts {row['acceptance']:.4f} ± {row['acceptance_se']:.4f}\n"
        assert told in text
        row = table[
            (table["pair"] == label) & (table["rule"] == "cactus") & (table["value"] == 0.01)
        ].iloc[0]
        assert f"cactus with δ = 0.01 accepts {row['acceptance']:.4f}" in text
        assert f"{100 * row['kl_output_verifier']:.3g} times its budget" in text
        assert f"the best rule accepts {row['frontier_acceptance']:.4f}" in text


@pytest.mark.usefixtures("tables_only")
def test_raw_distributions_decide_the_cascades(trace, tmp_path):
    """Temperature moves the confidence of p and q, but not what the confidence tests look at."""
    chosen = ["--rules", "cascade_chow", "--values", "0.5", "--settings", "T=0.2"]
    command = [str(trace), *chosen, "--device", "cpu", "--jobs", "1", "--out", str(tmp_path)]
    assert main(command) == 0
    found = tables(tmp_path)["tradeoff"]["acceptance"].item()
    sampling, accepted, naive = SamplingSettings(0.2), [], []
    for _, _, draft, verifier in open_trace(trace).batches():
        p, q = (sampling.probabilities(x).numpy() for x in (draft, verifier))
        strict = np.minimum(p, q).sum(-1)
        confident = torch.softmax(draft.double(), -1).amax(-1).numpy() >= 0.5
        accepted.extend(np.where(confident, 1, strict))
        naive.extend(np.where(p.max(-1) >= 0.5, 1, strict))
    assert found == pytest.approx(np.mean(accepted), abs=1e-12)
    assert abs(np.mean(naive) - found) > 0.01


def greedy(tmp_path, trace, rules, values):
    """The tables of some rules with a greedy draft; and q, the draft's softmax, its choices n."""
    chosen = ["--rules", *rules, "--values", values, "--settings", "T=1 greedy-draft"]
    command = [str(trace), *chosen, "--device", "cpu", "--jobs", "1", "--out", str(tmp_path)]
    assert main(command) == 0
    batches = list(open_trace(trace).batches())
    draft, q = (torch.cat([b[k] for b in batches]).double().softmax(-1).numpy() for k in (2, 3))
    return tables(tmp_path), q, draft, draft.argmax(-1)


@pytest.mark.usefixtures("tables_only")
def test_a_greedy_draft_is_accepted_with_gamma_and_keeps_the_budget(trace, tmp_path):
    rules = ("cactus", "cactus_target_only", "cactus_exact")
    found, q, _, n = greedy(tmp_path, trace, rules, "0.05,0.3")
    table, drafted = found["tradeoff"].set_index(["rule", "value"]), q[np.arange(len(q)), n]
    measured = [name for name in COLUMNS if name not in ("rule", "value")]
    for delta in (0.05, 0.3):
        gamma = np.minimum(drafted + np.sqrt(2 * delta * drafted * (1 - drafted)), 1)
        coupled, target_only = (table.loc[(rule, delta)] for rule in rules[:2])
        assert coupled["acceptance"] == pytest.approx(gamma.mean(), rel=1e-12)
        both = pd.concat([coupled, target_only], axis=1, keys=[0, 1]).loc[measured]
        pd.testing.assert_series_equal(both[0], both[1], check_names=False, rtol=1e-9)
        exact = optimal_gamma(drafted, delta).value
        assert table.loc[("cactus_exact", delta), "acceptance"] == pytest.approx(exact.mean())
        # What is emitted is the drafted token's own target, so that the budget bounds it.
        most = found["quantiles"].set_index(["rule", "value", "measure"])["max"]
        spent = most[("cactus_exact", delta, "kl_output_verifier")]
        assert 0.9 * delta < spent <= delta * (1 + 1e-9)
        assert most[("cactus", delta, "kl_output_verifier")] <= np.log1p(2 * delta) * (1 + 1e-9)


@pytest.mark.usefixtures("tables_only")
def test_a_greedy_draft_is_trusted_for_its_softmax(trace, tmp_path):
    """The one-hot it proposes is certain everywhere; its confidence is not."""
    found, q, draft, n = greedy(tmp_path, trace, ("cascade_chow",), "0.5")
    confident = draft.max(-1) >= 0.5
    assert 0 < confident.mean() < 1
    accepted = np.where(confident, 1, q[np.arange(len(q)), n])
    assert found["tradeoff"]["acceptance"].item() == pytest.approx(accepted.mean(), abs=1e-12)


@pytest.mark.usefixtures("tables_only")
def test_groups_are_measurements_of_their_own(finished, tmp_path):
    prose = record(tmp_path / "prose", [PROMPTS[0], ("x", "other", 1), PROMPTS[2]])
    assert main([str(prose), *SMALL, "--out", str(tmp_path / "out")]) == 0
    groups = [tables(out)["groups"] for out in (finished, tmp_path / "out")]
    assert list(groups[0].columns) == [*COLUMNS[:2], "group", *COLUMNS[2:]]
    assert set(groups[0]["group"]) == {"prose", "code"}
    only = [rows[rows["group"] == "prose"].reset_index(drop=True) for rows in groups]
    pd.testing.assert_frame_equal(*only, rtol=1e-10)
    assert only[0]["positions"].eq(11).all()
    single = groups[1][groups[1]["group"] == "other"]
    assert single["acceptance_se"].isna().all()
    assert not single[["acceptance", "kl_output_verifier", "frontier_gap"]].isna().any(axis=None)


def test_quantiles_are_values_at_positions(finished, trace):
    quantiles = tables(finished)["quantiles"]
    assert len(quantiles) == len(LABELS) * 6 * len(MEASURES)
    for label in LABELS:
        expected, _, _ = direct(trace, label)
        rows = quantiles[(quantiles["pair"] == label) & (quantiles["rule"] == "cactus")]
        rows = rows[(rows["value"] == 0.5) & (rows["measure"] == "kl_output_verifier")]
        at = expected[(expected["rule"] == "cactus") & (expected["value"] == 0.5)]
        ordered = np.sort(at["kl_output_verifier"].to_numpy())
        places = {"min": 0, "q05": 0, "q25": 3, "median": 7, "q75": 11, "q95": 14, "max": 14}
        assert set(places) == set(QUANTILES)
        for name, place in places.items():
            assert rows[name].item() == pytest.approx(ordered[place], rel=1e-9, abs=1e-12)


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
from real_models import parts
from real_models.distributions import SamplingSettings
from real_models.trace import open_trace
from sim.grid import settings

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
def test_cuda_agrees(finished, trace, tmp_path):
    command = [str(trace), *SMALL, "--device", "cuda", "--out", str(tmp_path)]
    assert main(command) == 0
    for one, other in zip(tables(finished).values(), tables(tmp_path).values()):
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
    assert captured.err.count("\n") == 1
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
        path.write_bytes(b"half a file")
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(frame, path, **options)

pd.DataFrame.to_parquet = to_parquet
main(sys.argv[2:])
"""


def result_files(out):
    """All files but the manifest, and the report without its copy of it."""
    files = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    files.pop("manifest.json", None)
    report = files.pop("report.html").decode()
    head, manifest, tail = re.split("<pre>(.*)</pre>", report, flags=re.DOTALL)
    assert "wall_seconds" in manifest
    return files | {"report": head + tail}


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
    assert result_files(tmp_path) == result_files(finished)
    assert kept.items() <= parts_of(tmp_path).items()


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
    assert error.count("\n") == 1
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
    names = {path.name for path in finished.iterdir() if path.is_file()}
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
    assert result.stderr == ""
    assert set(document) == {"files", "headlines", "summary", "manifest"}
    assert [facts["pair"] for facts in document["headlines"]] == LABELS
    strict = document["headlines"][0]["sps"]
    assert 0 < strict["acceptance"] < 1
    assert strict["acceptance_se"] is None  # of a single prompt
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
        (["--jobs", "0"], "--jobs must not be 0"),
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


def test_a_stored_frontier_comes_back_whole():
    random = np.random.default_rng(1)
    corpus = CorpusFrontier("kl")
    for _ in range(2):
        corpus.add(Pair.prepare(*random.dirichlet(np.ones(V), size=(2, 4))))
    again = frontier_from_frame(frontier_to_frame(corpus))
    assert again.positions == 8
    for level in (0.0, 1e-3, 0.1, 10.0):
        assert again.acceptance(level) == corpus.acceptance(level)
    for one, other in zip(again.curve(), corpus.curve()):
        np.testing.assert_array_equal(one, other)


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert 'python -m real_models.measure traces/smollm2-skip3 --settings "T=1"' in text
    assert make_rule("sps").name in text

"""Measuring a trace: every number against a direct loop, one position and rule at a time."""

import numpy as np
import pandas as pd
import pytest
import torch
from measured_traces import FEW, LABELS, PROMPTS, SMALL, V, record, tables

from real_models.laws.distributions import SamplingSettings
from real_models.measure import main
from real_models.measuring.stored import frontier_from_frame, frontier_to_frame
from real_models.measuring.tables import QUANTILES
from real_models.options.recording import DEFAULT_SETTINGS
from real_models.traces.reader import open_trace
from real_models.traces.writer import TraceWriter
from sim.tables.grid import settings
from sim.tables.tradeoff import COLUMNS, MEASURES
from theory import RULES, CorpusFrontier, Pair, one_step, optimal_gamma


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
    # frontier_corpus lies on the frontier, which is interpolated to about 1e-6.
    on_it = table["rule"] == "frontier_corpus"
    assert table.loc[~on_it, "frontier_gap"].min() > -1e-7
    assert table.loc[on_it, "frontier_gap"].abs().max() < 1e-5
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
        told = f"{label}\n  sps accepts {row['acceptance']:.4f} ± {row['acceptance_se']:.4f} at 0 "
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


def test_what_was_cut_off_is_told(tmp_path, capsys):
    folder, whole = record(tmp_path / "whole"), tmp_path / "cut"
    trace = open_trace(folder)
    writer = TraceWriter(whole, trace.header)
    for chunk in trace.chunks:
        entry = chunk.entry
        writer.append(
            entry.chunk,
            entry.prompt_id,
            entry.domain,
            chunk.context,
            chunk.logits("draft"),
            chunk.logits("verifier"),
            cut={"verifier": {"largest": 5e-4, "mean": 1e-4 * (1 + entry.chunk % 2)}},
        )
    assert main([str(whole), *SMALL, "--out", str(tmp_path / "out")]) == 0
    mean = sum(1e-4 * (1 + c.entry.chunk % 2) * c.entry.positions for c in trace.chunks) / 15
    told = f"of the verifier's probability 0.0005 at most, {mean:.2g} in the mean"
    assert told in capsys.readouterr().out
    assert main([str(folder), *SMALL, "--out", str(tmp_path / "plain")]) == 0
    assert "cut off" not in capsys.readouterr().out

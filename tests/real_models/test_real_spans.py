"""A span between two marker tokens: which positions are inside, and what a rule does there."""

import json

import numpy as np
import pandas as pd
import pytest
from measured_traces import record

from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.measure import main
from real_models.measuring.spans import Span, positions_inside
from real_models.traces.reader import open_trace
from theory import divergence, make_rule, one_step


@pytest.mark.parametrize(
    ("markers", "tokens", "inside"),
    [
        (("7", "8"), [1, 7, 2, 3, 8, 4], "..xxx.."),
        (("7", "8"), [7, 2, 7, 8, 8, 4], ".xxx..."),
        (("7", "8"), [8, 1, 7], "...x"),
        (("7", "8"), [8, 7, 8, 7], "..x.x"),
        (("7,5", "8,5"), [7, 7, 5, 8, 4, 8, 5, 1], "...xxxx.."),
        (("7,5", "9,7,5"), [7, 5, 9, 7, 5, 1], "..xxx.."),
        (("7", "8"), [1, 2], "..."),
        (("7,5", "8"), [7], ".."),
        (("7", "8"), [], "."),
    ],
)
def test_a_position_is_inside_behind_the_whole_marker(markers, tokens, inside):
    found = Span.parse(markers).inside(np.array(tokens, dtype=np.int64))
    assert "".join(".x"[int(flag)] for flag in found) == inside


@pytest.mark.parametrize(
    ("markers", "told"),
    [
        (("<think>", "8"), "--span: '<think>' is not a token id, or several joined by commas"),
        (("7", "8,"), "--span: '8,' is not a token id"),
        (("7", "-8"), "--span: '-8' is not a token id"),
        (("7", "7"), "--span: both markers are '7'"),
    ],
)
def test_what_is_no_marker_is_refused(markers, told):
    with pytest.raises(UserError, match=told):
        Span.parse(markers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts 0 1 2 3 …, whose rows predict the tokens from 2 on."""
    return record(tmp_path_factory.mktemp("spans") / "trace")


ARGUMENTS = ["--rules", "sps", "interpolation", "--values", "interpolation=0.3", "--settings",
             "T=1", "--device", "cpu", "--jobs", "1"]  # fmt: skip


def expected(folder, inside):
    """Acceptance and KL at each position, the rule inside the span only; and which are inside."""
    plain, rules = SamplingSettings(), (make_rule("interpolation", alpha=0.3), make_rule("sps"))
    rows, within = [], []
    for chunk in open_trace(folder).chunks:
        p, q = (plain.probabilities(chunk.logits(part)).numpy() for part in ("draft", "verifier"))
        for position in range(chunk.positions):
            within.append(inside(chunk.next_tokens[position]))
            law = one_step(rules[not within[-1]], p[position], q[position])
            rows.append((float(law.acceptance), float(divergence("kl", law.output, q[position]))))
    return np.array(rows), np.array(within)


@pytest.mark.usefixtures("tables_only")
def test_the_tables_are_those_of_a_direct_loop(folder, tmp_path, capsys):
    """Between 2 and 4 the tokens 3 and 4 are predicted, the second of them the marker itself."""
    arguments = [str(folder), *ARGUMENTS, "--span", "2", "4", "--out", str(tmp_path)]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    mixed, within = expected(folder, lambda token: token in (3, 4))
    assert 0 < within.sum() < len(within)
    everywhere, _ = expected(folder, lambda token: True)
    table = pd.read_parquet(tmp_path / "spans.parquet")
    assert list(dict.fromkeys(table["group"])) == ["inside", "outside", "inside only"]
    rows = table[table["rule"] == "interpolation"].set_index("group")
    for group, values in {
        "inside": everywhere[within],
        "outside": everywhere[~within],
        "inside only": mixed,
    }.items():
        found = rows.loc[group]
        assert found["positions"] == len(values)
        measured = found[["acceptance", "kl_output_verifier"]].to_numpy(dtype=float)
        np.testing.assert_allclose(measured, values.mean(0), rtol=1e-9, atol=1e-12)
        assert found["frontier_gap"] > -1e-9
    strict = table[table["rule"] == "sps"].set_index("group")["acceptance"]
    share = within.mean()
    assert strict["inside only"] == pytest.approx(
        share * strict["inside"] + (1 - share) * strict["outside"]
    )
    assert f"T=1: {within.sum()} of {len(within)} positions are inside the span" in said
    mean = mixed.mean(0)
    assert f"{mean[0]:.3f}  {mean[1]:.3f}" in said


@pytest.mark.usefixtures("tables_only")
def test_a_span_that_never_ends_has_no_outside(folder, tmp_path, capsys):
    arguments = [str(folder), *ARGUMENTS, "--span", "0,1", "23", "--out", str(tmp_path), "--json"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["group"] for row in document["spans"]} == {"inside", "inside only"}
    assert document["manifest"]["arguments"]["span"] == ["0,1", "23"]


@pytest.mark.usefixtures("tables_only")
def test_without_a_span_there_is_no_table_of_it(folder, tmp_path, capsys):
    assert main([str(folder), *ARGUMENTS, "--out", str(tmp_path)]) == 0
    assert "inside the span" not in capsys.readouterr().out
    assert not (tmp_path / "spans.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--span", "22", "23"], "no position of"),
        (["--span", "a", "23"], "--span: 'a' is not a token id"),
        (["--span", "2", "4", "--rules", "interpolation"], "--span: add sps to --rules"),
    ],
)
def test_a_span_that_says_nothing_is_refused_in_one_line(folder, tmp_path, capsys, arguments, told):
    assert main([str(folder), *ARGUMENTS, *arguments, "--out", str(tmp_path / "out")]) == 2
    errors = capsys.readouterr().err
    assert told in errors
    assert len([line for line in errors.splitlines() if "error" in line]) == 1
    assert not (tmp_path / "out").exists()


def test_every_position_of_every_prompt_is_told_of(tmp_path):
    trace = open_trace(record(tmp_path / "trace"))
    found = positions_inside(trace, Span((2,), (4,)))
    assert {name: len(flags) for name, flags in found.items()} == {
        chunk.entry.prompt_id: chunk.positions for chunk in trace.chunks
    }

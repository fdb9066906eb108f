"""What a sampler gives back wrongly is a finding that names the row; arguments are checked."""

import json
import re

import numpy as np
import pytest

from sim import audit
from theory import make_rule

SPS = make_rule("sps")
RIGHT = audit.reference_sampler(SPS)


def after(change):
    """The right sampler, whose answer is changed."""

    def sampler(p, q, drafted, generator):
        accepted, tokens = RIGHT(p, q, drafted, generator)
        return change(accepted.copy(), tokens.copy())

    return sampler


def in_row(row, **values):
    def change(accepted, tokens):
        if "accepted" in values:
            accepted[row] = values["accepted"]
        if "at" in values:
            tokens[row, values["at"]] = values["token"]
        return accepted, tokens

    return after(change)


def asked(sampler, **more):
    return audit.audit(sampler, SPS, **{"samples": 300} | more)


def found(sampler):
    report = asked(sampler)
    assert report.rejected
    assert report.log_e == np.inf
    return report.findings[0]


@pytest.mark.parametrize(
    ("sampler", "kind", "told"),
    [
        (in_row(5, accepted=4), "count", "4 of 3 drafts are said to be accepted"),
        (in_row(5, accepted=-1), "count", "-1 of 3 drafts are said to be accepted"),
        (in_row(8, at=0, token=23), "draft", "does not begin with them; drafted were"),
        (after(lambda a, t: (a, np.where(t == -1, 0, t))), "padding", "−1 is wanted there"),
        (after(lambda a, t: (a, np.where(np.arange(4) == a[:, None], 24, t))), "token",
         "token 24 behind"),
        (after(lambda a, t: (a, t[:, :-1])), "malformed", "tokens must have shape (64, 4), got"),
        (after(lambda a, t: (a * 1.0, t)), "malformed", "accepted must be integers, got float64"),
        (after(lambda a, t: t), "malformed", "(accepted, tokens) is wanted, got 'ndarray'"),
        (after(lambda a, t: None), "malformed", "(accepted, tokens) is wanted, got 'NoneType'"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_a_finding(sampler, kind, told):
    finding = found(sampler)
    assert finding.kind == kind
    assert told in finding.text
    assert finding.text in "\n".join(asked(sampler).lines())


def test_the_row_is_told():
    assert found(in_row(5, accepted=4)).row == 5
    assert found(in_row(5, accepted=4)).block == "one hots"


def test_an_exception_is_told_with_the_first_row_that_raises_it():
    def sampler(p, q, drafted, generator):
        if np.any((p > 0).sum(axis=-1) == 1):
            raise ZeroDivisionError("a row\nof one token")
        return RIGHT(p, q, drafted, generator)

    finding = found(sampler)
    assert (finding.kind, finding.row) == ("raised", 1)
    assert finding.text == "ZeroDivisionError: a row of one token"


def test_an_exception_of_whole_batches_is_told_too():
    def sampler(p, q, drafted, generator):
        if len(p) > 1:
            raise RuntimeError("too many")
        return RIGHT(p, q, drafted, generator)

    assert "in a batch of 64; in none of its rows alone" in found(sampler).text


def test_a_sampler_may_write_into_its_arguments():
    def sampler(p, q, drafted, generator):
        answer = RIGHT(p.copy(), q.copy(), drafted.copy(), generator)
        p[:], q[:], drafted[:] = 0, 0, 0
        return answer

    assert not asked(sampler, samples=2_000).rejected


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"samples": 0}, "samples must be an integer of at least 1, got 0"),
        ({"level": 0.0}, "level must lie in (0, 0.5], got 0.0"),
        ({"rounding": -1.0}, "rounding must lie in [0, 0.1], got -1.0"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"verification": "tree"}, "verification must be 'token' or 'block', got 'tree'"),
        ({"backend": "jax"}, "unknown backend 'jax'"),
        ({"dtype": "float16"}, "unknown dtype 'float16'; did you mean 'float"),
        ({"device": "cuda"}, "numpy's rows are on the cpu; device 'cuda' needs torch"),
    ],
)
def test_arguments_are_checked(arguments, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        asked(RIGHT, **arguments)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(ValueError, match="sampler must be a callable, got 3"):
        asked(3)
    with pytest.raises(ValueError, match="unknown divergence of a budget 'js'"):
        audit.audit_budget(RIGHT, "js", 0.1)


# --- rows ----------------------------------------------------------------------------------------


def test_hostile_rows_hold_what_their_names_say():
    pairs = audit.hostile_pairs()
    rows = dict(zip(pairs.names, zip(pairs.p, pairs.q)))
    p, q = rows["zeros in p"]
    assert np.any((p == 0) & (q[:-1] > 0))
    p, q = rows["logits of minus infinity"]
    assert np.any((p > 0) & (q[:-1] == 0))
    p, q = rows["one hots apart"]
    assert np.any((p.max(-1) == 1) & (q[:-1].max(-1) == 1) & (p.argmax(-1) != q[:-1].argmax(-1)))
    p, q = rows["faint tails"]
    assert 0 < p.min() < 1e-20
    p, q = rows["equal rows"]
    np.testing.assert_array_equal(p, q[:-1])
    p, q = rows["unequal supports"]
    assert np.any(((p > 0) & (q[:-1] > 0)).sum(-1) == 0)
    p, q = rows["ties"]
    assert np.all([len(np.unique(row)) <= 3 for row in p])


def test_the_flat_row_is_just_above_the_threshold_of_typical_acceptance():
    pairs = audit.hostile_pairs(vocab=2_000)
    at = pairs.names.index("flat")
    rule = make_rule("typical")
    assert rule.accept_prob(pairs.p[at, 0], pairs.q[at, 0])[0] == 1
    q = pairs.q[at, 0]
    assert q[0] < 1.2 * 0.3 * np.exp((q * np.log(q)).sum())


@pytest.mark.parametrize("arguments", [{}, {"vocab": 8, "drafts": 1}, {"vocab": 50, "drafts": 6}])
def test_hostile_rows_are_distributions_and_the_same_each_time(arguments):
    first, again = audit.hostile_pairs(**arguments), audit.hostile_pairs(**arguments)
    np.testing.assert_array_equal(first.p, again.p)
    for dtype, tolerance in (("float64", 1e-12), ("float32", 1e-6)):
        rows = first.rounded(dtype)
        assert np.abs(rows.p.sum(-1, dtype=np.float64) - 1).max() < tolerance
        assert np.abs(rows.q.sum(-1, dtype=np.float64) - 1).max() < tolerance


def test_rows_of_ones_own_are_read_from_a_file_and_checked(tmp_path):
    pairs = audit.hostile_pairs(vocab=8)
    path = tmp_path / "rows.npz"
    np.savez(path, p=pairs.p, q=pairs.q, names=np.array(pairs.names))
    read = audit.read_pairs(path)
    assert read.names == pairs.names
    np.testing.assert_array_equal(read.q, pairs.q)
    np.savez(path, p=pairs.p)
    with pytest.raises(ValueError, match=r"rows\.npz: it has no array 'q'; it has p"):
        audit.read_pairs(path)
    np.savez(path, p=pairs.p, q=pairs.q[:, 1:])
    with pytest.raises(ValueError, match=r"need p \[N, m, V\] and q \[N, m\+1, V\]"):
        audit.read_pairs(path)
    np.savez(path, p=2 * pairs.p, q=pairs.q)
    with pytest.raises(ValueError, match=r"p row \(0, 0\) sums to 2"):
        audit.read_pairs(path)
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"rows\.npz: "):
        audit.read_pairs(path)


def test_a_report_is_plain_values_whatever_is_found():
    report = asked(lambda p, q, drafted, generator: None)
    told = json.loads(json.dumps(report.document(), allow_nan=False))
    assert told["rejected"]
    assert told["log_e"] is None
    assert "(sample 0; 64 of 64 rounds)" in str(report)


def test_a_sampler_that_exits_is_a_finding_and_no_end_of_the_audit():
    def leaves(p, q, drafted, generator):
        raise SystemExit(3)

    report = asked(leaves)
    assert report.rejected
    assert "raised: SystemExit: 3" in str(report)


def test_padding_of_another_kind_is_told_of_every_round_and_hides_no_law():
    report = asked(after(lambda a, t: (a, np.where(t == -1, 0, t))), samples=2000)
    wide = [finding for finding in report.findings if finding.kind == "padding"]
    assert 500 < wide[0].count < 2000  # of those that reject before the last draft
    assert [line.partition(":")[0] for line in report.diagnosis] == ["padding"]


def test_a_masked_answer_is_none():
    masked = found(after(lambda a, t: (np.ma.masked_array(a, a == 0), t)))
    assert (masked.kind, masked.text) == (
        "malformed", "accepted must be a plain array, got a masked one",
    )  # fmt: skip


def test_a_sampler_that_makes_numpy_raise_does_so_for_itself_alone():
    def strict(p, q, drafted, generator):
        np.seterr(all="raise")
        return RIGHT(p, q, drafted, generator)

    before = np.geterr()
    try:
        assert not asked(strict).rejected
        assert np.geterr() == before
    finally:
        np.seterr(**before)


def test_what_a_sampler_draws_without_its_generator_is_told_beside_the_evidence():
    def elsewhere(p, q, drafted, generator):
        return RIGHT(p, q, drafted, np.random.default_rng())

    def seeded(p, q, drafted, generator):
        return RIGHT(p, q, drafted, np.random.default_rng(0))

    report = asked(elsewhere)
    assert report.diagnosis == [report.randomness]
    assert "it draws from elsewhere" in report.document()["randomness"]
    assert "the same in each call" in asked(seeded).randomness
    assert asked(RIGHT).randomness == ""
    budget = audit.audit_budget(elsewhere, "kl", 0.0, samples=300)
    assert "it draws from elsewhere" in budget.randomness


def test_a_law_without_chance_may_answer_alike_to_every_generator():
    sure = np.zeros((1, 2, 3))
    sure[..., 1] = 1.0
    pairs = audit.Blocks(sure[:, :1], sure)
    assert asked(RIGHT, pairs=pairs).diagnosis == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"pairs": np.ones(3)}, "pairs must be audit.Blocks, got ndarray"),
        ({"pairs": None, "vocab": 10**8}, "(drafts + 1)·vocab must be at most"),
    ],
)
def test_rows_that_are_none_or_too_many_are_refused_before_they_are_made(given, told):
    vocab = given.pop("vocab", None)
    with pytest.raises(ValueError, match=re.escape(told)):
        asked(RIGHT, **given if vocab is None else {"pairs": audit.hostile_pairs(vocab)})

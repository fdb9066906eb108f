"""A trace made of arrays holds the same distributions, clustered as they are labelled."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.measuring.corpus import trace_corpus
from real_models.measuring.parts import Resources
from real_models.traces import open_trace, write_trace
from real_models.traces.array_files import read_arrays
from sim.tables.grid import Setting
from theory import make_rule, one_step

N, V = 7, 12
LABELS = ["x", "y", "x", "x", "y", "z", "x"]


def logits(seed, dtype=np.float64):
    return 2 * np.random.default_rng(seed).normal(size=(N, V)).astype(dtype)


def softmax(rows):
    return torch.from_numpy(rows).double().softmax(-1).numpy()


def stored(trace, part):
    return torch.cat([chunk.logits(part) for chunk in trace.chunks])


@pytest.mark.parametrize("kind", ["logits", "probabilities", "logprobs"])
def test_the_distributions_come_back_to_rounding(tmp_path, kind):
    given = {"draft": logits(0), "verifier": logits(1)}
    as_kind = {"logits": lambda x: x, "probabilities": softmax,
               "logprobs": lambda x: np.log(softmax(x))}[kind]  # fmt: skip
    trace = write_trace(tmp_path, kind=kind, **{k: as_kind(v) for k, v in given.items()})
    assert (trace.complete, trace.positions, trace.header.dtype) == (True, N, "float64")
    for part, rows in given.items():
        back = SamplingSettings().probabilities(stored(trace, part)).numpy()
        np.testing.assert_allclose(back, softmax(rows), rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_logits_keep_their_dtype_and_their_masks(tmp_path, dtype):
    rows = torch.from_numpy(logits(0)).to(getattr(torch, dtype))
    rows[2, 5] = -torch.inf
    trace = write_trace(tmp_path, draft=rows, verifier=rows.clone())
    assert trace.header.dtype == dtype
    assert torch.equal(stored(trace, "draft"), rows)


def test_two_dtypes_are_kept_in_the_wider_one(tmp_path):
    trace = write_trace(tmp_path, draft=logits(0, np.float32), verifier=logits(1))
    assert trace.header.dtype == "float64"
    np.testing.assert_array_equal(stored(trace, "draft"), logits(0, np.float32).astype(float))


def test_probabilities_of_single_precision_lose_nothing_more(tmp_path):
    p = softmax(logits(0)).astype(np.float32)
    trace = write_trace(tmp_path, draft=p, verifier=p, kind="probabilities")
    assert trace.header.dtype == "float64"
    back = SamplingSettings().probabilities(stored(trace, "draft")).numpy()
    exact = p.astype(float) / p.astype(float).sum(-1, keepdims=True)
    np.testing.assert_allclose(back, exact, rtol=1e-14)


def test_a_row_is_named_by_its_own_number_however_many_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr("real_models.traces.arrays._SLAB", 2 * V)
    with pytest.raises(UserError, match="draft row 5 has the largest entry nan"):
        write_trace(tmp_path / "t", draft=bad(5, 2, np.nan, logits(0)), verifier=logits(1))


def test_zeros_stay_zeros(tmp_path):
    p = softmax(logits(0))
    p[:, 3] = 0
    p /= p.sum(-1, keepdims=True)
    trace = write_trace(tmp_path, draft=p, verifier=softmax(logits(1)), kind="probabilities")
    assert (SamplingSettings().probabilities(stored(trace, "draft"))[:, 3] == 0).all()


def test_labels_are_prompts_and_their_rows_stay_together(tmp_path):
    trace = write_trace(tmp_path, draft=logits(0), verifier=logits(1), prompts=LABELS)
    assert [c.entry.prompt_id for c in trace.chunks] == ["x", "y", "z"]
    assert [c.positions for c in trace.chunks] == [4, 2, 1]
    order = [0, 2, 3, 6, 1, 4, 5]
    np.testing.assert_array_equal(stored(trace, "verifier"), logits(1)[order])
    assert trace.header.positions == 4


def test_without_labels_each_row_is_a_cluster(tmp_path):
    trace = write_trace(tmp_path, draft=logits(0), verifier=logits(1))
    assert [c.entry.prompt_id for c in trace.chunks][::6] == ["row-00000", "row-00006"]


def test_texts_are_kept_or_unknown(tmp_path):
    contexts = [[1, 2, 3, 4, 5, 6], [0, 1, 2], [3, 4]]
    both = {"draft": logits(0), "verifier": logits(1), "prompts": LABELS}
    trace = write_trace(tmp_path / "known", contexts=contexts, **both)
    assert [c.context.tolist() for c in trace.chunks] == contexts
    assert [c.next_tokens.tolist() for c in trace.chunks] == [[3, 4, 5, 6], [1, 2], [4]]
    unknown = write_trace(tmp_path / "unknown", **both)
    assert unknown.header.contexts == "unknown"
    assert not list((tmp_path / "unknown").glob("*context*"))
    with pytest.raises(UserError, match="the texts of this trace were not recorded"):
        _ = unknown.chunks[0].context


def test_the_law_of_a_rule_is_that_of_the_arrays(tmp_path):
    p, q = softmax(logits(0)), softmax(logits(1))
    trace = write_trace(tmp_path, draft=p, verifier=q, kind="probabilities", prompts=LABELS)
    corpus = trace_corpus(trace, SamplingSettings(), Resources("cpu", 1 << 20))
    (point,) = corpus.points([Setting("cactus", "delta", 0.2)], "kl_output_verifier")
    law = one_step(make_rule("cactus", delta=0.2), p, q)
    assert point.acceptance == pytest.approx(law.acceptance.mean(), abs=1e-12)


def test_what_was_written_is_written_again_or_refused(tmp_path):
    both = {"draft": logits(0), "verifier": logits(1), "prompts": LABELS}
    write_trace(tmp_path, **both)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_trace(tmp_path, **both)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for change in ({"draft": logits(2)}, {"prompts": LABELS[::-1]}, {"name": "other"}):
        with pytest.raises(UserError, match="holds another trace"):
            write_trace(tmp_path, **(both | change))


def bad(row, column, value, rows=None):
    rows = softmax(logits(0)) if rows is None else rows
    rows[row, column] = value
    return rows


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"draft": bad(3, 1, 2.0)}, "draft row 3 sums to "),
        ({"draft": bad(3, 1, -0.5)}, "draft row 3 has the negative entry -0.5 at token 1"),
        ({"draft": bad(3, 1, np.nan)}, "draft row 3 has the largest entry nan"),
        ({"verifier": bad(5, 0, np.inf)}, "verifier row 5 has the largest entry inf"),
        ({"draft": bad(2, 4, 1.0, logits(0)), "kind": "logprobs"}, "draft row 0 sums to "),
        ({"draft": bad(2, slice(None), -np.inf, logits(0)), "kind": "logits"},
         "draft row 2 has the largest entry -inf"),
        ({"draft": softmax(logits(0))[:, 1:]}, "draft is [7, 11] and verifier [7, 12]"),
        ({"draft": logits(0)[0]}, "draft must be [N ≥ 1, V ≥ 1], got the shape [12]"),
        ({"draft": logits(0)[:0]}, "got the shape [0, 12]"),
        ({"draft": np.ones((N, V), int)}, "draft must hold one of float32"),
        ({"draft": softmax(logits(0)).astype(np.float16)}, "must be float32 or float64, got"),
        ({"draft": np.ma.masked_array(softmax(logits(0)))}, "draft is a masked array"),
        ({"kind": "odds"}, "kind 'odds' is not one of logits, probabilities, logprobs"),
        ({"prompts": ["x"]}, "prompts must label each of the 7 rows, got 1"),
        ({"prompts": [1, "1", 1, 1, 1, 1, 1]}, "prompts: two labels read alike"),
        ({"prompts": LABELS, "contexts": [[1]]}, "contexts must be of 3 prompts, got 1"),
        ({"prompts": LABELS, "contexts": [[1, 2, 3, 4], [1] * 3, [1] * 2]},
         "contexts: prompt 0: 4 rows need 5 tokens or more, got 4"),
        ({"prompts": LABELS, "contexts": [[1] * 5, [1, 2, 12], [1] * 2]},
         "contexts: prompt 1: token id 12 is outside the 12 columns"),
        ({"prompts": LABELS, "contexts": [[1] * 5, [0.5] * 3, [1] * 2]},
         "contexts: prompt 1: must be token ids"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named_and_nothing_is_written(tmp_path, arguments, told):
    good = {"draft": softmax(logits(0)), "verifier": softmax(logits(1)), "kind": "probabilities"}
    with pytest.raises(UserError) as caught:
        write_trace(tmp_path / "t", **(good | arguments))
    assert told in str(caught.value)
    assert not (tmp_path / "t").exists()


def test_single_precision_has_its_own_tolerance(tmp_path):
    p = softmax(logits(0)).astype(np.float32)
    p[1] *= 1.00005
    trace = write_trace(tmp_path / "a", draft=p, verifier=p, kind="probabilities")
    assert trace.positions == N
    with pytest.raises(UserError, match=r"draft row 1 sums to 1\.0000.* within 1e-07"):
        write_trace(tmp_path / "b", draft=p.astype(float), verifier=p, kind="probabilities")


# --- files ----------------------------------------------------------------------------------------

ROWS = {"draft": logits(0, np.float32), "verifier": logits(1, np.float32)}
CONTEXTS = [[1, 2, 3, 4, 5, 6], [0, 1, 2, -1, -1, -1], [3, 4, -1, -1, -1, -1]]


def save_npz(path):
    np.savez(path, prompts=np.array(LABELS), contexts=np.array(CONTEXTS), **ROWS)


def save_torch(path):
    tensors = {name: torch.from_numpy(rows) for name, rows in ROWS.items()}
    torch.save(tensors | {"prompts": LABELS, "contexts": torch.tensor(CONTEXTS)}, path)


def save_safetensors(path):
    tensors = {name: torch.from_numpy(rows) for name, rows in ROWS.items()}
    numbers = torch.tensor(["xyz".index(label) for label in LABELS])
    save_file(tensors | {"prompts": numbers, "contexts": torch.tensor(CONTEXTS)}, path)


def save_parquet(path):
    import pandas as pd

    columns = {name: list(rows) for name, rows in ROWS.items()}
    pd.DataFrame({**columns, "prompts": LABELS}).to_parquet(path)


SAVED = {".npz": save_npz, ".pt": save_torch, ".safetensors": save_safetensors,
         ".parquet": save_parquet}  # fmt: skip


@pytest.mark.parametrize("suffix", SAVED)
def test_every_kind_of_file_gives_the_same_rows(tmp_path, suffix):
    path = tmp_path / f"rows{suffix}"
    SAVED[suffix](path)
    arrays = read_arrays([path], None, None)
    for name, rows in ROWS.items():
        np.testing.assert_array_equal(np.asarray(arrays[name]), rows)
    trace = write_trace(tmp_path / "t", **arrays)
    assert [c.positions for c in trace.chunks] == [4, 2, 1]
    if suffix != ".parquet":
        assert trace.chunks[1].context.tolist() == [0, 1, 2]


@pytest.mark.parametrize("suffix", [".npy", ".pt"])
def test_two_files_hold_an_array_each(tmp_path, suffix):
    paths = []
    for name, rows in ROWS.items():
        paths.append(tmp_path / f"{name}{suffix}")
        if suffix == ".npy":
            np.save(paths[-1], rows)
        else:
            torch.save(torch.from_numpy(rows), paths[-1])
    arrays = read_arrays([], *paths)
    assert arrays.keys() == ROWS.keys()
    trace = write_trace(tmp_path / "t", **arrays)
    np.testing.assert_array_equal(stored(trace, "draft"), ROWS["draft"])


def test_big_endian_arrays_are_read(tmp_path):
    np.save(tmp_path / "d.npy", ROWS["draft"].astype(">f4"))
    arrays = read_arrays([], tmp_path / "d.npy", tmp_path / "d.npy")
    trace = write_trace(tmp_path / "t", **arrays)
    np.testing.assert_array_equal(stored(trace, "draft"), ROWS["draft"])


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_files_that_are_none_are_named(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    (tmp_path / "cut.safetensors").write_bytes(b"\xff" * 9)
    np.savez(tmp_path / "other.npz", draught=ROWS["draft"])
    np.savez(tmp_path / "one.npz", draft=ROWS["draft"])
    torch.save({"draft": Bomb()}, tmp_path / "bomb.pt")
    np.savez(tmp_path / "bomb.npz", draft=np.array([Bomb()], dtype=object))
    np.save(tmp_path / "bomb.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    for name, told in {
        "a.txt": r"a\.txt: a name must end in one of \.npz",
        "cut.npz": r"cut\.npz cannot be read",
        "cut.parquet": r"cut\.parquet cannot be read",
        "cut.safetensors": r"cut\.safetensors cannot be read",
        "absent.npz": r"absent\.npz cannot be read: No such file",
        "other.npz": r"unknown array 'draught'; known are draft, verifier, prompts, contexts",
        "one.npz": r"no file holds the rows of the verifier",
        "bomb.npz": r"bomb\.npz cannot be read",
        "bomb.pt": r"bomb\.pt cannot be read",
        "bomb.npy": r"bomb\.npy cannot be read",
    }.items():
        with pytest.raises(UserError, match=told) as caught:
            read_arrays([tmp_path / name], None, None)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="draft is in another file, too"):
        read_arrays([tmp_path / "one.npz", tmp_path / "one.npz"], None, None)
    save_npz(tmp_path / "rows.npz")
    with pytest.raises(UserError, match=r"rows\.npz holds 4 arrays .*, not one"):
        read_arrays([], tmp_path / "rows.npz", None)


def test_ragged_rows_of_parquet_are_named(tmp_path):
    import pandas as pd

    rows = [list(row) for row in ROWS["draft"]]
    rows[2] = rows[2][1:]
    frame = pd.DataFrame({"draft": rows, "verifier": list(ROWS["verifier"])})
    frame.to_parquet(tmp_path / "r.parquet")
    with pytest.raises(UserError, match="the rows of draft have different lengths"):
        read_arrays([tmp_path / "r.parquet"], None, None)


def test_an_opened_trace_is_whole(tmp_path):
    write_trace(tmp_path, draft=logits(0), verifier=logits(1), prompts=LABELS)
    assert open_trace(tmp_path).complete

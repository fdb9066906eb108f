"""Traces on disk: what goes in comes out, and nothing else does."""

import dataclasses
import json
import math
import pickle

import numpy as np
import pytest
import torch

from real_models.errors import UserError
from real_models.traces.format import ChunkEntry, TraceHeader, from_storage, to_storage
from real_models.traces.reader import open_trace
from real_models.traces.writer import TraceWriter
from sim.jobs.files import write_whole

V = 7


def header(**changes):
    values = {
        "pair": "tiny",
        "verifier": "v",
        "verifier_revision": "1",
        "draft": "d",
        "draft_revision": "2",
        "tokenizer_hash": "00",
        "contexts": "verifier",
        "sampling": {"temperature": 1.0, "top_k": None, "top_p": None},
        "seed": 0,
        "positions": 5,
        "prompts": 3,
        "prompts_sha256": "11",
        "vocabulary": V,
        "logit_widths": {"draft": V, "verifier": V},
        "end_tokens": [0],
    }
    return TraceHeader(**(values | changes))


def logits(seed, rows=5):
    return 3 * torch.randn(rows, V, generator=torch.Generator().manual_seed(seed))


def fill(folder, chunks=(0, 1, 2), **changes):
    """A trace of three prompts; the last has four positions only."""
    writer = TraceWriter(folder, header(**changes))
    for chunk in chunks:
        rows = 4 if chunk == 2 else 5
        writer.append(
            chunk, f"p{chunk}", "even" if chunk % 2 == 0 else "odd", np.arange(rows + 3),
            logits(2 * chunk, rows), logits(2 * chunk + 1, rows), ended=chunk == 2,
        )  # fmt: skip
    return writer


def files(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_roundtrip(tmp_path):
    fill(tmp_path)
    trace = open_trace(tmp_path)
    assert (trace.positions, trace.complete, trace.header) == (14, True, header())
    assert [(c.entry.prompt_id, c.entry.domain, c.entry.ended) for c in trace.chunks] == [
        ("p0", "even", False), ("p1", "odd", False), ("p2", "even", True)
    ]  # fmt: skip
    for chunk in trace.chunks:
        number = chunk.entry.chunk
        assert torch.equal(chunk.logits("draft"), logits(2 * number, chunk.positions))
        assert torch.equal(
            chunk.logits("verifier", 1, 3), logits(2 * number + 1, chunk.positions)[1:3]
        )
        assert chunk.context.tolist() == list(range(chunk.positions + 3))
        assert chunk.entry.first == 2
        assert chunk.next_tokens.tolist() == list(range(3, chunk.positions + 3))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_stored_dtypes_come_back_exactly_with_their_masks(tmp_path, dtype):
    kind = getattr(torch, dtype)
    rows = logits(0)
    rows[2, 3] = -math.inf
    writer = TraceWriter(tmp_path, header(dtype=dtype))
    writer.append(0, "p", "all", np.arange(6), rows, rows.to(kind))
    chunk = open_trace(tmp_path).chunks[0]
    assert chunk.logits("draft").dtype == kind
    assert torch.equal(chunk.logits("draft"), rows.to(kind))
    assert torch.equal(chunk.logits("verifier"), rows.to(kind))
    assert chunk.logits("draft")[2, 3] == -math.inf
    stored = np.load(tmp_path / "chunk-00000.draft.npy", allow_pickle=False)
    assert stored.dtype == {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}[dtype]


@pytest.mark.parametrize(
    ("value", "dtype", "fault"),
    [
        (math.nan, "float32", "a NaN"),
        (math.inf, "float32", r"a \+inf"),
        (1e5, "float16", "out of range for float16"),
        (-1e5, "float16", "out of range for float16"),
        (3.4e38, "bfloat16", "out of range for bfloat16"),
    ],
)
def test_logits_that_cannot_be_stored_name_the_row(value, dtype, fault):
    rows = logits(0)
    rows[3, 1] = value
    with pytest.raises(UserError, match=f"p draft: row 3 has .*{fault}"):
        to_storage(rows, dtype, "p draft")
    rows[3] = -math.inf
    with pytest.raises(UserError, match="row 3 has no finite logit"):
        to_storage(rows, dtype, "p draft")


def test_storage_copies():
    rows = logits(0)
    assert from_storage(to_storage(rows, "float32", "x"), "float32").data_ptr() != rows.data_ptr()


def test_batches_respect_the_memory_limit_and_the_prompts(tmp_path):
    fill(tmp_path)
    trace = open_trace(tmp_path)
    two_rows = 2 * (2 * 8 * V)
    sizes = [len(draft) for _, _, draft, _ in trace.batches(two_rows)]
    assert sizes == [2, 2, 1, 2, 2, 1, 2, 2]
    assert [len(batch.draft_logits) for batch in trace.batches()] == [5, 5, 4]
    assert [len(batch.draft_logits) for batch in trace.batches(1)] == [1] * 14
    with pytest.raises(ValueError, match="memory_limit"):
        next(trace.batches(0))
    whole = torch.cat([verifier for _, _, _, verifier in trace.batches(two_rows)])
    assert torch.equal(whole, torch.cat([logits(1), logits(3), logits(5, 4)]))
    names = [(batch.prompt_id, batch.domain) for batch in trace.batches()]
    assert names == [("p0", "even"), ("p1", "odd"), ("p2", "even")]


@pytest.mark.parametrize("part", ["draft", "verifier", "context"])
@pytest.mark.parametrize("verify", [True, False])
def test_a_truncated_file_names_its_chunk(tmp_path, part, verify):
    fill(tmp_path)
    path = tmp_path / f"chunk-00001.{part}.npy"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match=rf"chunk 1 \(chunk-00001\.{part}\.npy\).*truncated"):
        open_trace(tmp_path, verify=verify)
    path.unlink()
    with pytest.raises(UserError, match=r"chunk 1 .*missing"):
        open_trace(tmp_path, verify=verify)


@pytest.mark.parametrize("part", ["draft", "verifier", "context"])
def test_one_flipped_bit_names_its_chunk(tmp_path, part):
    fill(tmp_path)
    path = tmp_path / f"chunk-00002.{part}.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"chunk 2 \(chunk-00002\.{part}\.npy\) has been altered"):
        open_trace(tmp_path)
    assert open_trace(tmp_path, verify=False).positions == 14


class Bomb:
    """Unpickling this would be noticed."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize("verify", [True, False])
def test_pickles_are_refused(tmp_path, verify):
    fill(tmp_path)
    path = tmp_path / "chunk-00000.draft.npy"
    np.save(path, np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="chunk 0"):
        open_trace(tmp_path, verify=verify)
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match="chunk 0"):
        open_trace(tmp_path, verify=verify)


@pytest.mark.parametrize("array", [np.zeros((5, V + 1), "<f4"), np.zeros((5, V), "<f8")])
def test_arrays_of_another_layout_are_refused(tmp_path, array):
    fill(tmp_path)
    np.save(tmp_path / "chunk-00000.verifier.npy", array)
    with pytest.raises(UserError, match=r"chunk 0 .* holds float.* not float32 \[5, 7\]"):
        open_trace(tmp_path, verify=False)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"odd"', b'"even"', "line 2: the entry of chunk 1 or the header has been altered"),
        (b'"first":2', b'"first":1', "line 1: the entry of chunk 0"),
        (b'"chunk":1', b'"chunk":5', "line 2: the entry of chunk 5"),
        (b"{", b"", "line 1: not a JSON object"),
    ],
)
def test_an_altered_index_is_noticed(tmp_path, old, new, message):
    fill(tmp_path)
    path = tmp_path / "chunks.jsonl"
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(UserError, match=message):
        open_trace(tmp_path)


def test_an_altered_header_is_noticed(tmp_path):
    fill(tmp_path)
    path = tmp_path / "header.json"
    original = path.read_bytes()
    path.write_bytes(original.replace(b'"seed": 0', b'"seed": 1'))
    with pytest.raises(UserError, match="or the header has been altered"):
        open_trace(tmp_path)
    for data, message in (
        (b"[]", "not a JSON object"),
        (original.replace(b'"format": 1', b'"format": 9'), "format 9 is not 1"),
        (original.replace(b'"seed"', b'"sead"'), r"missing or unknown fields \['sead', 'seed'\]"),
        (original.replace(b'"dtype": "float32"', b'"dtype": "int8"'), "dtype 'int8'"),
    ):
        path.write_bytes(data)
        with pytest.raises(UserError, match=message):
            open_trace(tmp_path)


def test_lost_lines_and_repeated_lines(tmp_path):
    fill(tmp_path)
    path = tmp_path / "chunks.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    assert not open_trace(tmp_path).complete
    path.write_bytes(lines[0] * 2)
    with pytest.raises(UserError, match="line 2: chunk 0 is listed twice"):
        open_trace(tmp_path)


def test_what_is_no_trace(tmp_path):
    with pytest.raises(UserError, match=r"is no trace: it has no header\.json"):
        open_trace(tmp_path / "absent")
    fill(tmp_path)
    (tmp_path / "header.json").unlink()
    with pytest.raises(UserError, match=r"chunks without a header\.json"):
        TraceWriter(tmp_path, header())


def test_another_header_says_what_differs(tmp_path):
    fill(tmp_path)
    other = header(seed=4, draft="e")
    with pytest.raises(UserError, match=r"draft: 'd' != 'e'; seed: 0 != 4"):
        TraceWriter(tmp_path, other)
    assert open_trace(tmp_path).complete


def test_every_field_of_the_header_counts():
    for field in dataclasses.fields(TraceHeader):
        changed = dataclasses.replace(header(), **{field.name: "other"})
        assert [d.split(":")[0] for d in header().differences(changed)] == [field.name]
    assert header().differences(header()) == []


def test_a_resumed_trace_is_the_same_byte_for_byte(tmp_path):
    fill(tmp_path / "whole")
    for chunks in ((0,), (), (1,), (2,)):
        writer = fill(tmp_path / "pieces", chunks)
    assert writer.positions == 14
    assert writer.finished(1).prompt_id == "p1"
    assert files(tmp_path / "pieces") == files(tmp_path / "whole")
    with pytest.raises(ValueError, match="chunk 1 is recorded already"):
        fill(tmp_path / "pieces", (1,))


def test_a_torn_last_line_is_repaired_by_the_writer_only(tmp_path):
    fill(tmp_path / "whole")
    fill(tmp_path / "torn")
    path = tmp_path / "torn" / "chunks.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="line 3 is incomplete"):
        open_trace(tmp_path / "torn")
    assert TraceWriter(tmp_path / "torn", header()).finished(2) is None
    assert open_trace(tmp_path / "torn").positions == 10
    fill(tmp_path / "torn", (2,))
    assert files(tmp_path / "torn") == files(tmp_path / "whole")


def test_files_without_a_line_do_not_count(tmp_path, monkeypatch):
    fill(tmp_path / "whole")
    fill(tmp_path / "cut", (0,))
    with monkeypatch.context() as patch:
        patch.setattr(TraceWriter, "_list", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fill(tmp_path / "cut", (1,))
    assert (tmp_path / "cut" / "chunk-00001.draft.npy").exists()
    assert open_trace(tmp_path / "cut").positions == 5
    fill(tmp_path / "cut", (1, 2))
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_several_processes_keep_an_index_each(tmp_path):
    for shard, chunk in ((0, 0), (1, 1), (0, 2)):
        writer = TraceWriter(tmp_path, header(), shard=shard)
        writer.append(chunk, f"p{chunk}", "all", np.arange(6), logits(0), logits(1))
    assert {f.name for f in tmp_path.glob("*.jsonl")} == {"chunks.jsonl", "chunks-1.jsonl"}
    trace = open_trace(tmp_path)
    assert [chunk.entry.prompt_id for chunk in trace.chunks] == ["p0", "p1", "p2"]
    assert TraceWriter(tmp_path, header(), shard=5).finished(1) is not None


def test_shapes_are_checked(tmp_path):
    writer = TraceWriter(tmp_path, header())
    ok = logits(0)
    for draft, verifier in ((ok, ok[1:]), (ok[:, 1:], ok[:, 1:]), (ok[:0], ok[:0])):
        with pytest.raises(ValueError, match="chunk 0: logits must be"):
            writer.append(0, "p", "all", np.arange(9), draft, verifier)
    with pytest.raises(ValueError, match="need a context of 6 tokens or more, got 5"):
        writer.append(0, "p", "all", np.arange(5), ok, ok)
    assert files(tmp_path).keys() == {"header.json"}


def test_an_entry_is_sealed_with_its_header():
    entry = ChunkEntry(0, "p", "all", 5, 2, False, {"draft": "00"})
    line = entry.to_line(b"one header")
    assert ChunkEntry.from_line(line, b"one header", "here") == entry
    assert json.loads(line)["prompt_id"] == "p"
    with pytest.raises(UserError, match="here: the entry of chunk 0"):
        ChunkEntry.from_line(line, b"another header", "here")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def half(file):
        file.write(b"ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, half)
    assert files(tmp_path) == {"file": b"old"}

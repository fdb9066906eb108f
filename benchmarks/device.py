"""What an accelerator would have to do: kernels, waits of the host and bytes, on any machine.

    python -m benchmarks.device      # some minutes on one core; the table of docs/performance.md

On a device a law costs the kernels that are launched, the bytes that they move, and the times that
the host has to wait for a number. All three are counted on a CPU, operation by operation:

* kernels: operations that read or write memory; views and empty tensors are none;
* waits: numbers that are asked for (`item`, `tolist`, `if tensor:`), and operations whose result
  has a size that the host has to know (`nonzero`, a mask as an index, `unique`);
* bytes: what each kernel reads and writes, once; of a gather what it picks. Shown over the least
  that a law needs: two reads and one write of the rows.

Nothing is timed, and nothing is claimed of a device that is not there.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.rule_step import middle_setting
from real_models.decoding.verifying.by_token import verify
from real_models.decoding.verifying.candidates import Candidates
from real_models.laws.distributions import SamplingSettings
from sim.checks import require_count
from sim.commandline import Parser, execute
from sim.jobs.files import write_json
from sim.jobs.manifest import versions
from sim.jobs.progress import track
from sim.report.calibrated import aligned
from theory import RULES, Rule, certified_divergence, frontier_step, one_step
from theory.arrays import basis
from theory.terminal.documents import put_between

__all__ = ["Call", "Work", "calls", "count", "count_all", "device_table", "main"]

RESULTS = Path(__file__).with_name("results") / "device.json"
PAGE = Path(__file__).resolve().parents[1] / "docs/performance.md"

ROWS, VOCABULARY, TEXTS, DRAFTS = 64, 151_936, 8, 8
HELD = 512  # tokens of a row, at which tests/test_device.py holds kernels and waits
_ASKED = {"item", "tolist", "cpu", "__bool__", "__int__", "__float__", "__index__"}
_SIZED = {"nonzero", "masked_select", "_unique2", "unique_dim", "bincount", "repeat_interleave"}
_PICKS = {"gather", "index_select", "take_along_dim", "index", "embedding"}
_NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach"}


@dataclass
class Work:
    """What one call asks of a device."""

    kernels: int = 0
    waits: int = 0
    bytes: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)


class Call(NamedTuple):
    """What is counted: a name, the rule or setting, and the call."""

    name: str
    of: str
    run: Callable[[], Any]


class _Kernels(TorchDispatchMode):
    """Counts the operations that reach the device."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense" or name in _NOTHING or _is_view(func):
            return out  # the number that is asked for is counted where it is asked for
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        masks = name in ("index", "index_put_") and any(t.dtype == torch.bool for t in given[1:])
        self.work.waits += name in _SIZED or masks
        self.work.kernels += 1
        self.work.by_kind[name] = self.work.by_kind.get(name, 0) + 1
        read = given[1:] + made if name in _PICKS else given
        self.work.bytes += sum(map(_size, read)) + sum(map(_size, made))
        return out


class _Waits(TorchFunctionMode):
    """Counts the numbers that the host asks for."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in _ASKED:
            self.work.waits += 1
            with torch._C.DisableTorchFunction():
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def count(call: Callable[[], Any]) -> Work:
    """Run a call once, and count what it asks of a device."""
    work = Work()
    with mock.patch.object(basis, "HOST", ()), _Waits(work), _Kernels(work):
        call()
    return work


def _is_view(func: Any) -> bool:
    """Whether the result shares the memory of an argument, and nothing is written."""
    found = [value.alias_info for value in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in found)


def _size(tensor: torch.Tensor) -> int:
    """Bytes of the elements that exist: an expanded dimension is one of them."""
    sizes = [n for n, step in zip(tensor.shape, tensor.stride()) if step or n == 0]
    return int(np.prod(sizes, dtype=np.int64)) * tensor.element_size()


def calls(vocabulary: int = VOCABULARY, seed: int = 0) -> Iterator[Call]:
    """Everything that is counted, on float32 rows: a verifier of normal logits, a noisy draft.

    Every rule is at the middle of its default values.
    """
    generator = torch.Generator().manual_seed(seed)
    wanted = 3.0 * torch.randn(ROWS, vocabulary, generator=generator)
    drafted = wanted + 3.0 * torch.randn(wanted.shape, generator=generator)
    p, q = drafted.softmax(-1), wanted.softmax(-1)
    for name, rule in _rules():
        yield Call("one_step", name, partial(one_step, rule, p, q))
    yield Call("frontier_step", "", partial(frontier_step, p, q, 0.05))
    yield Call("certified_divergence", "lenience", partial(certified_divergence, q, _lenience()))
    for text in ("T=1", "T=0.6 top-p 0.95 top-k 20"):
        sampling = SamplingSettings.parse(text)
        yield Call("probabilities", text, partial(sampling.probabilities, wanted))
    behind = 3.0 * torch.randn(TEXTS, 1, vocabulary, generator=generator)
    verified = torch.cat([wanted.reshape(TEXTS, DRAFTS, -1), behind], dim=1).flatten(0, 1)
    tokens = p.multinomial(1, generator=generator).reshape(TEXTS, DRAFTS).tolist()
    plain = Candidates(tokens, p, verified.softmax(-1))
    raw = replace(plain, p_raw=plain.p, q_raw=plain.q)
    uniforms = np.random.default_rng(seed).random((TEXTS, DRAFTS + 1, 2))
    for name, rule in _rules():
        candidates = raw if rule.reads_raw else plain
        yield Call("decoder's step", name, partial(verify, rule, candidates, uniforms))


def _rules() -> Iterator[tuple[str, Rule]]:
    return ((name, middle_setting(name).build()) for name in RULES)


def _lenience() -> Rule:
    return middle_setting("lenience").build()


def count_all(vocabulary: int) -> list[dict[str, Any]]:
    """One row a call: what it is, its kernels and waits, and its bytes over the minimum."""
    minimum = 3 * 4 * ROWS * vocabulary
    found = []
    for call in track(list(calls(vocabulary)), "device", "call"):
        work = count(call.run)
        row = {"call": call.name, "of": call.of, "kernels": work.kernels, "waits": work.waits}
        found.append(row | {"over_minimum": round(work.bytes / minimum, 2)})
    return found


def device_table() -> str:
    """The table of docs/performance.md, from the recorded counts."""
    recorded = json.loads(RESULTS.read_text(encoding="utf-8"))["calls"]
    head = ("call", "of", "kernels", "waits", "bytes / minimum")
    lines = [head, ("---", "---", "---:", "---:", "---:"), *map(_words, recorded)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _words(row: dict[str, Any]) -> tuple[str, ...]:
    bytes_ = f"{row['over_minimum']:.1f}"
    return (row["call"], row["of"], f"{row['kernels']:,}", str(row["waits"]), bytes_)


def main(arguments: list[str] | None = None) -> int:
    """Count everything, write and tell it; returns the exit status."""
    return execute(_parser, _work, arguments)


def _parser() -> Parser:
    parser = Parser("benchmarks.device", description=__doc__)
    parser.add_argument("--vocab", type=int, default=VOCABULARY, help="tokens of a row")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file of the counts")
    return parser


def _work(options: argparse.Namespace) -> int:
    require_count("--vocab", options.vocab, 32)
    found = count_all(options.vocab)
    document = {
        "rows": ROWS,
        "vocabulary": options.vocab,
        "step": {"texts": TEXTS, "drafts": DRAFTS},
        "held": {"vocabulary": HELD, "calls": count_all(HELD)},
        "versions": versions("torch"),
        "calls": found,
    }
    write_json(options.out, document)
    head = ("", "of", "kernels", "waits", "bytes / minimum")
    print("\n".join(aligned([head, *map(_words, found)])))
    if options.out == RESULTS:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(put_between(text, "device", device_table()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

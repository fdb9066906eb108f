"""Kernels and waits of every rule, counted; what was recorded is not exceeded."""

import json
import re
from pathlib import Path

import pytest
import torch

from benchmarks.device import HELD, RESULTS, count, count_all, device_table

RECORDED = json.loads(RESULTS.read_text(encoding="utf-8"))
PAGE = Path(__file__).resolve().parents[1] / "docs/performance.md"
ROWS = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("call", "kernels", "waits", "bytes_"),
    [
        (lambda: ROWS + 1.0, 1, 0, 96),
        (lambda: ROWS[1:].T, 0, 0, 0),  # views
        (lambda: ROWS.sum().item(), 1, 1, 52),
        (lambda: bool((ROWS > 3).any()), 2, 2 - 1, 48 + 12 + 12 + 1),
        (lambda: ROWS.tolist(), 0, 1, 0),
        (lambda: ROWS[0].expand(100, 4) * 2.0, 1, 0, 16 + 1600),
        (lambda: torch.nonzero(ROWS), 1, 1, 48 + 11 * 2 * 8),
        (lambda: ROWS[ROWS > 5], 2, 1, 48 + 12 + 12 + 2 * 24),
        (lambda: ROWS.gather(1, torch.zeros(3, 1, dtype=torch.int64)), 2, 0, 24 + 24 + 12 + 12),
    ],
)
def test_operations_count_as_they_cost(call, kernels, waits, bytes_):
    found = count(call)
    assert (found.kernels, found.waits, found.bytes) == (kernels, waits, bytes_)


def test_no_kernel_and_no_wait_creeps_in():
    """Where there are fewer than were recorded, `python -m benchmarks.device` records them."""
    assert RECORDED["held"]["vocabulary"] == HELD
    held = {(row["call"], row["of"]): row for row in RECORDED["held"]["calls"]}
    found = {(row["call"], row["of"]): row for row in count_all(HELD)}
    assert found.keys() == held.keys()
    more = {
        name: (row["kernels"], row["waits"])
        for name, row in found.items()
        if row["kernels"] > held[name]["kernels"] or row["waits"] > held[name]["waits"]
    }
    assert more == {}


def test_the_page_shows_the_recorded_counts():
    text = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- device -->\n(.*?)\n<!-- end of device -->", text, re.S)
    assert table == device_table()

"""What the integrations' tests share: all of them need PyTorch, and one thread of it."""

import os

import pytest

torch = pytest.importorskip("torch", reason='needs the optional install ".[real]"')


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Everything here is small, and tests run side by side: more threads wait for each other."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

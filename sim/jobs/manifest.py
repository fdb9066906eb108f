"""What produced a result: arguments, seed, versions, revision of the code, time."""

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

__all__ = ["code_digest", "git_revision", "make_manifest", "versions", "write_json"]

_PACKAGES = (
    "speculative-lab",
    "numpy",
    "scipy",
    "array-api-compat",
    "pandas",
    "pyarrow",
    "matplotlib",
    "joblib",
)


def make_manifest(
    command: str, arguments: Mapping[str, Any], seconds: float, **facts: Any
) -> dict[str, Any]:
    """The facts of a run: command, arguments, versions, revision, wall time in seconds."""
    return {
        "command": command,
        "arguments": dict(arguments),
        **facts,
        "versions": versions(),
        "code": code_digest("theory", "sim"),
        "git": git_revision(),
        "wall_seconds": round(seconds, 2),
    }


def versions(*more: str) -> dict[str, str]:
    """Versions of Python, of the system and of the installed packages that results depend on."""
    found = {"python": platform.python_version(), "system": f"{sys.platform} {platform.machine()}"}
    for package in (*_PACKAGES, *more):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_revision() -> dict[str, Any] | None:
    """Commit of the code that runs and whether its files were changed; None outside a checkout."""
    here = Path(__file__)
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    commit = _git(here.parent, "rev-parse", "HEAD")
    changed = _git(here.parent.parent, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": bool(changed)}


def code_digest(*rooms: str) -> str:
    """A digest of the source of whole packages: it changes with any line of theirs."""
    digest = hashlib.sha256()
    for room in rooms:
        for path in sorted(Path(str(files(room))).rglob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def write_json(document: Any, path: Path) -> None:
    """Write a JSON document in one step: a reader sees the old file or the new one, never half."""
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    draft.replace(path)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()

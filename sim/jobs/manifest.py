"""What produced a result: arguments, seed, versions, revision of the code, time."""

import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from sim.extensions import digest

__all__ = ["Code", "code_digest", "git_revision", "make_manifest", "versions"]

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


@dataclass(frozen=True)
class Code:
    """The code that a result depends on: this project's packages, installed ones, and imports."""

    rooms: tuple[str, ...] = ("theory", "sim")
    packages: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Versions and a digest of the source: equal facts give equal results."""
        own = {"versions": versions(*self.packages), "code": code_digest(*self.rooms)}
        imported = digest()
        return own | ({"extensions": imported} if imported else {})

    @property
    def stamp(self) -> str:
        """The same as text."""
        return json.dumps(self.facts(), sort_keys=True)


def make_manifest(
    command: str,
    arguments: Mapping[str, Any],
    seconds: float,
    code: Code = Code(),
    **facts: Any,
) -> dict[str, Any]:
    """The facts of a run: command, arguments, versions, revision, wall time in seconds."""
    return {
        "command": command,
        "arguments": dict(arguments),
        **facts,
        **code.facts(),
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


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()

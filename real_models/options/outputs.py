"""A file that a command writes when its work is done: looked at before, so that no work is lost."""

import tempfile
from pathlib import Path

from real_models.errors import UserError
from sim.jobs.files import make_folder

__all__ = ["require_writable"]


def require_writable(path: Path | None) -> None:
    """See to it that `--out` can be written as a whole file; its folder is made. None is no file.

    Raises UserError where a folder stands in its place, or a device or a pipe, which a whole file
    would replace; OSError where nothing can be written beside it.
    """
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"--out {path} is a folder; name a file")
    if path.exists() and not path.is_file():
        raise UserError(f"--out {path} is a device or a pipe; name a file")
    make_folder(path.parent)
    with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.parent):
        pass

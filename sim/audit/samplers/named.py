"""Samplers as a command line names them: MODULE_OR_FILE:FUNCTION, a right one, a stand-in."""

import sys
from pathlib import Path
from types import ModuleType

from sim.audit.samplers.calling import Sampler
from sim.audit.samplers.faults import faulty_samplers
from sim.audit.samplers.reference import reference_sampler
from sim.checks import unknown_name
from sim.extensions import load
from theory import Rule

__all__ = ["named_sampler"]


def named_sampler(text: str, rule: Rule | None, verification: str) -> Sampler:
    """The sampler of "mine.py:verify", "package.module:verify", "reference" or "fault:NAME".

    A file is executed, a module imported, as `--import` does. Raises ValueError for what is not
    there, for whatever goes wrong in it, and for what is no function.
    """
    if text == "reference":
        if rule is None:
            raise ValueError("--sampler reference needs --rule: it is a right sampler of that")
        return reference_sampler(rule, verification)
    source, _, name = text.rpartition(":")
    if not source:
        raise ValueError(f"--sampler {text!r}: expected MODULE_OR_FILE:FUNCTION")
    return _stand_in(name) if source == "fault" else _imported(source, name)


def _stand_in(name: str) -> Sampler:
    known = faulty_samplers()
    if name not in known:
        raise unknown_name("stand-in", name, known)
    return known[name].sampler


def _imported(source: str, name: str) -> Sampler:
    try:
        load(source)
    except ValueError as error:
        raise ValueError(str(error).replace("--import", "--sampler", 1)) from error
    found = getattr(_module(source), name, None)
    if not callable(found):
        raise ValueError(f"--sampler {source}:{name}: there is no function {name!r}")
    return found


def _module(source: str) -> ModuleType | None:
    """What `load` has brought: by its name, or by the file that it was executed from."""
    path = str(Path(source).expanduser().resolve())
    files = (m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == path)
    return sys.modules.get(source) or next(files, None)

"""Rules of one's own: modules and files that a command line imports, and its workers too.

`--import half.py` executes the file, whose rules register themselves. A worker process knows
nothing of that: `loaded` says what was imported, and `ensure` repeats it there. `digest` changes
with the imported code, so that results of an edited rule are never taken for those of the old one.
"""

import hashlib
import importlib
import importlib.util
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

import theory
from theory import RULES, Rule, one_step

__all__ = ["Extension", "check_rule", "digest", "ensure", "load", "loaded"]


class Extension(NamedTuple):
    """What was imported, and the digest of its source: a dotted name or the path of a file."""

    source: str
    digest: str


_LOADED: dict[Path | str, Extension] = {}
_FILES: dict[str, str] = {}  # path → digest of every source file that the imports brought in

_OURS = {"theory", "sim", "real_models", "benchmarks"}
_INSTALLED = {"site-packages", "dist-packages"}  # versions of packages are no code of one's own
_LABORATORY = Path(theory.__file__).parent
_DRAFT = np.array([[0.05, 0.8, 0.15, 0.0], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 0.5, 0.5]])
_VERIFIER = np.array([[0.3, 0.35, 0.35, 0.0], [0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.0, 0.0]])
_SLACK = 1e-7


def load(text: str) -> None:
    """Import a module by its dotted name, or a file by its path; a second time is none.

    Rules that a failing import has registered are taken back. Raises ValueError of one line for
    a file that is not there, for whatever goes wrong in it, and for one that was imported by this
    process with other contents.
    """
    len(RULES)  # rules of installed packages come first, whatever was asked for so far
    rules, modules = set(RULES), set(sys.modules)
    try:
        found = _file(text) if _is_file(text) else _module(text)
        if _LOADED.get(found.place, found.extension).digest != found.extension.digest:
            raise ValueError("it has changed since it was imported; start Python anew")
        if found.place not in _LOADED:
            found.bring()
            _remember(found, sys.modules.keys() - modules)
    except (Exception, SystemExit) as error:
        for name in set(RULES) - rules:
            del RULES[name]
        raise ValueError(f"--import {text}: {_told(error)}") from error


def loaded() -> tuple[Extension, ...]:
    """What was imported so far, in its order; picklable, for `ensure`."""
    return tuple(_LOADED.values())


def ensure(extensions: Iterable[Extension]) -> None:
    """Import, in a worker process, what is not imported there; costs nothing the second time.

    Raises ValueError as `load` does, and where a file is no longer the one that was imported first.
    """
    for extension in extensions:
        if extension in _LOADED.values():
            continue
        load(extension.source)
        if extension not in _LOADED.values():
            raise ValueError(f"--import {extension.source}: it was changed while it was in use")


def digest() -> str:
    """A digest of all code that rules come from and that is not the laboratory's; "" for none.

    It covers the imported files, those of their own folders that they import, and the modules of
    every registered rule.
    """
    files = dict(_FILES)
    for rule in RULES.values():
        path = getattr(sys.modules.get(rule.__module__), "__file__", None)
        if path and not rule.__module__.startswith("theory."):
            files.setdefault(path, _digest_of(Path(path)))
    text = "".join(f"{Path(path).name}\0{of}\n" for path, of in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16] if files else ""


def check_rule(rule: Rule) -> None:
    """Raise ValueError where a rule that is not the laboratory's emits no distribution.

    It is tried on three small rows, in which each of p and q is 0 somewhere: whatever goes wrong
    there, in one line, instead of in the midst of a long work or never.
    """
    if type(rule).__module__.startswith("theory."):
        return
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            law = one_step(rule, _DRAFT, _VERIFIER, p_raw=_DRAFT, q_raw=_VERIFIER)
            output, accepted = np.asarray(law.output), np.asarray(law.acceptance)
    except Exception as error:
        raise ValueError(f"{rule}: {type(error).__name__}: {error}") from error
    # The laws of the laboratory's own rules are this close to distributions, and far closer.
    for what, values, low, high in (
        ("output", output, 0.0, 1.0),
        ("sum of the output", output.sum(axis=-1), 1.0, 1.0),
        ("acceptance", accepted, 0.0, 1.0),
    ):
        wrong = ~((values >= low - _SLACK) & (values <= high + _SLACK))
        if wrong.any():
            told = f"p = {_DRAFT[np.argwhere(wrong)[0][0]].tolist()}"
            bounds = "1" if low == high else "in [0, 1]"
            raise ValueError(
                f"{rule}: the {what} must be {bounds}, got {values[wrong][0]:.6g} at {told}"
            )


def _is_file(text: str) -> bool:
    return text.endswith(".py") or not all(map(str.isidentifier, text.split(".")))


class _Found(NamedTuple):
    """Where the code is, what it holds, how it is imported, and the folder that it belongs to."""

    place: Path | str
    extension: Extension
    bring: Callable[[], object]
    folder: Path | None


def _file(text: str) -> _Found:
    """A file, which is executed from the very bytes that the digest is of."""
    path = Path(text).expanduser().resolve()
    source = path.read_bytes()
    there = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    known = any(file and Path(file) == path for file in there)
    extension = Extension(str(path), hashlib.sha256(source).hexdigest())
    return _Found(path, extension, lambda: known or _execute(path, source), path.parent)


def _execute(path: Path, source: bytes) -> None:
    # Not through Python's cache of bytecode, which takes a file of equal size edited within the
    # same second for the old one. The name is one that no other file or module has.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    _search(path.parent)
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise


def _module(text: str) -> _Found:
    """A module; one whose file was imported by its path is that file."""
    _search(Path.cwd())  # as `python -m` does, and a console script does not
    spec = importlib.util.find_spec(text)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {text!r}")
    path = Path(spec.origin).resolve() if spec.has_location and spec.origin else None
    known = path in _LOADED
    extension = _LOADED[path] if known else Extension(text, _digest_of(path))
    folder = path and path.parents[text.count(".") - (path.name != "__init__.py")]
    return _Found(path or text, extension, lambda: importlib.import_module(text), folder)


def _search(folder: Path) -> None:
    """Let modules of the folder be found, after all others."""
    if str(folder) not in sys.path and not (folder == Path.cwd() and "" in sys.path):
        sys.path.append(str(folder))


def _remember(found: _Found, modules: Iterable[str]) -> None:
    """Note the extension, and the files beside it that it has brought in."""
    _LOADED[found.place] = found.extension
    _FILES[str(found.place)] = found.extension.digest
    for name in modules:
        file = getattr(sys.modules[name], "__file__", None)
        if file and found.folder and name.partition(".")[0] not in _OURS:
            path = Path(file).resolve()
            if path.is_relative_to(found.folder) and not _INSTALLED & {*path.parts}:
                _FILES.setdefault(str(path), _digest_of(path))


def _digest_of(path: Path | None) -> str:
    """The digest of a file; of none, as a module inside an archive has, that of nothing."""
    source = path.read_bytes() if path and path.is_file() else b""
    return hashlib.sha256(source).hexdigest()


def _told(error: BaseException) -> str:
    """The error in one line, with the line of the imported code where it arose."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    if isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError):
        return f"{error.strerror}: {error.filename}"
    frames = traceback.extract_tb(error.__traceback__)
    inner = [f for f in frames if f.filename != __file__ and not f.filename.startswith("<frozen")]
    # The last line outside the laboratory: that of `@register`, not the one inside it.
    own = [f for f in inner if not Path(f.filename).is_relative_to(_LABORATORY)] or inner
    where = f"{Path(own[-1].filename).name} line {own[-1].lineno}: " if own else ""
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{where}{kind}{error}"

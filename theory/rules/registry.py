"""The rules by name: those of the laboratory, registered ones, and those of installed packages."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
import warnings
from collections.abc import Iterator, MutableMapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from theory.rules.base import Rule

__all__ = ["GROUP", "Registry"]

GROUP = "speculative_lab.rules"
"""Entry points of this group name rule classes, or modules that register some."""


class Registry(MutableMapping[str, type[Rule]]):
    """Rule classes by name.

    Packages that are installed are asked for theirs when all names are wanted, or one that is not
    known; one that is broken is left out, with one line of warning that names it.
    """

    def __init__(self) -> None:
        self._known: dict[str, type[Rule]] = {}
        self._asked = False

    def __getitem__(self, name: str) -> type[Rule]:
        if name not in self._known:
            self._ask()
        return self._known[name]

    def __setitem__(self, name: str, cls: type[Rule]) -> None:
        self._known[name] = cls

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        self._ask()
        return iter(self._known)

    def __len__(self) -> int:
        self._ask()
        return len(self._known)

    def add(self, cls: type[Rule]) -> None:
        """Add a class under its name; ValueError for one that is no rule, or a name taken."""
        _check(cls)
        taken = self._known.get(cls.name)
        if taken is not None:
            where = f"{taken.__module__}.{taken.__qualname__}"
            raise ValueError(f"a rule named {cls.name!r} is registered already: {where}")
        cls.parameter = _parameter(cls)
        self._known[cls.name] = cls

    def _ask(self) -> None:
        """Load the entry points of the group, once."""
        if self._asked:
            return
        self._asked = True  # at once: a plugin may look rules up while it is loaded
        for entry in entry_points(group=GROUP):
            before = dict(self._known)
            try:
                self._take(entry.load())
            except (Exception, SystemExit) as error:
                self._known = before
                _warn(entry, error)

    def _take(self, loaded: Any) -> None:
        """Register what an entry point gives; a module has registered its rules itself."""
        if isinstance(loaded, types.ModuleType) or loaded in self._known.values():
            return
        self.add(loaded)


def _warn(entry: EntryPoint, error: BaseException) -> None:
    """Warn in one line, which a file without source keeps from being two."""
    package = entry.dist.name if entry.dist else "an unknown package"
    told = " ".join(f"{type(error).__name__}: {error}".split())
    warnings.warn_explicit(
        f"the rule {entry.name!r} ({entry.value}) of {package} is left out: {told}",
        RuntimeWarning,
        GROUP,
        0,
    )


def _check(cls: Any) -> None:
    """Raise ValueError unless `cls` is a complete rule class with a name one can type."""
    if not (isinstance(cls, type) and issubclass(cls, Rule)):
        raise ValueError(f"a rule is a class derived from theory.Rule, got {cls!r}")
    told = cls.__qualname__
    name = getattr(cls, "name", None)
    if not (isinstance(name, str) and re.fullmatch(r"\w[\w.-]*", name)):
        raise ValueError(f"{told} needs a name of letters, digits, _, . and -, got {name!r}")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise ValueError(f"the rule {name!r} lacks {missing}")
    if "__dataclass_fields__" not in vars(cls) and any(map(_is_field, _own_hints(cls).values())):
        raise ValueError(f"the rule {name!r} has parameters: put @dataclass(frozen=True) above it")


def _own_hints(cls: type[Rule]) -> dict[str, Any]:
    return inspect.get_annotations(cls)


def _is_field(hint: Any) -> bool:
    return typing.get_origin(hint) is not typing.ClassVar and not str(hint).startswith(
        ("ClassVar", "typing.ClassVar", "t.ClassVar")
    )


def _parameter(cls: type[Rule]) -> str | None:
    """The parameter that a sweep varies: the one that the class names, else its first float."""
    for base in cls.__mro__:
        if base is not Rule and "parameter" in vars(base):
            return cls.parameter
    return next((field.name for field in _init_fields(cls) if _is_float(field.type)), None)


def _init_fields(cls: type[Rule]) -> Iterator[dataclasses.Field[Any]]:
    return (field for field in dataclasses.fields(cls) if field.init)


def _is_float(hint: Any) -> bool:
    """Whether an annotation, evaluated or as text, is float or has it among its choices."""
    if isinstance(hint, str):
        return "float" in re.split(r"[^\w.]+", hint)
    return hint is float or float in typing.get_args(hint)

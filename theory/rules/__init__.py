"""Every acceptance rule of the laboratory, and the registry of their names."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from theory.rules.accept_set import ACCEPT_SET_RULES
from theory.rules.base import AcceptSetRule, Rule, TargetRule
from theory.rules.candidate import CANDIDATE_RULES, CandidateRule, TargetOnlyRule
from theory.rules.cascades import CASCADE_RULES
from theory.rules.fixed_rate import FIXED_RATE_RULES
from theory.rules.parameters import plain_parameter
from theory.rules.registry import Registry
from theory.rules.target import TARGET_RULES
from theory.rules.thresholds import THRESHOLD_RULES
from theory.rules.truncated import TRUNCATED_RULES

__all__ = [
    "RULES",
    "AcceptSetRule",
    "CandidateRule",
    "Rule",
    "TargetOnlyRule",
    "TargetRule",
    "make_rule",
    "register",
]

RULES = Registry()
"""Every rule class by its name, those of installed packages included."""


def register(cls: type[Rule]) -> type[Rule]:
    """Add a rule class under its ``name``, and return it: usable as a decorator.

    A rule in a module or a file of one's own is known to every command line, and to its worker
    processes, with ``--import MODULE_OR_FILE``; that of an installed package by an entry point of
    the group ``speculative_lab.rules``. Where the class names no ``parameter``, a sweep varies its
    first field of type float.

    Raises
    ------
    ValueError
        For a name that is missing or taken, a method that is missing, and a class with parameters
        that is no dataclass.
    """
    RULES.add(cls)
    return cls


_CLASSES: list[type[Rule]] = [
    *TARGET_RULES,
    *CASCADE_RULES,
    *CANDIDATE_RULES,
    *ACCEPT_SET_RULES,
    *THRESHOLD_RULES,
    *TRUNCATED_RULES,
    *FIXED_RATE_RULES,
]
for _cls in _CLASSES:
    register(_cls)


def make_rule(name: str, **parameters: Any) -> Rule:
    """Return the rule ``name`` with these parameters: ``make_rule("cactus", delta=0.1)``.

    A parameter may be given under the name that an engine has for it, one of the class's
    ``aliases``: ``make_rule("top_n_delta", relaxed_topk=10, relaxed_delta=0.6)``.

    Raises
    ------
    ValueError
        For an unknown rule or parameter (with the nearest known name), a missing parameter, or a
        value outside its range.
    """
    if not isinstance(name, str):
        raise ValueError(f"a rule is named by a text such as 'cactus', got {name!r}")
    if name not in RULES:
        raise ValueError(f"unknown rule {name!r}{_hint(name, list(RULES))}")
    signature = inspect.signature(RULES[name])
    parameters = _own_names(name, parameters)
    for given in parameters:
        if given not in signature.parameters:
            raise ValueError(
                f"rule {name!r} has no parameter {given!r}"
                f"{_hint(given, list(signature.parameters))}"
            )
    missing = [
        n
        for n, p in signature.parameters.items()
        if p.default is inspect.Parameter.empty and n not in parameters
    ]
    if missing:
        raise ValueError(f"rule {name!r} needs the parameter {missing[0]!r}")
    return RULES[name](**{n: plain_parameter(value) for n, value in parameters.items()})


def _own_names(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters under the rule's own names; ValueError for one that is given twice."""
    aliases, named = RULES[name].aliases, {}
    for given, value in parameters.items():
        own = aliases.get(given, given)
        if own in named:
            raise ValueError(f"rule {name!r} is given {own!r} twice: {given!r} is a name of it")
        named[own] = value
    return named


def _hint(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    if not known:
        return ": it has none"
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"

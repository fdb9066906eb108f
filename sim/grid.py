"""Which parameter values a sweep tries for each rule, and how rules are grouped in pictures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.checks import unknown_name
from theory import RULES, make_rule

__all__ = ["DEFAULT_GRID", "KINDS", "RuleGrid", "Setting", "kind_of", "settings"]


@dataclass(frozen=True)
class RuleGrid:
    """The parameter of a rule that a sweep varies, its default values, and the kind of the rule."""

    kind: str
    parameter: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Setting:
    """One rule at one value of its parameter; ("", 0.0) for a rule that has none."""

    rule: str
    parameter: str = ""
    value: float = 0.0

    def build(self) -> Any:
        """The rule itself. Raises ValueError for a value that the rule refuses."""
        return make_rule(self.rule, **self._parameters())

    def _parameters(self) -> dict[str, Any]:
        if not self.parameter:
            return {}
        if self.rule == "typical":  # its two thresholds move together, as its authors recommend
            return {"epsilon": self.value, "alpha": float(np.sqrt(self.value))}
        if self.parameter == "k":
            return {"k": _whole("k", self.value)}
        extra = {"top_n_delta": {"n": 10}}.get(self.rule, {})
        return {self.parameter: self.value, **extra}


def _spaced(values: Iterable[float]) -> tuple[float, ...]:
    """Values of a grid with four digits, so that they read well and repeat exactly."""
    return tuple(float(f"{value:.4g}") for value in values)


_POINTS = 13
_BUDGETS = _spaced(np.geomspace(1e-4, 3, _POINTS))
_SHARES = _spaced(np.linspace(0, 1, _POINTS))
_SIGNED = _spaced(np.linspace(-1, 1, _POINTS))
_SQUARES = _spaced(np.linspace(0, 1, _POINTS) ** 2)
_FACTORS = _spaced(np.geomspace(1, 0.01, _POINTS))
_COUNTS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 256.0)

DEFAULT_GRID: dict[str, RuleGrid] = {
    "sps": RuleGrid("target", "", (0.0,)),
    "lenience": RuleGrid("target", "l", _FACTORS),
    "interpolation": RuleGrid("target", "alpha", _SHARES),
    "ears": RuleGrid("target", "tau", _SQUARES),
    "mentored": RuleGrid("target", "level", _BUDGETS),
    "frontier": RuleGrid("target", "level", _BUDGETS),
    "cascade_chow": RuleGrid("cascade", "alpha", _SHARES),
    "cascade_diff": RuleGrid("cascade", "alpha", _SIGNED),
    "cascade_opt": RuleGrid("cascade", "alpha", _SIGNED),
    "cascade_token_v1": RuleGrid("cascade", "alpha", _SIGNED),
    "cascade_token_v2": RuleGrid("cascade", "alpha", _SHARES),
    "cascade_token_v3": RuleGrid("cascade", "alpha", _SHARES),
    "fuzzy": RuleGrid("cascade", "threshold", _spaced(np.geomspace(1e-4, 0.7, _POINTS))),
    "cactus": RuleGrid("candidate", "delta", _BUDGETS),
    "cactus_exact": RuleGrid("candidate", "delta", _BUDGETS),
    "cactus_target_only": RuleGrid("candidate", "delta", _BUDGETS),
    "target_only": RuleGrid("candidate", "threshold_acc", _FACTORS),
    "typical": RuleGrid("accept set", "epsilon", _spaced(np.geomspace(0.9, 1e-4, _POINTS))),
    "top_k": RuleGrid("accept set", "k", _COUNTS),
    "top_n_delta": RuleGrid("accept set", "delta", _SQUARES),
}

KINDS: tuple[str, ...] = ("target", "cascade", "candidate", "accept set")


def kind_of(rule: str) -> str:
    """The kind of a rule: how it chooses what to accept. Raises ValueError for unknown names."""
    _require_known(rule)
    return DEFAULT_GRID[rule].kind


def settings(
    rules: Sequence[str] | None = None,
    values: Mapping[str, Sequence[float]] | Sequence[float] | None = None,
) -> tuple[Setting, ...]:
    """The settings of a sweep: each rule (all of them by default) at each of its values.

    `values` replaces the default values: a sequence those of every rule, a mapping those of the
    rules that it names. Every setting is built once here, so that a value out of range is refused
    before any work. Raises ValueError for unknown names (with the nearest known one), for values of
    a rule that is not swept and for values out of range.
    """
    chosen = tuple(dict.fromkeys(DEFAULT_GRID if rules is None else rules))
    for rule in chosen:
        _require_known(rule)
    own = values if isinstance(values, Mapping) else dict.fromkeys(chosen, values)
    for rule in own:
        _require_known(rule)
        if rule not in chosen:
            raise ValueError(f"values were given for the rule {rule!r}, which is not swept")
    result = tuple(
        Setting(rule, DEFAULT_GRID[rule].parameter, float(value))
        for rule in chosen
        for value in _values_of(rule, own.get(rule))
    )
    for setting in result:
        setting.build()
    return result


def _values_of(rule: str, values: Sequence[float] | None) -> Sequence[float]:
    grid = DEFAULT_GRID[rule]
    return grid.values if values is None or not grid.parameter else tuple(values)


def _require_known(rule: str) -> None:
    if rule not in RULES:
        raise unknown_name("rule", rule, RULES)


def _whole(argument: str, value: float) -> int:
    if value != int(value):
        raise ValueError(f"{argument} must be an integer, got {value}")
    return int(value)

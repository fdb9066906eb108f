"""Which parameter values a sweep tries for each rule, and how rules are grouped in pictures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from sim.checks import unknown_name
from sim.extensions import check_rule
from theory import RULES, make_rule

__all__ = ["DEFAULT_GRID", "KINDS", "Setting", "kind_of", "settings"]


@dataclass(frozen=True)
class Setting:
    """One rule at one value of its parameter; ("", 0.0) for a rule that has none."""

    rule: str
    parameter: str = ""
    value: float = 0.0

    @property
    def parameters(self) -> dict[str, float]:
        """What `make_rule` takes beside the name.

        The two thresholds of `typical` and `truncated_typical` move together, α = √ε, as the
        authors of the first recommend; all other parameters than the one that varies have their
        defaults.
        """
        parameters = {self.parameter: self.value} if self.parameter else {}
        if self.rule in _TYPICAL and self.value >= 0:
            parameters["alpha"] = sqrt(self.value)
        return parameters

    def build(self) -> Any:
        """The rule itself. Raises ValueError for a value that the rule refuses."""
        return make_rule(self.rule, **self.parameters)


def _spaced(values: Iterable[float]) -> tuple[float, ...]:
    """Values with four digits, so that they read well and repeat exactly."""
    return tuple(float(f"{value:.4g}") for value in values)


_TYPICAL = ("typical", "truncated_typical")
# Round values, a factor of about two apart, with the paper's own 0.75 and 1.
_BUDGETS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1.0, 2.0)
# For KL log(a/b): a factor of 1.05 to 20 between what is kept of the likeliest and the rarest.
_MULTIPLIERS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 8.0)
_SHARES = _spaced(np.linspace(0, 1, 13))
_SIGNED = _spaced(np.linspace(-1, 1, 13))
_SQUARES = _spaced(np.linspace(0, 1, 13) ** 2)
_FACTORS = _spaced(np.geomspace(1, 0.01, 13))
_PROBABILITIES = _spaced(np.geomspace(0.9, 1e-4, 13))
_COUNTS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 256.0)
_MASSES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.999, 1.0)

DEFAULT_GRID: dict[str, tuple[float, ...]] = {
    "sps": (0.0,),
    "lenience": _FACTORS,
    "interpolation": _SHARES,
    "ears": _SQUARES,
    "mentored": _BUDGETS,
    "frontier": _BUDGETS,
    "frontier_corpus": _MULTIPLIERS,
    "cascade_chow": _SHARES,
    "cascade_diff": _SIGNED,
    "cascade_opt": _SIGNED,
    "cascade_token_v1": _SIGNED,
    "cascade_token_v2": _SHARES,
    "cascade_token_v3": _SHARES,
    "fuzzy": _spaced(np.geomspace(1e-4, 0.7, 13)),
    "cactus": _BUDGETS,
    "cactus_exact": _BUDGETS,
    "cactus_target_only": _BUDGETS,
    "target_only": _FACTORS,
    "typical": _PROBABILITIES,
    "top_k": _COUNTS,
    "top_n_delta": _SQUARES,
    "constant_threshold": _FACTORS,
    "ratio_threshold": _FACTORS,
    "truncated_typical": _PROBABILITIES,
    "truncated_top_k": _COUNTS,
    "truncated_top_p": _MASSES,
    "synthetic": _SHARES,
}
"""Default values of the parameter that a sweep varies (`RULES[name].parameter`), by rule."""

KINDS: tuple[str, ...] = (
    "target",
    "truncated",
    "cascade",
    "candidate",
    "target only",
    "accept set",
    "fixed rate",
    "other",
)
# Target rules whose target is the draft or the verifier itself, and those without a draft in it.
_BY_NAME = {"cascade_": "cascade", "fuzzy": "cascade", "truncated_": "truncated"}


def kind_of(rule: str) -> str:
    """How a rule chooses what to accept: one of KINDS; "other" for a rule of another family."""
    for start, kind in _BY_NAME.items():
        if rule.startswith(start):
            return kind
    family = RULES[rule].family if rule in RULES else "other"
    return family if family in KINDS else "other"


def settings(
    rules: Sequence[str] | None = None,
    values: Mapping[str, Sequence[float]] | Sequence[float] | None = None,
) -> tuple[Setting, ...]:
    """The settings of a sweep: each rule (by default all of them) at each of its values.

    `values` replaces the default values: a sequence those of every rule, a mapping those of the
    rules that it names. Every rule is built once here, so that a value out of range is refused
    before any work. Raises ValueError for unknown names (with the nearest known one), for a rule
    without values, for values of a rule that is not swept and for values out of range.
    """
    chosen = tuple(dict.fromkeys(RULES if rules is None else rules))
    own = values if isinstance(values, Mapping) else dict.fromkeys(chosen, values)
    for rule in (*chosen, *own):
        if rule not in RULES:
            raise unknown_name("rule", rule, RULES)
    for rule in own:
        if rule not in chosen:
            raise ValueError(f"values were given for the rule {rule!r}, which is not swept")
    result = tuple(
        Setting(rule, RULES[rule].parameter or "", float(value))
        for rule in chosen
        for value in _values_of(rule, own.get(rule))
    )
    for setting in result:
        try:
            check_rule(setting.build())
        except ValueError as error:
            raise ValueError(f"rule {setting.rule!r}: {error}") from None
    return result


def _values_of(rule: str, values: Sequence[float] | None) -> Sequence[float]:
    if RULES[rule].parameter is None:
        return (0.0,)
    if values is None:
        values = DEFAULT_GRID.get(rule) or RULES[rule].values
    if len(values) == 0:
        raise ValueError(
            f"the rule {rule!r} has no default values: give some, as in --values {rule}=0.1,0.5, "
            "or a line values = (0.1, 0.5) in its class"
        )
    return tuple(dict.fromkeys(values))

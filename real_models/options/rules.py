"""A rule and its parameters on a command line: `--rule cactus --delta 0.5`.

The options are those of the rules' own fields, so that a rule that is registered has them too. A
value with commas is a schedule: `--delta 0.8,0.5` for the first place of a draft and all others.
"""

import argparse
import inspect

from real_models.decoding.verifying.placed_rules import PlacedRules
from real_models.errors import UserError
from sim.extensions import check_rule
from theory import RULES

__all__ = ["add_rule_options", "rules_from"]

_LARGEST_INTEGER = 2**63  # beyond it a number is a float, which may be inf


def add_rule_options(parser: argparse.ArgumentParser, default: str = "sps") -> None:
    """Add `--rule` and one option for every parameter that some rule has.

    To be called last: a parameter whose name the command has taken for something else, as
    `temperature`, becomes `--rule-temperature`.
    """
    group = parser.add_argument_group(
        "rule",
        "A value with commas has one part for each place of a draft, the last for all behind.",
    )
    group.add_argument("--rule", default=default, help=f"one of {', '.join(RULES)}")
    for name, rules in _parameters().items():
        settings = {"dest": _dest(name), "help": f"of {', '.join(rules)}"}
        try:
            group.add_argument(_option(name), **settings)
        except argparse.ArgumentError:
            group.add_argument(_option(f"rule_{name}"), **settings)


def rules_from(args: argparse.Namespace) -> PlacedRules:
    """The rule that the options name; UserError for a parameter it has not, or a bad value."""
    given = {
        name: _values(getattr(args, _dest(name)))
        for name in _parameters()
        if getattr(args, _dest(name)) is not None
    }
    try:
        rules = PlacedRules.make(args.rule, given)
        check_rule(rules.rules[0])
    except (ValueError, TypeError) as error:
        raise UserError(f"--rule {args.rule}: {error}") from None
    return rules


def _parameters() -> dict[str, list[str]]:
    """Parameter, or another name of it, → the rules that have it."""
    found: dict[str, list[str]] = {}
    for name, rule in RULES.items():
        for parameter in (*inspect.signature(rule).parameters, *rule.aliases):
            found.setdefault(parameter, []).append(name)
    return found


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _dest(name: str) -> str:
    return f"rule_{name}"


def _values(text: str) -> float | int | bool | str | list[float | int | bool | str]:
    """The value of a parameter; with commas, one for each place."""
    return [_value(part) for part in text.split(",")] if "," in text else _value(text)


def _value(text: str) -> float | int | bool | str:
    """The text as the kind of number it is written as; other texts are names."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if kind is float or abs(value) < _LARGEST_INTEGER:
            return value
    return text

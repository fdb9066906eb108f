"""A rule and its parameters on a command line: `--rule cactus --delta 0.5`.

The options are those of the rules' own fields, so that a rule that is registered has them too.
"""

import argparse
import inspect

from real_models.errors import UserError
from sim.extensions import check_rule
from theory import RULES, Rule, make_rule

__all__ = ["add_rule_options", "rule_from"]

_LARGEST_INTEGER = 2**63  # beyond it a number is a float, which may be inf


def add_rule_options(parser: argparse.ArgumentParser, default: str = "sps") -> None:
    """Add `--rule` and one option for every parameter that some rule has.

    To be called last: a parameter whose name the command has taken for something else, as
    `temperature`, becomes `--rule-temperature`.
    """
    group = parser.add_argument_group("rule")
    group.add_argument("--rule", default=default, help=f"one of {', '.join(RULES)}")
    for name, rules in _parameters().items():
        settings = {"dest": _dest(name), "help": f"of {', '.join(rules)}"}
        try:
            group.add_argument(_option(name), **settings)
        except argparse.ArgumentError:
            group.add_argument(_option(f"rule_{name}"), **settings)


def rule_from(args: argparse.Namespace) -> Rule:
    """The rule that the options name; UserError for a parameter it has not, or a bad value."""
    given = {
        name: _value(getattr(args, _dest(name)))
        for name in _parameters()
        if getattr(args, _dest(name)) is not None
    }
    try:
        rule = make_rule(args.rule, **given)
        check_rule(rule)
    except (ValueError, TypeError) as error:
        raise UserError(f"--rule {args.rule}: {error}") from None
    return rule


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

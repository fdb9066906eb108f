"""Which rule an engine runs: by environment variables, or by `--additional-config`.

    SPECULATIVE_LAB_RULE="cactus:delta=0.1" vllm serve …
    vllm serve … --additional-config '{"speculative_lab": {"rule": "cactus:delta=0.1"}}'

rule      : its name and parameters, as `read_rule` takes them.
import    : modules or files with rules of one's own, between commas. Those of installed packages
            (entry points `speculative_lab.rules`) are known without.
report    : a file to which one JSON document a finished request is appended.
realised  : 0 leaves the divergences out of log and report; they cost a sort of every visited row.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.extensions import check_rule, load
from theory import Rule, make_rule

__all__ = ["KEY", "PREFIX", "Choice", "choose", "read_rule"]

PREFIX = "SPECULATIVE_LAB_"
"""Of the environment variables."""

KEY = "speculative_lab"
"""In `--additional-config`."""

_NAMES = ("rule", "import", "report", "realised")


@dataclass(frozen=True)
class Choice:
    """A rule, and what is told of its work."""

    rule: Rule
    report: Path | None = None
    realised: bool = True


def choose(additional: Any = None, environment: Mapping[str, str] | None = None) -> Choice | None:
    """The choice of the environment and of an engine's `additional_config`; None for none.

    Raises ValueError of one line for a rule that is not there or cannot run in vLLM, for an unknown
    key, for a value that is given in both places, and for a report that cannot be a file there.
    """
    environment = os.environ if environment is None else environment
    variables = {name: environment.get(PREFIX + name.upper(), "") for name in _NAMES}
    given = {name: text for name, text in variables.items() if text}
    configured = additional.get(KEY, {}) if isinstance(additional, Mapping) else {}
    for name, value in _checked(configured).items():
        if given.setdefault(name, str(value)) != str(value):
            raise ValueError(
                f"{PREFIX}{name.upper()} is {given[name]!r} and {KEY}.{name} is {value!r}: "
                "give one of them"
            )
    if "rule" not in given:
        if given:
            raise ValueError(f"{', '.join(given)} given for vLLM, but no rule")
        return None
    for source in filter(None, given.get("import", "").split(",")):
        load(source.strip())
    report = _report(given["report"]) if "report" in given else None
    return Choice(read_rule(given["rule"]), report, _truth(given.get("realised", "1")))


def read_rule(text: str) -> Rule:
    """The rule that a text names: `sps`, `cactus:delta=0.1`, `frontier:level=0.1,divergence=js`.

    Raises ValueError of one line where there is no such rule or parameter, where the rule emits no
    distribution, and where it reads rows before temperature and filters, which vLLM has not kept.
    """
    name, _, rest = text.partition(":")
    parameters = {}
    for part in filter(None, map(str.strip, rest.split(","))):
        key, equals, value = map(str.strip, part.partition("="))
        if not equals:
            raise ValueError(f"rule {text!r}: {part!r} is not like delta=0.1")
        if key in parameters:
            raise ValueError(f"rule {text!r} gives {key!r} twice")
        parameters[key] = _value(value)
    try:
        rule = make_rule(name.strip(), **parameters)
    except TypeError as error:
        raise ValueError(f"rule {text!r}: {error}") from None
    check_rule(rule)
    if rule.reads_raw:
        raise ValueError(
            f"rule {text!r} reads the rows before temperature and filters, which vLLM has not kept"
        )
    return rule


def _checked(configured: Any) -> dict[str, Any]:
    if not isinstance(configured, Mapping):
        raise ValueError(f"{KEY} must hold {', '.join(_NAMES)} by name, got {configured!r}")
    unknown = [name for name in configured if name not in _NAMES]
    if unknown:
        raise ValueError(f"{KEY} has no {unknown[0]!r}; it knows {', '.join(_NAMES)}")
    return dict(configured)


def _report(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"report {text!r} is no file in a folder that is there")
    return path


def _truth(text: str) -> bool:
    known = {"1": True, "true": True, "0": False, "false": False}
    if text.lower() not in known:
        raise ValueError(f"realised must be 0 or 1, got {text!r}")
    return known[text.lower()]


def _value(text: str) -> float | int | bool | str:
    """A number or a truth value where the text is one; other texts are names."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

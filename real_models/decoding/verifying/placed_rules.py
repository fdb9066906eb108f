"""One rule for each place of a draft: a schedule, as claim 31 of the ledger finds it.

A rule by itself is the schedule of one place: the last rule also decides all places behind it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from real_models.errors import UserError
from theory import Rule, make_rule

__all__ = ["PlacedRules"]


@dataclass(frozen=True)
class PlacedRules:
    """Rules of one name, the first for the first place of a draft and so on."""

    rules: tuple[Rule, ...]

    @classmethod
    def of(cls, rule: "Rule | Sequence[Rule] | PlacedRules") -> Self:
        """A rule, one for each place, or such a schedule; UserError for anything else."""
        if isinstance(rule, cls):
            return rule
        rules = (rule,) if isinstance(rule, Rule) else rule
        if not isinstance(rules, list | tuple) or not rules:
            raise UserError(f"rule must come from make_rule or be a Rule, got {rule!r}")
        for place, one in enumerate(rules):
            if not isinstance(one, Rule):
                raise UserError(f"rule at place {place} must be a Rule, got {one!r}")
            if type(one) is not type(rules[0]):
                names = f"{rules[0].name} and {one.name}"
                raise UserError(f"the rules of a schedule differ in their values, got {names}")
        return cls(tuple(rules))

    @classmethod
    def make(cls, name: str, parameters: Mapping[str, Any]) -> Self:
        """The rule of a name; a parameter that is a list has one value for each place.

        Raises ValueError for lists of different length, and what `theory.make_rule` raises.
        """
        lists = {n: v for n, v in parameters.items() if isinstance(v, list | tuple)}
        lengths = {name: len(values) for name, values in lists.items()}
        if lengths and (len(set(lengths.values())) > 1 or 0 in lengths.values()):
            raise ValueError(f"lists by place must be of one length of at least 1, got {lengths}")
        places = range(next(iter(lengths.values()), 1))
        by_place = [{**parameters, **{n: v[at] for n, v in lists.items()}} for at in places]
        return cls(tuple(make_rule(name, **values) for values in by_place))

    @property
    def name(self) -> str:
        """The name of the rules."""
        return self.rules[0].name

    @property
    def parameters(self) -> dict[str, Any]:
        """The rule's parameters; lists by place where they differ."""
        each = [rule.parameters for rule in self.rules]
        alike = {name: all(one[name] == value for one in each) for name, value in each[0].items()}
        return {n: each[0][n] if same else [one[n] for one in each] for n, same in alike.items()}

    @property
    def reads_raw(self) -> bool:
        """Whether the rules read the rows before temperature and filters."""
        return self.rules[0].reads_raw

    def at(self, place: int) -> Rule:
        """The rule of a place."""
        return self.rules[min(place, len(self.rules) - 1)]

    def groups(self, places: Sequence[tuple[int, int]]) -> Iterator[tuple[Rule, list[int]]]:
        """Each rule with the indices of the (text, place) that it decides."""
        last = len(self.rules) - 1
        for number, rule in enumerate(self.rules):
            found = [i for i, (_, place) in enumerate(places) if min(place, last) == number]
            if found:
                yield rule, found

    def check_length(self, drafts: int) -> None:
        """Raise UserError for values of places that no draft has."""
        if len(self.rules) > max(drafts, 1):
            raise UserError(
                f"{self.name} has values for {len(self.rules)} places, and a draft has {drafts}"
            )

"""What an audit found: the verdict, which part is wrong and how, and how to see it again."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from sim.audit.diagnosis import budget_lines, cells_of, claim_lines, nearest_fault
from sim.audit.evidence.budget import BudgetEvidence
from sim.audit.evidence.claim import ClaimEvidence
from sim.audit.hostile import Blocks
from sim.audit.power import budget_power, claim_power, power_lines

__all__ = ["BudgetReport", "ClaimReport", "Finding", "History", "Question", "Report"]


@dataclass
class Finding:
    """Something that no sampler with this claim may do: the first round that shows it, how many do.

    kind : "raised" (an exception), "malformed", "count", "draft", "token" or "padding" (what came
        back is no answer), or "impossible" and the part.
    sample, row : the round from the start of the audit, and within its batch.
    """

    kind: str
    text: str
    block: str
    sample: int
    row: int | None
    count: int


@dataclass
class History:
    """log e after each batch: of the audit, and of its parts by themselves.

    broken : the sampler raised, or gave back no answer, so that the audit ended there.
    """

    samples: list[int] = field(default_factory=list)
    log_e: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    broken: bool = False

    def add(self, samples: int, log_e: float, parts: dict[str, float]) -> None:
        """Note where the evidence stands after so many samples."""
        self.samples.append(samples)
        self.log_e.append(float(log_e))
        self.parts.append(parts)

    def first_above(self, log_threshold: float) -> int | None:
        """After how many samples the evidence first reached a threshold; None if it never did."""
        above = [n for n, log_e in zip(self.samples, self.log_e) if log_e >= log_threshold]
        return above[0] if above else None


@dataclass(frozen=True)
class Question:
    """What was asked: the sampler, its claim in words and in Python, the settings, the rows.

    `command` is the shell command that asked, with {samples} to fill in; "" where none did.
    """

    sampler: Callable[..., Any]
    claim: str
    code: tuple[str, ...]
    settings: dict[str, Any]
    rows: str
    command: str = ""


@dataclass
class Report:
    """The answer of an audit.

    `rejected` says whether the evidence ever reached 1/level; a right sampler is rejected with
    probability at most `level`. `alarm_at` is after how many rounds it did, `log_e` the logarithm
    of the e-value at the end, `findings` what is wrong whatever the law. `boundary` tells of a
    fault at u = 0, and `randomness` of numbers that do not come from the generator; neither is
    evidence of the samples.
    """

    question: Question
    history: History
    findings: list[Finding]
    pairs: Blocks
    evidence: Any
    boundary: str = ""
    randomness: str = ""

    @property
    def level(self) -> float:
        """The chance that a right sampler is ever rejected is at most this."""
        return float(self.question.settings["level"])

    @property
    def samples(self) -> int:
        """Rounds that were asked for, those of a batch that failed included."""
        return self.history.samples[-1]

    @property
    def log_e(self) -> float:
        """log of the e-value at the end; inf after a round that the claim makes impossible."""
        return self.history.log_e[-1]

    @property
    def alarm_at(self) -> int | None:
        """After how many rounds the evidence first reached 1/level."""
        return self.history.first_above(-np.log(self.level))

    @property
    def rejected(self) -> bool:
        """Whether it ever did."""
        return self.alarm_at is not None

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.rejected:
            return (
                f"REJECTED after {self.alarm_at:,} rounds: it does not emit what it claims "
                f"(a right sampler is ever rejected with probability at most {self.level:g})"
            )
        return f"passed: {self.samples:,} rounds hold nothing against the claim at {self.level:g}"

    @cached_property
    def diagnosis(self) -> list[str]:
        """Which part is wrong and how, a line each; empty where nothing is."""
        seen = any(found.kind == "impossible acceptance" for found in self.findings)
        beside = [self.boundary * (not seen), self.randomness]
        lines = self._finding_lines() + [line for line in beside if line]
        return lines + (self._diagnosis() if self.rejected and not self.history.broken else [])

    def _diagnosis(self) -> list[str]:
        raise NotImplementedError

    @cached_property
    def power(self) -> dict[str, float]:
        """The smallest deviations that these samples would have shown, by what deviates."""
        raise NotImplementedError

    @property
    def reproducer(self) -> str:
        """Python or the command that repeats the audit up to its alarm, ready to paste."""
        raise NotImplementedError

    def lines(self) -> list[str]:
        """The report as text."""
        told = [f"claim: {self.question.claim}", f"rows: {self._rows()}", self.verdict]
        told += [f"  {line}" for line in self.diagnosis]
        if self.power and not self.history.broken:
            told.append("would have been seen with about even odds:")
            told += [f"  {line}" for line in power_lines(self.power)]
        return [*told, "to see it again:", *(f"  {line}" for line in self.reproducer.splitlines())]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def document(self) -> dict[str, Any]:
        """The report as plain values, for JSON: log_e is null where it is infinite."""
        return {
            "claim": self.question.claim,
            "rows": self.question.rows,
            "settings": self.question.settings,
            "rejected": self.rejected,
            "verdict": self.verdict,
            "samples": self.samples,
            "alarm_at": self.alarm_at,
            "log_e": _finite(self.log_e),
            "impossible": bool(self.findings),
            "parts": {part: _finite(value) for part, value in self.history.parts[-1].items()},
            "findings": [vars(finding) for finding in self.findings],
            "boundary": self.boundary,
            "randomness": self.randomness,
            "diagnosis": self.diagnosis,
            "power": {what: _finite(value) for what, value in self.power.items()},
            "reproducer": self.reproducer,
            "history": {
                "samples": self.history.samples,
                "log_e": [_finite(value) for value in self.history.log_e],
            },
        }

    def _rows(self) -> str:
        count, drafts, vocab = self.pairs.shape
        return f"{count} blocks of {drafts} drafts, {vocab} tokens: {self.question.rows}"

    def _finding_lines(self) -> list[str]:
        return [
            f"{found.kind}: {found.text}"
            + (f" (block {found.block!r}, " if found.block else " (")
            + f"sample {found.sample:,}" + ("" if found.row is None else f", row {found.row}")
            + f"; {found.count:,} of {self.samples:,} rounds)"
            for found in self.findings
        ]  # fmt: skip

    def _call(self, function: str) -> str:
        """Python, or the command, that repeats the audit up to its alarm."""
        samples = self.alarm_at or self.samples
        if self.question.command:
            return self.question.command.format(samples=samples)
        name, lines = _import_of(self.question.sampler)
        if self.question.rows == "pairs":
            lines.append("# pairs = the Blocks that were audited")
        settings = self.question.settings | {"samples": samples}
        given = [name, *self.question.code, f"pairs={self.question.rows}"]
        given += [f"{key}={value!r}" for key, value in settings.items()]
        inside = "".join(f"    {argument},\n" for argument in given)
        return "\n".join([*lines, "", f"print(audit.{function}(\n{inside}))"])


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _import_of(sampler: Callable[..., Any]) -> tuple[str, list[str]]:
    """A name for the sampler, and lines that import it; a comment where it has no place."""
    module, name = getattr(sampler, "__module__", None), getattr(sampler, "__qualname__", "")
    lines = ["from sim import audit", "from theory import make_rule"]
    if module and module != "__main__" and name.isidentifier():
        return name, [f"from {module} import {name}", *lines]
    return "sampler", [*lines, "# sampler = the callable that was audited"]


@dataclass
class ClaimReport(Report):
    """The answer to "does it emit the law of this rule?"."""

    evidence: ClaimEvidence

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Every cell that was visited: part, block, place, drafted, token, rounds, law, seen, z."""
        return cells_of(self.evidence, self.pairs.names)

    @cached_property
    def explanation(self) -> tuple[str, float]:
        """The known fault that the outcomes look most like, and how much of the evidence it is."""
        return nearest_fault(self.evidence)

    @cached_property
    def power(self) -> dict[str, float]:
        """The smallest deviations that these samples would have shown, by what deviates."""
        return claim_power(self.evidence, self.level)

    @property
    def reproducer(self) -> str:
        """Python or the command that repeats the audit up to its alarm, ready to paste."""
        return self._call("audit")

    def _diagnosis(self) -> list[str]:
        return claim_lines(self.evidence, self.cells, self.explanation, self.level)


@dataclass
class BudgetReport(Report):
    """The answer to "does it stay within this budget?"."""

    evidence: BudgetEvidence

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Every place: block, place, rounds, the divergence of what was emitted, its log e."""
        names, (_, places, _) = self.pairs.names, self.pairs.shape
        index = pd.MultiIndex.from_product([names, range(places + 1)], names=["block", "place"])
        rounds = self.evidence.observed.sum(axis=-1).astype(np.int64)
        spent, log_e = self.evidence.spent(), self.evidence.log_e_of_places()
        columns = {"rounds": rounds, "divergence": spent.ravel(), "log_e": log_e.ravel()}
        return pd.DataFrame(columns, index=index).reset_index()

    @cached_property
    def power(self) -> dict[str, float]:
        """The smallest divergence that these samples would have shown."""
        return budget_power(self.evidence, self.level)

    @property
    def reproducer(self) -> str:
        """Python or the command that repeats the audit up to its alarm, ready to paste."""
        return self._call("audit_budget")

    def _diagnosis(self) -> list[str]:
        return budget_lines(self.cells, self.level)

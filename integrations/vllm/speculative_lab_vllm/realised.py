"""What a rule did to each request: drafts accepted, and the exact divergence of what was emitted.

At each place that was visited the law of the emitted token given everything before it is known, and
so is its KL divergence from the verifier's law there; at a bonus place it is 0. The sum over a text
estimates, without bias, the KL divergence of the texts with their places from the verifier's, which
bounds that of the texts alone from above. Where p is the one-hot at a drawn token (`None` for the
draft's probabilities) the law is the one given that token: its divergence is exact for a draft that
is certain, and an upper bound in the mean for one that was drawn.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.jobs.files import json_text
from speculative_lab_vllm.drafts import PADDING, Drafts, Verdict
from speculative_lab_vllm.verification import portions
from theory import Rule, divergence
from theory.arrays import to_numpy

__all__ = ["Accounts", "Realised"]


@dataclass
class Realised:
    """The sums of one request over its rounds with a draft.

    tokens counts what the sampler emitted; the engine may cut the last round. visited counts the
    places at which a draft was tested. kl is in nats; acceptance and strict are the sums over the
    visited places of Σ p b and Σ min(p, q). They are nan (null in JSON, as infinity is) where
    nothing was measured.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    visited: int = 0
    kl: float = 0.0
    acceptance: float = 0.0
    strict: float = 0.0

    def add(self, drafted: int, verdict: Verdict, laws: Sequence[Sequence[float]]) -> None:
        """Count one round; `laws` holds (kl, acceptance, strict) of each visited place."""
        self.rounds += 1
        self.drafted += drafted
        self.accepted += verdict.accepted
        self.tokens += verdict.accepted + 1
        self.visited += len(laws)
        for kl, acceptance, strict in laws:
            self.kl += kl
            self.acceptance += acceptance
            self.strict += strict

    def told(self) -> str:
        """The sums in words."""
        text = f"accepted {self.accepted} of {self.drafted} drafts in {self.rounds} rounds"
        if math.isnan(self.kl):
            return text
        per_token = self.kl / self.tokens
        return f"{text}, KL {self.kl:.4g} nats over {self.tokens} tokens ({per_token:.4g} a token)"


@dataclass
class Accounts:
    """The open requests of an engine, and where what became of the finished ones is told.

    rule : what the drafts are tested with. tell : takes one line for the log and one JSON document
    of a finished request. measure : whether laws are computed; that takes a sort of every visited
    row.
    """

    rule: Rule
    tell: Callable[[str, str], None]
    measure: bool = True
    batch: Sequence[str] = ()
    open: dict[str, Realised] = field(default_factory=dict)

    def begin(self, batch: Sequence[str], known: Any) -> None:
        """Note the ids of the requests of the next batch; close those that are known no more."""
        for name in [name for name in self.open if name not in known]:
            self._close(name)
        self.batch = list(batch)

    def close_all(self) -> None:
        """Tell of every request that is open, as at the end of the engine."""
        for name in list(self.open):
            self._close(name)

    def seen(self, drafts: Drafts, verdicts: dict[int, Verdict]) -> None:
        """Count the verdicts of one call, those of requests with drafts."""
        if len(self.batch) != len(drafts.counts):
            return  # a rehearsal of the engine, which no request takes part in
        rows = {
            request: [
                row
                for row in drafts.rows(request)[: verdict.accepted + 1]
                if drafts.tokens[row] != PADDING
            ]
            for request, verdict in verdicts.items()
            if drafts.counts[request]
        }
        laws = self._laws(drafts, [row for visited in rows.values() for row in visited])
        for request, visited in rows.items():
            account = self.open.setdefault(self.batch[request], Realised())
            account.add(drafts.counts[request], verdicts[request], [laws[row] for row in visited])

    def _laws(self, drafts: Drafts, rows: list[int]) -> dict[int, Sequence[float]]:
        """KL(output‖q), acceptance and strict acceptance at each row."""
        if not self.measure:
            return dict.fromkeys(rows, (math.nan,) * 3)
        found: dict[int, Sequence[float]] = {}
        for some in portions(rows, drafts.logits.shape[-1]):
            pair = drafts.pair(some, sort=True)
            law = self.rule.law(pair)
            kl = divergence("kl", law.output, pair.q, validate=False)
            columns = (kl, law.acceptance, 1.0 - pair.total_variation)
            found |= zip(some, zip(*(to_numpy(column).tolist() for column in columns)))
        return found

    def _close(self, name: str) -> None:
        account = self.open.pop(name)
        facts = {"request": name, "rule": self.rule.name, "parameters": self.rule.parameters}
        line = f"request {name}: {self.rule!r} {account.told()}"
        self.tell(line, json_text({**facts, **vars(account)}, indent=None))

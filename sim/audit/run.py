"""The audit itself: drafts are drawn, the sampler is asked, evidence grows, a report comes back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.audit.boundary import accepted_at_zero
from sim.audit.evidence.budget import BALLS, BudgetEvidence
from sim.audit.evidence.claim import ClaimEvidence
from sim.audit.evidence.events import Rounds
from sim.audit.hostile import Blocks, hostile_pairs
from sim.audit.laws.explanations import explanations
from sim.audit.laws.rounds import round_law
from sim.audit.randomness import other_randomness
from sim.audit.report import BudgetReport, ClaimReport, Finding, History, Question
from sim.audit.samplers.calling import Backend, Returned, Sampler, call
from sim.checks import require_between, require_count, unknown_name
from sim.extensions import check_rule
from theory import Rule

__all__ = ["audit", "audit_budget"]

_FIRST_BATCH = 64
_GROWTH = 0.2  # of all rounds so far: guesses are made from most of what was seen
_ENTRIES = 2**23  # of the draft's rows in one batch
_EVEN = 4  # every fourth round drafts evenly among the tokens that its row knows
_BROKEN = ("raised", "malformed")  # faults after which nothing more can be asked


def audit(
    sampler: Sampler,
    rule: Rule,
    *,
    verification: str = "token",
    pairs: Blocks | None = None,
    samples: int = 100_000,
    level: float = 0.01,
    seed: int = 0,
    backend: str = "numpy",
    dtype: str = "float64",
    device: str = "cpu",
    rounding: float = 1e-6,
    batch: int = 8192,
) -> ClaimReport:
    """Whether a sampler emits the law of a rule: drafts that are accepted, recovery, bonus.

    The evidence is an e-process: a right sampler is rejected with probability at most `level`,
    however often one looks and wherever one stops. Drafts are drawn from p and, in every fourth
    round, evenly among its tokens, which is allowed because the law is that given the drafts.

    Parameters
    ----------
    sampler : callable (p, q, drafted, generator) -> (accepted, tokens)
        Batched: p [B, m, V], q [B, m + 1, V] in `dtype`, drafted [B, m] integers; accepted [B] and
        tokens [B, m + 1]: the accepted drafts, the recovery or bonus token, then −1. What comes
        back wrong, and exceptions of its own, are findings.
    rule : Rule
        From `theory.make_rule`; it is the claim, token by token.
    verification : "token" or "block"
        By "block" the claim is block verification (2403.10444) of what the rule emits.
    pairs : Blocks
        Rows to ask about, `hostile_pairs()` by default.
    samples : int
        Rounds to ask for; 10⁵ take seconds.
    backend, dtype, device
        "numpy" or "torch", "float64" or "float32" rows; the law is that of the rounded rows.
    rounding : float
        How much probabilities may differ, relatively, for the sampler to be called right.
    batch : int
        The most rounds in one call.

    Raises ValueError for arguments out of range.
    """
    asked = Asked(sampler, samples, level, seed, backend, dtype, device, batch, pairs)
    require_between("rounding", rounding, 0, 0.1)
    check_rule(rule)
    law = round_law(rule, asked.rows, verification)
    verifier = asked.rows.q.astype(np.float64)
    evidence = ClaimEvidence(law, verifier, explanations(rule, asked.rows, law), rounding)
    history, findings = asked.watch(evidence, evenly=True)
    given = "".join(f", {name}={value!r}" for name, value in rule.parameters.items())
    code = f"make_rule({rule.name!r}{given})", f"{verification=}", f"{rounding=}"
    question = asked.question(f"{rule!r}, verified by {verification}", *code)
    boundary = "" if history.broken else accepted_at_zero(sampler, asked.caller, law)
    elsewhere = "" if history.broken else other_randomness(sampler, asked.caller, law)
    return ClaimReport(question, history, findings, asked.rows, evidence, boundary, elsewhere)


def audit_budget(
    sampler: Sampler,
    divergence: str,
    budget: float,
    *,
    pairs: Blocks | None = None,
    samples: int = 100_000,
    level: float = 0.01,
    seed: int = 0,
    backend: str = "numpy",
    dtype: str = "float64",
    device: str = "cpu",
    batch: int = 8192,
) -> BudgetReport:
    """Whether what a sampler emits stays within a budget of the verifier, whatever its rule.

    The claim: at every place, given that the drafts before it were accepted, the emitted token has
    a law h with KL(h‖q) ≤ budget nats ("kl"), or KL(q‖h) ≤ budget ("reverse_kl"). Drafts are drawn
    from p. Other arguments and errors as in `audit`.
    """
    if divergence not in BALLS:
        raise unknown_name("divergence of a budget", str(divergence), BALLS)
    require_between("budget", budget, 0, np.inf)
    asked = Asked(sampler, samples, level, seed, backend, dtype, device, batch, pairs)
    evidence = BudgetEvidence(asked.rows.q.astype(np.float64), divergence, float(budget))
    history, findings = asked.watch(evidence, evenly=False)
    sides = "output‖q" if divergence == "kl" else "q‖output"
    claim = f"KL({sides}) ≤ {budget:g} nats at every place"
    question = asked.question(claim, repr(divergence), repr(float(budget)))
    elsewhere = "" if history.broken else other_randomness(sampler, asked.caller, None)
    return BudgetReport(question, history, findings, asked.rows, evidence, randomness=elsewhere)


@dataclass
class Asked:
    """A sampler and how it is asked, checked; the loop over batches."""

    sampler: Sampler
    samples: int
    level: float
    seed: int
    backend: str
    dtype: str
    device: str
    batch: int
    pairs: Blocks | None
    caller: Backend = field(init=False)
    rows: Blocks = field(init=False)

    def __post_init__(self) -> None:
        if not callable(self.sampler):
            raise ValueError(f"sampler must be a callable, got {self.sampler!r:.60}")
        require_count("samples", self.samples, 1)
        require_count("seed", self.seed, 0, high=2**64 - 1)
        require_count("batch", self.batch, 1)
        require_between("level", self.level, 0, 0.5, open_low=True)
        pairs = hostile_pairs() if self.pairs is None else self.pairs
        if not isinstance(pairs, Blocks):
            raise ValueError(f"pairs must be audit.Blocks, got {type(pairs).__name__}")
        self.caller = Backend(self.backend, self.dtype, self.device, pairs)
        self.rows = self.caller.blocks

    def question(self, claim: str, *code: str) -> Question:
        """What was asked, to be told and repeated."""
        names = ("samples", "level", "seed", "backend", "dtype", "device", "batch")
        settings = {name: getattr(self, name) for name in names}
        return Question(self.sampler, claim, code, settings, self.rows.source)

    def watch(
        self, evidence: ClaimEvidence | BudgetEvidence, *, evenly: bool
    ) -> tuple[History, list[Finding]]:
        """Ask until `samples` rounds are done, or the sampler fails to answer."""
        draw, answer = np.random.SeedSequence(int(self.seed)).spawn(2)
        drafts, generator = _drafter(self.rows.p, draw, evenly), self.caller.generator(answer)
        history, found, done = History(), _Found(self.rows.names), 0
        while done < self.samples:
            size = min(self._size(done), self.samples - done)
            block = np.arange(done, done + size) % len(self.rows.p)
            drafted = drafts(block, done)
            returned = call(self.sampler, self.caller, generator, block, drafted)
            found.faults(returned, block, done)
            done += size
            if any(fault.kind in _BROKEN for fault in returned.faults):
                history.broken = True
                history.add(done, np.inf, {})
                break
            sound = returned.sound
            rounds = Rounds(block, drafted, returned.accepted, returned.token)[sound]
            found.impossible(evidence.update(rounds), rounds, np.flatnonzero(sound) + done - size)
            log_e = np.inf if found.list else evidence.log_e()
            history.add(done, log_e, evidence.log_e_of_parts())
        return history, found.list

    def _size(self, done: int) -> int:
        """Batches grow with what is known, up to what fits into memory."""
        fits = max(16, _ENTRIES // (self.rows.p.shape[1] * self.rows.p.shape[2]))
        return min(max(_FIRST_BATCH, int(_GROWTH * done)), fits, self.batch)


def _drafter(
    p: np.ndarray, seed: np.random.SeedSequence, evenly: bool
) -> Callable[[np.ndarray, int], np.ndarray]:
    """Draws drafts [B, m] from the rows p [N, m, V] of the blocks [B], by inversion."""
    rng = np.random.default_rng(seed)
    plain = p.astype(np.float64).cumsum(axis=-1)
    even = (p > 0).astype(np.float64).cumsum(axis=-1)

    def drafts(block: np.ndarray, done: int) -> np.ndarray:
        uniform = rng.random((len(block), p.shape[1], 1))
        # Whole runs over the blocks are drawn evenly, so that every block has its share.
        chosen = evenly & ((np.arange(done, done + len(block)) // len(p)) % _EVEN == 0)
        mass = np.where(chosen[:, None, None], even[block], plain[block])
        return (mass <= uniform * mass[..., -1:]).sum(axis=-1)

    return drafts


class _Found:
    """Findings as they come: of each kind the first, and how many rounds have it."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self.list: list[Finding] = []

    def faults(self, returned: Returned, block: np.ndarray, done: int) -> None:
        """What the callable did that no sampler may do."""
        for fault in returned.faults:
            row = fault.row
            where = "" if row is None else self._names[block[row]]
            self._add(fault.kind, fault.text, where, done + (row or 0), row, fault.count)

    def impossible(self, wrong: dict[str, np.ndarray], rounds: Rounds, index: np.ndarray) -> None:
        """Rounds that have no probability under the claim, by the part that is wrong."""
        for part, rows in wrong.items():
            if rows.any():
                row = int(np.argmax(rows))
                where, text = self._names[rounds.block[row]], _told(rounds, row)
                sample = int(index[row])
                self._add(f"impossible {part}", text, where, sample, row, int(rows.sum()))

    def _add(self, kind: str, text: str, block: str, sample: int, row: Any, count: int) -> None:
        known = next((finding for finding in self.list if finding.kind == kind), None)
        if known:
            known.count += count
        else:
            self.list.append(Finding(kind, text, block, sample, row, count))


def _told(rounds: Rounds, row: int) -> str:
    drafts, kept = rounds.drafts[row].tolist(), int(rounds.accepted[row])
    return f"drafted {drafts}, accepted {kept}, then token {int(rounds.token[row])}"

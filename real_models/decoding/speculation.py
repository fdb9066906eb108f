"""Rounds of draft-and-verify on a batch of growing texts, for any rule and any drafter.

Each round drafts up to m tokens per text, runs the verifier once over them, tests them with the
rule, token by token or as one block, and emits the accepted drafts with one token more: a recovery
token behind a rejection, the bonus token where all were accepted.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch

from real_models.decoding.blocks import verify_blocks
from real_models.decoding.drafters import Drafter, ModelDrafter, NoDrafter
from real_models.decoding.observation import Observation, observe
from real_models.decoding.verification import Candidates, Verdict, verify
from real_models.laws.settings_laws import Laws
from real_models.models.cached_model import CachedModel
from real_models.models.logits import CutMass
from theory import Rule

__all__ = ["PARTS", "PURPOSES", "Round", "Speculation", "Stopwatch"]

PARTS = ("prefill", "draft", "verify", "distributions", "rule", "measure")
"""What the time of a run is spent on; "measure" is not part of decoding."""

PURPOSES = 3
"""Random numbers per place of a round: to draft, to test, to draw the token that follows."""


@dataclass
class Stopwatch:
    """Seconds by part; on a CUDA device a part ends when the device has finished it."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started = self._now()
        yield
        self.seconds[part] += self._now() - started

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()


@dataclass(frozen=True)
class Round:
    """One round of one text: the emitted tokens, `accepted` drafts of `drafted` and one more."""

    tokens: list[int]
    drafted: int
    accepted: int
    observed: Observation | None


class Speculation:
    """The models, the rule and their caches for one batch of texts.

    measure : observe exact divergences and likelihoods at every place that was visited.
    verification : one of `theory.blocks.VERIFICATIONS`.
    """

    def __init__(
        self,
        verifier: CachedModel,
        drafter: Drafter,
        rule: Rule,
        laws: Laws,
        *,
        measure: bool = False,
        verification: str = "token",
    ) -> None:
        self._verifier, self._drafter, self._rule, self._laws = verifier, drafter, rule, laws
        self._nothing = NoDrafter(verifier.vocabulary, verifier.device)
        self._measure, self._verification = measure, verification
        self.watch = Stopwatch(verifier.device)

    def check_texts(self, count: int) -> None:
        """Raise UserError where one of the models cannot follow so many texts side by side."""
        for model in (self._verifier, self._drafter):
            if isinstance(model, CachedModel | ModelDrafter):
                model.check_texts(count)

    def cut(self) -> dict[str, CutMass]:
        """By model, the mass on columns that were cut off; models whose columns all count not."""
        models = {"draft": self._drafter, "verifier": self._verifier}
        known = {r: m.cut for r, m in models.items() if isinstance(m, CachedModel | ModelDrafter)}
        return {role: mass for role, mass in known.items() if mass.positions}

    def prefill(self, texts: Sequence[list[int]]) -> None:
        """Let both models read the texts but for the last token, which the first round needs."""
        if min(len(text) for text in texts) > 1:
            with self.watch("prefill"):
                self._verifier.logits([text[:-1] for text in texts], [1] * len(texts))
                self._drafter.prefill(texts)

    def round(self, texts: Sequence[list[int]], uniforms: np.ndarray) -> list[Round]:
        """One round for every text, which is not changed; `uniforms` [texts, m + 1, PURPOSES].

        It drafts up to m tokens.
        """
        count = uniforms.shape[1] - 1
        drafter = self._drafter if count else self._nothing
        with self.watch("draft"):
            proposal = drafter.propose(texts, count, uniforms[:, :-1, 0])
        whole = [text + drafted for text, drafted in zip(texts, proposal.tokens)]
        with self.watch("verify"):
            logits = self._verifier.logits(whole, [len(k) + 1 for k in proposal.tokens])
        logits = torch.cat(logits)
        with self.watch("distributions"):
            contexts = [
                text[: len(text) - behind]
                for text, drafted in zip(whole, proposal.tokens)
                for behind in range(len(drafted), -1, -1)
            ]
            q = self._laws.verifier(logits, contexts)
            q_raw = self._laws.raw(logits) if self._rule.reads_raw else None
            candidates = Candidates(proposal.tokens, proposal.p, q, proposal.p_raw, q_raw)
        with self.watch("rule"):
            check = verify_blocks if self._verification == "block" else verify
            verdicts = check(self._rule, candidates, uniforms[:, :, 1:])
        with self.watch("measure"):
            observed = self._observe(candidates, verdicts, logits)
        return [
            Round([*drafted[: v.accepted], v.token], len(drafted), v.accepted, seen)
            for drafted, v, seen in zip(proposal.tokens, verdicts, observed)
        ]

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Go on with some of the texts, in the order given."""
        self._verifier.keep_rows(rows)
        self._drafter.keep_rows(rows)

    def _observe(
        self, candidates: Candidates, verdicts: list[Verdict], logits: torch.Tensor
    ) -> list[Observation | None]:
        if not self._measure:
            return [None] * len(verdicts)
        return observe(self._rule, candidates, verdicts, logits, self._verification)

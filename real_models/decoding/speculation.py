"""Rounds of draft-and-verify on a batch of growing texts, for any rule and any drafter.

Each round drafts up to m tokens per text, runs the verifier once over them, tests them with the
rule, token by token or as one block, and emits the accepted drafts with one token more: a recovery
token behind a rejection, the bonus token where all were accepted. With several candidates for a
place the drafts are a tree, and those that are tested one path of it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import torch

from real_models.decoding.drafters import Drafter, ModelDrafter, NoDrafter
from real_models.decoding.numbers import Numbers
from real_models.decoding.observation import Observation, observe
from real_models.decoding.trees import check_candidates, chosen_path, grow_tree
from real_models.decoding.verifying.by_block import check_scaled, verify_blocks
from real_models.decoding.verifying.by_token import verify
from real_models.decoding.verifying.candidates import Candidates, Verdict
from real_models.decoding.verifying.placed_rules import PlacedRules
from real_models.laws.settings_laws import Laws
from real_models.models.cached_model import CachedModel
from real_models.models.logits import CutMass
from theory import Rule

__all__ = ["PARTS", "Round", "Speculation", "Stopwatch"]

PARTS = ("prefill", "draft", "verify", "distributions", "rule", "measure")
"""What the time of a run is spent on; "measure" is not part of decoding."""


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
    verification : one of `blocks.VERIFICATIONS`.
    candidates : K, drawn for each place of a draft.
    """

    def __init__(
        self,
        verifier: CachedModel,
        drafter: Drafter,
        rule: Rule | PlacedRules,
        laws: Laws,
        *,
        measure: bool = False,
        verification: str = "token",
        candidates: int = 1,
    ) -> None:
        self._verifier, self._drafter, self._laws = verifier, drafter, laws
        self._rule = PlacedRules.of(rule)
        self.candidates = candidates
        self._nothing = NoDrafter(verifier.vocabulary, verifier.device)
        self._measure, self._verification = measure, verification
        self.watch = Stopwatch(verifier.device)

    def check_texts(self, count: int) -> None:
        """Raise UserError where one of the models cannot follow so many texts side by side."""
        for model in (self._verifier, self._drafter):
            if isinstance(model, CachedModel | ModelDrafter):
                model.check_texts(count)

    def check_drafts(self, drafts: int) -> None:
        """Raise UserError where rule, candidates and drafts do not go together, with the reason."""
        self._rule.check_length(drafts)
        if self._verification == "scaled":
            check_scaled(self._rule)
        check_candidates(self._rule, self._drafter, self.candidates, drafts)

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

    def round(self, texts: Sequence[list[int]], numbers: Numbers) -> list[Round]:
        """One round for every text, which is not changed, of up to `numbers.drafts` drafts."""
        if self.candidates > 1 and numbers.drafts:
            candidates, logits = self._chosen(texts, numbers)
        else:
            candidates, logits = self._drafted(texts, numbers)
        with self.watch("rule"):
            verdicts = self._verify(candidates, numbers)
        with self.watch("measure"):
            observed = self._observe(candidates, verdicts, logits)
        return [
            Round([*drafted[: v.accepted], v.token], len(drafted), v.accepted, seen)
            for drafted, v, seen in zip(candidates.tokens, verdicts, observed)
        ]

    def _drafted(
        self, texts: Sequence[list[int]], numbers: Numbers
    ) -> tuple[Candidates, torch.Tensor]:
        """One draft for each place, and the verifier's logits beside them."""
        drafter = self._drafter if numbers.drafts else self._nothing
        with self.watch("draft"):
            proposal = drafter.propose(texts, numbers.drafts, numbers.nodes)
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
        return Candidates(proposal.tokens, proposal.p, q, proposal.p_raw, q_raw), logits

    def _chosen(
        self, texts: Sequence[list[int]], numbers: Numbers
    ) -> tuple[Candidates, torch.Tensor]:
        """One of several candidates for each place, and the verifier's logits beside them."""
        drafter, children = self._drafter, self.candidates
        with self.watch("draft"):
            tree = grow_tree(drafter, texts, numbers.drafts, children, numbers.nodes)
        with self.watch("verify"):
            logits = self._verifier.branch(texts, tree.nodes, children, 1 + len(tree.nodes[0]))
        proposal, q, logits = chosen_path(
            tree, logits, texts, self._laws, numbers.choices, drafter.ends, self.watch
        )
        return Candidates(proposal.tokens, proposal.p, q), logits

    def _verify(self, candidates: Candidates, numbers: Numbers) -> list[Verdict]:
        if self._verification == "token":
            return verify(self._rule, candidates, numbers.tests)
        scaled = self._verification == "scaled"
        return verify_blocks(self._rule, candidates, numbers.tests, scaled=scaled)

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

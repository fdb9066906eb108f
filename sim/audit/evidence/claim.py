"""Evidence against one law: every part of a round by itself, and known faults as explanations.

The parts are the number of accepted drafts, the acceptance at each place that is reached, the
recovery, the bonus, and the independence of rows. Each has an e-process of its own; their mean,
averaged with that of the explanations, is the audit's. All are e-processes under the claim, so that
the chance that one ever reaches 1/α is at most α, however often one looks.
"""

from collections.abc import Sequence

import numpy as np

from sim.audit.evidence.events import (
    Events,
    Rounds,
    drawn_tokens,
    number_accepted,
    tests_passed,
)
from sim.audit.evidence.learned import Copies, Learned, gains, log_mean_exp
from sim.audit.laws.explanations import Explanation
from sim.audit.laws.rounds import LARGEST_TABLE, RoundLaw

__all__ = ["FLOOR", "PARTS", "ClaimEvidence"]

PARTS = ("accepted drafts", "acceptance", "recovery", "bonus", "independence")
_NAMED = ("acceptance", "recovery", "bonus")  # the parts that an explanation speaks of
FLOOR = 1e-9  # of a probability in a likelihood
_KEPT = 0.02  # the claim's share in every explanation, so that one odd outcome does not end it


class ClaimEvidence:
    """E-processes against the law of a round, on N blocks of m drafts over V tokens.

    rounding ε: the claim holds within it where the sampler's probabilities are at most (1 + ε)b of
    an acceptance, 1 − b + ε of a rejection, (1 + ε)g + ε q of a recovery and (1 + ε)q of a bonus
    token. What the claim makes impossible beyond that makes the evidence infinite at once.
    """

    def __init__(
        self,
        law: RoundLaw,
        verifier: np.ndarray,
        explanations: Sequence[Explanation],
        rounding: float,
    ) -> None:
        self.law, self.explanations, self.rounding = law, list(explanations), rounding
        self._verifier = verifier  # [N, m + 1, V]
        count, more, vocab = verifier.shape
        self.places, self.vocab = more - 1, vocab
        cells = count * self.places
        self.learned: dict[str, dict[str, Learned]] = {
            "accepted drafts": {
                "all": Learned(1, more, pooled=True),
                "block": Learned(count, more),
            },
            "acceptance": {
                "all": Learned(1, 2, pooled=True),
                "place": Learned(self.places, 2, pooled=True),
                "block": Learned(cells, 2),
                "token": Learned(cells * vocab, 2),
            },
            "recovery": {"block": Learned(cells, vocab)},
            "bonus": {"block": Learned(count, vocab)},
        }
        if cells * vocab**2 <= LARGEST_TABLE:
            self.learned["recovery"]["token"] = Learned(cells * vocab, vocab)
        self._copies = Copies(cells * vocab), Copies(cells * vocab), Copies(count)
        self.impossible = dict.fromkeys(PARTS, 0)
        # log-likelihood of the claim, then of each explanation; impossible rounds included.
        self.likelihood = np.zeros(1 + len(self.explanations))
        self._named = np.zeros((len(self.explanations), len(_NAMED)))

    def update(self, rounds: Rounds) -> dict[str, np.ndarray]:
        """Take in a batch; returns which rounds are impossible under the claim, by part, [B]."""
        chances = self.law.chances(rounds.block, rounds.drafts)
        laws = self.law.token_law(rounds.block, rounds.drafts, rounds.accepted)
        tests = tests_passed(rounds, chances, self.rounding)
        tokens = drawn_tokens(rounds, laws, self._verifier, self.rounding)
        self._learn_tests(rounds, tests)
        self._learn_tokens(rounds, tokens)
        length = number_accepted(rounds, self.law, self.rounding)
        self._learn("accepted drafts", length, all=length.place, block=rounds.block)
        self._explain(rounds, tests, tokens)
        wrong = _impossible(rounds, tests, tokens)
        for part, rows in wrong.items():
            self.impossible[part] += int(rows.sum())
        return wrong

    def _explain(self, rounds: Rounds, tests: Events, tokens: Events) -> None:
        ended = rounds.ended
        for at, law in enumerate([self.law, *(known.law for known in self.explanations)]):
            chance = law.chances(rounds.block, rounds.drafts)[tests.row, tests.place]
            passed = np.where(tests.outcome == 1, chance, 1 - chance)
            drawn = law.token_chance(rounds.block, rounds.drafts, rounds.accepted, rounds.token)
            test = _KEPT * tests.chance + (1 - _KEPT) * passed
            token = _KEPT * tokens.chance + (1 - _KEPT) * drawn
            self.likelihood[at] += sum(np.log(np.maximum(x, FLOOR)).sum() for x in (test, token))
            if at:
                gain = gains(token, tokens)
                self._named[at - 1] += (
                    gains(test, tests).sum(), gain[~ended].sum(), gain[ended].sum()
                )  # fmt: skip

    # --- what is learned, in which cells --------------------------------------------------------

    def _learn(self, part: str, events: Events, **cells: np.ndarray) -> None:
        for level, cell in cells.items():
            if level in self.learned[part]:
                self.learned[part][level].update(cell, events)

    def _learn_tests(self, rounds: Rounds, tests: Events) -> None:
        cell = rounds.block[tests.row] * self.places + tests.place
        token = cell * self.vocab + rounds.drafts[tests.row, tests.place]
        everywhere = np.zeros_like(cell)
        self._learn("acceptance", tests, all=everywhere, place=tests.place, block=cell, token=token)
        self._copies[0].update(token, tests)

    def _learn_tokens(self, rounds: Rounds, tokens: Events) -> None:
        ended, back = rounds.ended, ~rounds.ended
        cell = rounds.block[back] * self.places + rounds.accepted[back]
        token = cell * self.vocab + rounds.drafts[back, rounds.accepted[back]]
        self._learn("recovery", tokens[back], block=cell, token=token)
        self._copies[1].update(token, tokens[back])
        self._learn("bonus", tokens[ended], block=rounds.block[ended])
        self._copies[2].update(rounds.block[ended], tokens[ended])

    # --- the sums -------------------------------------------------------------------------------

    def log_e_of_parts(self) -> dict[str, float]:
        """log e of each part; inf where something impossible happened in it."""
        found = {}
        for part, levels in self.learned.items():
            log_e = log_mean_exp([x for cells in levels.values() for x in cells.log_es])
            if part in _NAMED and self.explanations:
                log_e = log_mean_exp([log_e, log_mean_exp(self._named[:, _NAMED.index(part)])])
            found[part] = log_e
        found["independence"] = log_mean_exp([copies.log_e for copies in self._copies])
        return {part: np.inf if self.impossible[part] else log for part, log in found.items()}

    def log_e_of_explanations(self) -> np.ndarray:
        """log of the likelihood ratio of each explanation to the claim."""
        return self._named.sum(axis=-1)

    def log_e(self) -> float:
        """log e of the audit."""
        parts = log_mean_exp(list(self.log_e_of_parts().values()))
        if not self.explanations or parts == np.inf:
            return parts
        return log_mean_exp([parts, log_mean_exp(self.log_e_of_explanations())])


def _impossible(rounds: Rounds, tests: Events, tokens: Events) -> dict[str, np.ndarray]:
    refused = np.bincount(tests.row[~tests.possible], minlength=len(rounds.block)) > 0
    never = ~tokens.possible & ~refused
    return {"acceptance": refused, "recovery": never & ~rounds.ended, "bonus": never & rounds.ended}

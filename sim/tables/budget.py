"""What a budget of a text buys: values whose rounds spend a wanted KL per emitted token.

A round of m drafts emits what it accepts and one token more. It pays the divergence of each place
that it visits; the bonus token is the verifier's own and costs nothing (claim 30). Each place meets
a recorded position at random here: what a draft has met before does not tell what it meets next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.tables.calibration import MET, MISSED, SLACK, TOLERANCE, calibrate
from sim.tables.corpus import Corpus
from sim.tables.grid import Setting
from sim.tables.target import ROUNDING, Point, Target
from theory.frontier import RoundMeans, schedule_at

__all__ = ["Spending", "spend"]

_KL = "kl_output_verifier"
_ROUNDS = 6  # of aiming the schedule at its budget; two or three serve


@dataclass(frozen=True)
class Spending:
    """A rule whose rounds spend the budget: one value for all places, or one for each of them.

    status : of `calibration`; SLACK where no value spends so much.
    """

    rule: str
    parameter: str
    values: tuple[float, ...]
    means: RoundMeans
    status: str


def spend(
    corpus: Corpus,
    rules: Sequence[str],
    level: float,
    drafts: int,
    *,
    tolerance: float = TOLERANCE,
) -> list[Spending]:
    """Each rule at the value that spends `level` nats per emitted token, and the best schedule.

    The schedule is of `frontier_corpus`, one multiplier for each place (claim 31): no other rule
    has more tokens a round at this divergence per token. All means are exact; none exceeds the
    level, and the schedule's is within `tolerance` of it where the rows can spend so much.
    """
    found = [_one_value(corpus, rule, level, drafts, tolerance) for rule in dict.fromkeys(rules)]
    return [*found, _schedule(corpus, level, drafts, tolerance)]


def _one_value(corpus: Corpus, rule: str, level: float, drafts: int, tolerance: float) -> Spending:
    """The value of a rule's parameter, the same at every place."""
    seen: dict[Setting, RoundMeans] = {}

    def evaluate(tried: Sequence[Setting]) -> list[Point]:
        for setting, point in zip(tried, corpus.points(tried, _KL)):
            seen[setting] = RoundMeans((point.acceptance,) * drafts, (point.realised,) * drafts)
        return [Point(seen[s].accepted[0], seen[s].cost_per_token) for s in tried]

    (choice,) = calibrate(evaluate, [rule], Target(_KL, level), tolerance=tolerance)
    setting = choice.setting
    values = (setting.value,) if setting.parameter else ()
    return Spending(rule, setting.parameter, values, seen[setting], choice.status)


def _schedule(corpus: Corpus, level: float, drafts: int, tolerance: float) -> Spending:
    """Multipliers of the interpolated frontier, aimed until their exact means meet the level."""
    aim, status, kept = level, SLACK, None
    for _ in range(_ROUNDS):
        places = schedule_at(corpus.frontier("kl"), aim, drafts)
        settings = [Setting("frontier_corpus", "multiplier", mu) for mu in places.multipliers]
        means = RoundMeans(*map(tuple, zip(*corpus.points(settings, _KL))))
        within = means.cost_per_token <= level * (1.0 + ROUNDING)
        if within or kept is None:
            kept = places, means
            status = SLACK if within else MISSED
        if within and means.cost_per_token >= (1.0 - tolerance) * level:
            status = MET
            break
        aim *= (1.0 - 0.3 * tolerance) * level / means.cost_per_token
    places, means = kept
    return Spending("frontier_corpus", "multiplier", places.multipliers, means, status)

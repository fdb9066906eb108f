"""Which sampling settings are decided by lists of the likeliest tokens.

Top-k keeps the k likeliest tokens whatever the temperature, and top-p behind it looks at nothing
else; temperature 0 looks at one. A list of at least so many tokens gives the very law that the
whole row would give. Without top-k, at T > 0, every token counts, and only bounds are left.

A token cascade that asks what the verifier gives to a token of the draft's, before any filter, asks
for what the verifier's list need not hold: such rules are left open whatever the setting.

A list of exactly k is taken at its word: of tokens that tie at its edge it holds those that the
server keeps. Where it is longer, and its last tokens tie with the k-th, more might that it does not
hold: such a row is not decided.
"""

import sys
from collections.abc import Sequence

import numpy as np

from real_models.errors import UserError
from real_models.laws.distributions import SamplingSettings
from real_models.traces.listing import Listed
from real_models.traces.reader import Trace
from theory import RULES

__all__ = ["decided", "decided_rules", "listed_everywhere", "require_decided", "tokens_needed"]

# Of the rules that read rows before temperature and filters, those that read a row's largest
# probability, or the draft's own of a token that it proposes.
_READ_THE_LIST = ("cascade_chow", "cascade_diff", "cascade_opt", "cascade_token_v1")


def tokens_needed(sampling: SamplingSettings) -> int | None:
    """How many of a row's likeliest tokens decide its law; None where all of them count."""
    return 1 if sampling.temperature == 0.0 else sampling.top_k


def decided(sampling: SamplingSettings, listed: Listed) -> np.ndarray:
    """Whether each row's law under the settings follows from what it lists, bool [n]."""
    whole = listed.known >= listed.vocabulary
    needed = tokens_needed(sampling)
    if needed is None:
        return whole
    enough = listed.counts >= needed
    edge = listed.logprobs[:, min(needed, listed.logprobs.shape[1] - 1) - 1]
    tied = (listed.counts > needed) & (listed.least == edge)
    return whole | (enough & ~tied)


def listed_everywhere(trace: Trace) -> int:
    """How many of the likeliest tokens every row of a trace of lists holds: the k that is exact."""
    return min(
        int(chunk.listed(part).counts.min())
        for chunk in trace.chunks
        for part in ("draft", "verifier")
    )


def require_decided(trace: Trace, samplings: Sequence[SamplingSettings]) -> None:
    """Raise UserError for the first setting that the lists of a trace leave open.

    It names the setting and the top-k that would be exact, or the text and the position of a row
    that lists too few tokens for it, or ties at its edge. A trace of whole rows decides all.
    """
    if trace.header.listed is None:
        return
    for sampling in samplings:
        needed = tokens_needed(sampling)
        if needed is None or needed > trace.header.listed:
            raise UserError(_open_setting(sampling, listed_everywhere(trace)))
        for chunk in trace.chunks:
            for part in ("draft", "verifier"):
                listed = chunk.listed(part)
                open_rows = ~decided(sampling, listed)
                if open_rows.any():
                    row = int(open_rows.argmax())
                    where = f"text {chunk.entry.prompt_id!r}, row {row}: the {part}"
                    raise UserError(f"{sampling.label!r}: {where}{_open_row(needed, listed, row)}")


def decided_rules(trace: Trace, rules: Sequence[str]) -> list[str]:
    """The rules whose laws follow from what a trace knows under a setting that it decides.

    Where all rules are asked for, the others are told of on standard error and left out. Raises
    UserError for one that is asked for by name.
    """
    if trace.header.listed is None:
        return list(rules)
    left = [rule for rule in rules if RULES[rule].reads_raw and rule not in _READ_THE_LIST]
    told = f"{' and '.join(left)}: the verifier's list need not hold what is asked of the draft's"
    if left and set(rules) != set(RULES):
        raise UserError(f"{told} tokens")
    if left:
        print(f"left out are {told} tokens", file=sys.stderr)
    return [rule for rule in rules if rule not in left]


def _open_setting(sampling: SamplingSettings, most: int) -> str:
    exact = SamplingSettings(sampling.temperature or 1.0, most, sampling.top_p).label
    return (
        f"{sampling.label!r} is not decided by lists of the {most} likeliest tokens: with top-k "
        f"{most} or less it is, as in {exact!r}"
    )


def _open_row(needed: int, listed: Listed, row: int) -> str:
    """Why a row is open, behind the words that name it."""
    count = int(listed.counts[row])
    if count < needed:
        return f" lists {count} tokens, not {needed}"
    return (
        f"'s tokens tie at {listed.least[row]:.6g} from place {needed} to the end of the list of "
        f"{count}; more may tie that it does not hold"
    )

"""A rule tests the drafts of random requests.

A draft n is accepted iff u·p_n < b_n·p_n. Behind the first rejection of a request nothing counts;
the rejected token is replaced by one of the rule's recovery distribution, and where all drafts of
a request are accepted the bonus token follows, which the engine has drawn from the verifier. A rule
that accepts whatever strict sampling accepts is asked only where u·p_n ≥ q_n.

Single precision decides only between "surely accepted" and "ask": the rows that a rule is asked
about are softmaxed in float64 from the engine's float32 logits; nothing is renormalised.
"""

from collections.abc import Iterable, Iterator

import torch

from speculative_lab_vllm.drafts import Drafts, Verdict, native
from theory import Rule
from theory.arrays import take_rows

__all__ = ["draw", "portions", "verify"]

_ENTRIES = 2**22  # of float64 rows held at once: 32 MiB an array


def verify(
    rule: Rule, drafts: Drafts, requests: Iterable[int], uniforms: torch.Tensor
) -> dict[int, Verdict]:
    """Test the drafts of some requests of a batch.

    uniforms : [Σ n_i, 2] in [0, 1): for the test of each draft, and for the token in its place.

    Raises ValueError for a row that holds no distribution, and for a rule that accepts with what
    is no probability.
    """
    requests = list(requests)
    settled, undrawn = _screened(rule, drafts, requests, uniforms)
    asked = {
        request: iter([row for row in drafts.rows(request) if row not in settled])
        for request in requests
    }
    verdicts: dict[int, Verdict] = {}
    while asked:
        # One place of each request at a time: behind a rejection a rule is asked for nothing.
        now = {request: next(rows, None) for request, rows in asked.items()}
        whole = [request for request, row in now.items() if row is None]
        verdicts |= {request: Verdict(drafts.counts[request], None) for request in whole}
        open_ = {row: request for request, row in now.items() if row is not None}
        for row, token in _rejected(rule, drafts, list(open_), undrawn, uniforms):
            request = open_[row]
            verdicts[request] = Verdict(row - drafts.rows(request)[0], token)
        asked = {request: rows for request, rows in asked.items() if request not in verdicts}
    return verdicts


def portions(rows: list[int], vocabulary: int) -> Iterator[list[int]]:
    """The rows in parts whose distributions are held at once."""
    step = max(1, _ENTRIES // vocabulary)
    return (rows[start : start + step] for start in range(0, len(rows), step))


def _screened(
    rule: Rule, drafts: Drafts, requests: list[int], uniforms: torch.Tensor
) -> tuple[set[int], set[int]]:
    """The rows that strict sampling accepts, where that settles them; those drawn from nothing."""
    rows = [row for request in requests for row in drafts.rows(request)]
    if not rows:
        return set(), set()
    p, q = drafts.probabilities(rows)
    undrawn = {row for row, none in zip(rows, (p == 0).tolist()) if none}
    if not rule.keeps_strict:
        return set(), undrawn
    kept = uniforms[rows, 0] * p < q
    return {row for row, sure in zip(rows, kept.tolist()) if sure} - undrawn, undrawn


def _rejected(
    rule: Rule, drafts: Drafts, rows: list[int], undrawn: set[int], uniforms: torch.Tensor
) -> Iterator[tuple[int, int]]:
    """The rows at which a draft is rejected, with the token in its place."""
    vocabulary = drafts.logits.shape[-1]
    for some in portions([row for row in rows if row not in undrawn], vocabulary):
        yield from _tested(rule, drafts, some, uniforms)
    for some in portions([row for row in rows if row in undrawn], vocabulary):
        yield from zip(some, draw(drafts.verifier(some), uniforms[some, 1]).tolist())


def _tested(
    rule: Rule, drafts: Drafts, rows: list[int], uniforms: torch.Tensor
) -> Iterator[tuple[int, int]]:
    pair, tokens = drafts.pair(rows), [drafts.tokens[row] for row in rows]
    device = drafts.logits.device
    index = pair.locate(native(torch.tensor(tokens, device=device)))
    probability = torch.as_tensor(rule.accept_at(pair, index))
    wrong = ~((probability >= 0) & (probability <= 1 + 1e-9))
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0, 0])
        raise ValueError(
            f"{rule!r} accepts token {tokens[at]} with {float(probability[at])}, which is no "
            "probability"
        )
    p = torch.as_tensor(take_rows(pair.xp, pair.p, index[:, None])[:, 0])
    failed = (~(uniforms[rows, 0] * p < probability * p)).nonzero()[:, 0]
    if not len(failed):
        return
    law = torch.as_tensor(rule.recover(pair, index))[failed]
    at = [rows[i] for i in failed.tolist()]
    drawn = pair.token[native(failed), native(draw(law, uniforms[at, 1]))]
    yield from zip(at, drawn.tolist())


def draw(laws: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The first column whose cdf exceeds u·total, [R]; one without mass is never drawn."""
    cdf = laws.cumsum(dim=-1)
    # Sums in parallel round differently: without this a token without mass could gain some.
    cdf = torch.where(laws > 0, cdf, 0.0).cummax(dim=-1).values
    return torch.searchsorted(cdf, uniforms[:, None] * cdf[:, -1:], right=True)[:, 0]

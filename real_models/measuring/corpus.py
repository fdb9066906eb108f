"""The positions of a trace under one sampling setting, as a corpus to measure settings on."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from real_models.laws.distributions import SamplingSettings
from real_models.measuring.parts import Part, Resources, make_parts, prepared_pairs
from real_models.traces.reader import Trace
from sim.tables.corpus import Corpus
from theory import Pair

__all__ = ["trace_corpus"]

# float64 arrays alive for each entry of a kept pair, with what rules keep between two values.
_KEPT_ARRAYS = 24


@dataclass(frozen=True)
class _Batches:
    """Prepares the pairs of the parts anew whenever it is gone through, part by part."""

    parts: tuple[Part, ...]

    def __iter__(self) -> Iterator[tuple[Pair, Sequence[Hashable]]]:
        for part in self.parts:
            for pair in prepared_pairs(part):
                yield pair, [part.chunk.entry.prompt_id] * pair.p.shape[0]


def trace_corpus(
    trace: Trace, sampling: SamplingSettings, resources: Resources, *, keep: int = 0
) -> Corpus:
    """All finished positions of a trace under a sampling setting; clusters are its prompts.

    Pairs are prepared once and kept where they take no more than `keep` bytes, and prepared again
    for every question otherwise.
    """
    parts = make_parts(trace, (sampling,), (), resources)
    batches = _Batches(tuple(part for part, _ in parts.values()))
    header = trace.header
    return Corpus(header.pair, sampling.label, header.vocabulary, _kept(batches, keep) or batches)


def _kept(batches: _Batches, limit: int) -> list[tuple[Pair, Sequence[Hashable]]]:
    """The prepared pairs; none where they would take more than `limit` bytes."""
    kept, size = [], 0
    for batch in batches:
        rows, width = batch[0].p.shape
        size += 8 * _KEPT_ARRAYS * rows * width
        if size > limit:
            return []
        kept.append(batch)
    return kept

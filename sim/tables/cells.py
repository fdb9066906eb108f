"""The cells of a synthetic sweep: one source of rows and one group of rules each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sim.checks import once
from sim.jobs.engine import Frames
from sim.pairs.families import Family, generators
from sim.tables.grid import KINDS, Setting, kind_of
from sim.tables.tradeoff import Tradeoff
from theory.pair import Pair

__all__ = ["Source", "make_cells", "make_sources", "prepared_batches", "run_cell"]

_BATCH_ENTRIES = 2**16  # rows × tokens measured at once: larger temporaries leave the cache


@dataclass(frozen=True)
class Source:
    """Rows of one family over one vocabulary; `seed` is (entropy, spawn key) of its own."""

    family: Family
    vocab: int
    rows: int
    seed: tuple[int, tuple[int, ...]]


def make_sources(
    families: Sequence[Family], vocabs: Sequence[int], rows: int, seed: int
) -> list[Source]:
    """Each family over each vocabulary, every source with a seed spawned from the one given.

    Raises ValueError for a vocabulary that a family has no rows of, and for one given twice.
    """
    once("--pairs", families)
    once("--vocab", vocabs)
    pairs = [(family, vocab) for family in families for vocab in vocabs]
    for family, vocab in pairs:
        family.check_vocab(vocab)
    children = np.random.SeedSequence(seed).spawn(len(pairs))
    return [
        Source(family, vocab, rows, (seed, child.spawn_key))
        for (family, vocab), child in zip(pairs, children)
    ]


def make_cells(
    sources: Sequence[Source], settings: Sequence[Setting]
) -> dict[str, tuple[Source, tuple[Setting, ...], bool]]:
    """Cells by name: each source with the settings of each kind of rule.

    The last argument says whether the cell also reports the frontier of its source, once each.
    """
    groups = {kind: tuple(s for s in settings if kind_of(s.rule) == kind) for kind in KINDS}
    cells = {}
    for index, source in enumerate(sources):
        kinds = [kind for kind in KINDS if groups[kind]]
        for kind in kinds:
            name = f"{index:02d}-{source.family.name}-{source.vocab}-{kind.replace(' ', '-')}"
            cells[name] = (source, groups[kind], kind == kinds[0])
    return cells


def prepared_batches(source: Source) -> Iterator[Pair]:
    """The rows of a source as prepared pairs of bounded size, the same ones every time."""
    size = max(1, _BATCH_ENTRIES // source.vocab)
    starts = range(0, source.rows, size)
    entropy, spawn_key = source.seed
    sequence = np.random.SeedSequence(entropy, spawn_key=spawn_key)
    for start, rng in zip(starts, generators(sequence, len(starts))):
        batch = source.family.sample(min(size, source.rows - start), source.vocab, rng)
        yield Pair.prepare(batch.p, batch.q, p_raw=batch.p_raw, q_raw=batch.q_raw)


def run_cell(source: Source, settings: tuple[Setting, ...], with_frontier: bool) -> Frames:
    """Measure the settings on the rows of the source; {"table": …} and once {"frontier": …}.

    Pure: the rows depend on the source alone, so every cell of a source sees the same ones.
    """
    tradeoff = Tradeoff(settings, source.family.name, source.family.label, source.vocab)
    for pair in prepared_batches(source):
        tradeoff.add(pair)
    frames = {"table": tradeoff.rows()}
    if with_frontier:
        frames["frontier"] = tradeoff.frontier()
    return frames

"""The figures of the notebooks: each function takes numbers and returns a figure with a finding.

A figure is a `Drawing`, a bare matplotlib `Figure` that a notebook displays by itself; save it with
`figure.savefig(path)`. Nothing here touches pyplot or any global state. Titles are computed from
what is drawn. Functions raise ValueError for arguments that cannot be drawn.
"""

from sim.drawing.style import Drawing
from sim.figures.budget import (
    amplification,
    candidate_and_emitted,
    spent_by_place,
    text_spending,
    two_couplings,
)
from sim.figures.closed_form import (
    closed_form,
    overspending_envelope,
    overspending_map,
    true_cost,
)
from sim.figures.coupling import (
    accepted_length,
    coupling_table,
    overlap,
    round_lengths,
    yin_plane,
)
from sim.figures.decoding import (
    accepted_lengths,
    decoding_costs,
    decoding_times,
    equal_lengths,
)
from sim.figures.equal import gain_shares, round_gains
from sim.figures.frontier import (
    candidates_frontier,
    clip_picture,
    corpus_frontier,
    every_divergence,
)
from sim.figures.optimum import certainty, gamma_curves, output_path, simplex_ball
from sim.figures.reach import capped_simplex, certified_curves, certified_rows, list_bounds
from sim.figures.table import gaps, reads, reads_per_token, tradeoff
from sim.figures.typical import collapse_path, entropy_by_acceptance, typical_map

__all__ = [
    "Drawing",
    "accepted_length",
    "accepted_lengths",
    "amplification",
    "candidate_and_emitted",
    "candidates_frontier",
    "capped_simplex",
    "certainty",
    "certified_curves",
    "certified_rows",
    "clip_picture",
    "closed_form",
    "collapse_path",
    "corpus_frontier",
    "coupling_table",
    "decoding_costs",
    "decoding_times",
    "entropy_by_acceptance",
    "equal_lengths",
    "every_divergence",
    "gain_shares",
    "gamma_curves",
    "gaps",
    "list_bounds",
    "output_path",
    "overlap",
    "overspending_envelope",
    "overspending_map",
    "reads",
    "reads_per_token",
    "round_gains",
    "round_lengths",
    "simplex_ball",
    "spent_by_place",
    "text_spending",
    "tradeoff",
    "true_cost",
    "two_couplings",
    "typical_map",
    "yin_plane",
]

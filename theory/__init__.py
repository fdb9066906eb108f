"""The exact mathematics of lossy speculative sampling: divergences, optima, laws, frontiers.

Letters as in the literature on acceptance rules: p is the draft, q the verifier, n the drafted
token, δ a budget; divergences are D_f(h‖q) in nats. Everything runs on numpy and torch alike.

What stands here is public, and so are the modules `theory.arrays` (checks, and numpy and torch
alike) and `theory.divergences`; the others may change.
"""

from importlib import metadata as _metadata

import theory.terminal.interruption as _interruption  # noqa: F401  # before all that takes time
from theory.arrays import to_numpy
from theory.candidates import effective_draft
from theory.certificates import Certificate, certified_divergence, certifying_budget
from theory.divergences import DIVERGENCES, Divergence, divergence, several_divergences
from theory.frontier import CorpusFrontier, frontier_acceptance, frontier_step
from theory.law import OneStep
from theory.optimum import Gamma, candidate_target, optimal_gamma, second_order_gamma
from theory.pair import Pair
from theory.partial import PartialRows, partial_law
from theory.rules import (
    RULES,
    AcceptSetRule,
    CandidateRule,
    Rule,
    TargetRule,
    make_rule,
    register,
)
from theory.step import one_step, one_steps

__all__ = [
    "DIVERGENCES",
    "RULES",
    "AcceptSetRule",
    "CandidateRule",
    "Certificate",
    "CorpusFrontier",
    "Divergence",
    "Gamma",
    "OneStep",
    "Pair",
    "PartialRows",
    "Rule",
    "TargetRule",
    "candidate_target",
    "certified_divergence",
    "certifying_budget",
    "divergence",
    "effective_draft",
    "frontier_acceptance",
    "frontier_step",
    "make_rule",
    "one_step",
    "one_steps",
    "optimal_gamma",
    "partial_law",
    "register",
    "second_order_gamma",
    "several_divergences",
    "to_numpy",
]

try:
    __version__ = _metadata.version("speculative-lab")
except _metadata.PackageNotFoundError:  # run from a folder that was never installed
    __version__ = "unknown"

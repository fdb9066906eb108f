"""The exact mathematics of lossy speculative sampling: divergences, optima, laws, frontiers.

Letters as in the literature on acceptance rules: p is the draft, q the verifier, n the drafted
token, δ a budget; divergences are D_f(h‖q) in nats. Everything runs on numpy and torch alike.
"""

from theory.certificate import Certificate, certified_divergence, certifying_budget
from theory.divergences import DIVERGENCES, Divergence, divergence
from theory.frontier import CorpusFrontier, frontier_acceptance, frontier_step
from theory.law import OneStep, one_step, one_steps
from theory.optimum import Gamma, candidate_target, optimal_gamma, second_order_gamma
from theory.pair import Pair
from theory.rules import RULES, Rule, make_rule, register

__all__ = [
    "DIVERGENCES",
    "RULES",
    "Certificate",
    "CorpusFrontier",
    "Divergence",
    "Gamma",
    "OneStep",
    "Pair",
    "Rule",
    "candidate_target",
    "certified_divergence",
    "certifying_budget",
    "divergence",
    "frontier_acceptance",
    "frontier_step",
    "make_rule",
    "one_step",
    "one_steps",
    "optimal_gamma",
    "register",
    "second_order_gamma",
]

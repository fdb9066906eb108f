"""The exact optimum γ* of a budget on one candidate, for every divergence, and its closed forms."""

from theory.optimum.gamma import Gamma, candidate_target, optimal_gamma, second_order_gamma

__all__ = ["Gamma", "candidate_target", "optimal_gamma", "second_order_gamma"]

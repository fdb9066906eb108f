"""The frontier clip(p, b·q, a·q): the best that any rule does, of one position and of many."""

from theory.frontier.levels import CorpusFrontier, frontier_acceptance, frontier_step

__all__ = ["CorpusFrontier", "frontier_acceptance", "frontier_step"]

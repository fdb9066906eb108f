"""The frontier clip(p, b·q, a·q): the best that any rule does, of one position and of many."""

from theory.frontier.levels import CorpusFrontier, frontier_acceptance, frontier_step
from theory.frontier.places import RoundMeans, Schedule, schedule, schedule_at

__all__ = [
    "CorpusFrontier",
    "RoundMeans",
    "Schedule",
    "frontier_acceptance",
    "frontier_step",
    "schedule",
    "schedule_at",
]

"""Blocks: what a verification of several drafted tokens at once can be, and the best one."""

from theory.blocks.enumerated import RoundLaw, round_law
from theory.blocks.path import VERIFICATIONS, BlockTest, alive, block_residual, block_test
from theory.blocks.scaled import ScaledClip, scaled_clip

__all__ = [
    "VERIFICATIONS",
    "BlockTest",
    "RoundLaw",
    "ScaledClip",
    "alive",
    "block_residual",
    "block_test",
    "round_law",
    "scaled_clip",
]

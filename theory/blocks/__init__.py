"""Blocks: what a verification of several drafted tokens at once can be, and the best one."""

from theory.blocks.path import VERIFICATIONS, BlockTest, alive, block_residual, block_test
from theory.blocks.scaled import ScaledClip, scaled_clip

__all__ = [
    "VERIFICATIONS",
    "BlockTest",
    "ScaledClip",
    "alive",
    "block_residual",
    "block_test",
    "scaled_clip",
]

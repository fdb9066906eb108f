"""Blocks: what a verification of several drafted tokens at once can be, and the best one."""

from theory.blocks.enumerated import RoundLaw, round_law
from theory.blocks.path import VERIFICATIONS, BlockTest, alive, block_residual, block_test
from theory.blocks.scaled import ScaledClip, scaled_clip
from theory.blocks.traversal import TREE_SCHEMES, Traversal, traverse
from theory.blocks.trees import TREE_VERIFICATIONS, tree_law

__all__ = [
    "TREE_SCHEMES",
    "TREE_VERIFICATIONS",
    "VERIFICATIONS",
    "BlockTest",
    "RoundLaw",
    "ScaledClip",
    "Traversal",
    "alive",
    "block_residual",
    "block_test",
    "round_law",
    "scaled_clip",
    "traverse",
    "tree_law",
]

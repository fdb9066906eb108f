"""Whole sequences: rounds of draft and verify on Markov pairs, exact by linear algebra."""

from sim.chain.blocks import BestBlock, best_block
from sim.chain.command import main
from sim.chain.longrun import LongRun, long_run, speed_up
from sim.chain.markov import MarkovPair, ngram_pair, random_pair
from sim.chain.optimum import Optimum, best_round, best_run, best_run_at
from sim.chain.rounds import BlockKernel, Kernel, ScaledClip, kernels, of_rounds, places
from sim.chain.texts import TextDivergence, text_divergence

__all__ = [
    "BestBlock",
    "BlockKernel",
    "Kernel",
    "LongRun",
    "MarkovPair",
    "Optimum",
    "ScaledClip",
    "TextDivergence",
    "best_block",
    "best_round",
    "best_run",
    "best_run_at",
    "kernels",
    "long_run",
    "main",
    "ngram_pair",
    "of_rounds",
    "places",
    "random_pair",
    "speed_up",
    "text_divergence",
]

"""Rounds of draft and verify: blocks, Monte Carlo sampling, and what a run is worth."""

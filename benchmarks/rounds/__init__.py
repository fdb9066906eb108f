"""Blocks, candidates and schedules on real pairs: exact along texts, and decoded on others."""

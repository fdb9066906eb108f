"""Pairs of models: loaded and checked, and the caches that follow a text."""

from real_models.models.pair import PAIRS, ModelPair, load_pair, make_pair, register_pair

__all__ = ["PAIRS", "ModelPair", "load_pair", "make_pair", "register_pair"]

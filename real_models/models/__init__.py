"""Pairs of models: loaded, checked, or a draft derived from its verifier."""

from real_models.models.pair import PAIRS, ModelPair, load_pair, make_pair, register_pair

__all__ = ["PAIRS", "ModelPair", "load_pair", "make_pair", "register_pair"]

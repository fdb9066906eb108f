"""Logits to probabilities, by sampling settings or by logits processors: the one function."""

from real_models.laws.distributions import SamplingSettings

__all__ = ["SamplingSettings"]

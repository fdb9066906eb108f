"""The door that transformers looks for: see `real_models.generate`."""

from real_models.generate import generate

__all__ = ["generate"]

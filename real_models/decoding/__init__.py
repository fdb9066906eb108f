"""The decoding loop: draft, verify, accept or recover, and say what it was worth."""

from real_models.decoding.loop import DecodedText, Decoding, decode, prompt_lookup

__all__ = ["DecodedText", "Decoding", "decode", "prompt_lookup"]

"""Samplers: how they are called, right ones, and ones with a known fault."""

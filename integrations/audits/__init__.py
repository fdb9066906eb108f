"""Audits of samplers that other projects ship, as `make audits` runs them."""

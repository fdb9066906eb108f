"""Drafts made from a verifier: layers left out, weights rounded, and the text that says so."""

"""Drafts made of a verifier: the texts they are judged by, and their training."""

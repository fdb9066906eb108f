"""Real draft/verifier pairs: load them, record their logits, turn logits into probabilities."""

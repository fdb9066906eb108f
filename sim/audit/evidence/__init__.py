"""Evidence that may be looked at any time: e-processes against a law and against a budget."""

"""The exact law of a round, and the laws of known faults."""

"""Answers of inference servers: read, laid beside each other, and written as a trace."""

"""The laboratory's acceptance rules inside vLLM."""

"""What `make vllm` runs: the rules in the real engine, beside the project's own decoder."""

"""A trace measured: parts, the tables that are joined of them, and what stands in the headlines."""

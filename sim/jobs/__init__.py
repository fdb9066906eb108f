"""Long jobs: cells that are run side by side, kept when finished, and described by a manifest."""

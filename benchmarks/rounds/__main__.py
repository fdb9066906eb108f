"""`python -m benchmarks.rounds`."""

import sys

from benchmarks.rounds.along_texts import main

if __name__ == "__main__":
    sys.exit(main())

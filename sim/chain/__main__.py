"""`python -m sim.chain`."""

import sys

from sim.chain.command import main

if __name__ == "__main__":
    sys.exit(main())

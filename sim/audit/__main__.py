"""`python -m sim.audit`."""

import sys

from sim.audit.command import main

if __name__ == "__main__":
    sys.exit(main())

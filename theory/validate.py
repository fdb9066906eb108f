"""``python -m theory.validate``: run the ledger of claims."""

import sys

from theory.ledger.claims import main

if __name__ == "__main__":
    sys.exit(main())

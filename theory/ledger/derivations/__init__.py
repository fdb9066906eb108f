"""One module per claim: a derivation that runs, and a check that shares no formula with it."""

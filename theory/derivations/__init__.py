"""One module per claim: a sympy derivation that runs, and a check that shares no formula with it."""

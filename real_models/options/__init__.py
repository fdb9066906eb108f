"""Options that several command lines share; only command lines import this wing."""

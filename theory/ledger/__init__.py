"""The ledger of claims: what is derived, what is checked, and what is refuted."""

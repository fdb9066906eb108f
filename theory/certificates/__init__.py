"""How far a rule can take the output from a verifier row, whatever the draft is."""

from theory.certificates.budgets import Certificate, certified_divergence, certifying_budget

__all__ = ["Certificate", "certified_divergence", "certifying_budget"]

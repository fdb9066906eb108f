"""Does a sampler emit what it claims? Audits of any callable, by evidence that may be watched."""

from sim.audit.command import main
from sim.audit.hostile import Blocks, hostile_pairs, read_pairs
from sim.audit.report import BudgetReport, ClaimReport
from sim.audit.run import audit, audit_budget
from sim.audit.samplers.faults import FaultySampler, faulty_samplers
from sim.audit.samplers.reference import reference_sampler

__all__ = [
    "Blocks",
    "BudgetReport",
    "ClaimReport",
    "FaultySampler",
    "audit",
    "audit_budget",
    "faulty_samplers",
    "hostile_pairs",
    "main",
    "read_pairs",
    "reference_sampler",
]

"""Devices that may be allocated: the semantics of DRA for one node. `controller.scheduling.scoring`
chooses among them.
"""

from controller.scheduling.allocation.attempt import FIRST_ATTEMPT, Attempt, AttemptSpent
from controller.scheduling.allocation.chooser import FirstFit
from controller.scheduling.allocation.device_equivalence import NOT_OF_CLASS, UNJUDGED
from controller.scheduling.allocation.errors import AllocatorError, BudgetExceeded, SelectorOverBudget
from controller.scheduling.allocation.features import FeatureGates, UnknownGate
from controller.scheduling.allocation.ownership import ClaimOwnership, Owner, Scope, ownership_of
from controller.scheduling.allocation.request import prepare
from controller.scheduling.allocation.resolved import ResolvedRequest
from controller.scheduling.allocation.result import Solution
from controller.scheduling.allocation.search import solve
from controller.scheduling.allocation.stamping import new_share_id, stamped

__all__ = [
    "FIRST_ATTEMPT",
    "NOT_OF_CLASS",
    "UNJUDGED",
    "AllocatorError",
    "Attempt",
    "AttemptSpent",
    "BudgetExceeded",
    "ClaimOwnership",
    "FeatureGates",
    "FirstFit",
    "Owner",
    "ResolvedRequest",
    "Scope",
    "SelectorOverBudget",
    "Solution",
    "UnknownGate",
    "new_share_id",
    "ownership_of",
    "prepare",
    "solve",
    "stamped",
]

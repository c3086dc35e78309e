"""Devices that may be allocated: the semantics of DRA for one node. `controller.scoring` chooses among them."""

from controller.allocation.attempt import FIRST_ATTEMPT, Attempt, AttemptSpent
from controller.allocation.chooser import FirstFit
from controller.allocation.device_equivalence import NOT_OF_CLASS, UNJUDGED
from controller.allocation.errors import AllocatorError, BudgetExceeded, SelectorOverBudget
from controller.allocation.features import FeatureGates, UnknownGate
from controller.allocation.ownership import ClaimOwnership, Owner, Scope, ownership_of
from controller.allocation.request import prepare
from controller.allocation.resolved import ResolvedRequest
from controller.allocation.result import Solution
from controller.allocation.search import solve
from controller.allocation.stamping import new_share_id, stamped

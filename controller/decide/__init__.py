"""`decide`: which node and which devices a pod gets, or why it gets none.

Called by `reconcile` for every pending pod and by `simulate`. Pure: no clock, no randomness, no I/O; the same inventory
and demand give the same answer. What it returns is not stamped: shareIDs and the allocation timestamp are the caller's.
"""

from controller.decide.answers import ClaimAllocation, Decision, Refusal, Score
from controller.decide.decision import decide
from controller.decide.demand import Demand, Options, PodClaim

__all__ = ["ClaimAllocation", "Decision", "Demand", "Options", "PodClaim", "Refusal", "Score", "decide"]

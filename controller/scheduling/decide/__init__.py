"""`decide`: which node and which devices a pod gets, or why it gets none.

Called by `reconcile` for every pending pod and by `simulate`. Pure: no clock, no randomness, no I/O; the same inventory
and demand give the same answer; `decide_slice` gives it in parts, as far as a budget of time goes. What it returns is not stamped: shareIDs and the allocation timestamp are the caller's.
"""

from controller.scheduling.decide.answers import Answer, ClaimAllocation, Decision, Score, Unfinished, Unschedulable
from controller.scheduling.decide.decision import decide, decide_slice
from controller.scheduling.decide.scheduling_request import Options, PodClaim, SchedulingRequest

__all__ = [
    "Answer",
    "ClaimAllocation",
    "Decision",
    "Options",
    "PodClaim",
    "SchedulingRequest",
    "Score",
    "Unfinished",
    "Unschedulable",
    "decide",
    "decide_slice",
]

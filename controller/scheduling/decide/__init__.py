"""Choose the node and the devices of a pod, or say why there are none.

Called by `reconcile` for every pending pod and by `simulate`. Pure: no clock, no randomness, no
I/O; the same inventory and scheduling request always give the same answer. `decide_slice` works in
time slices, where a selector budget limits each of them. The answer is not stamped: shareIDs and
the allocation timestamp are added by the caller.
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

"""Choose the node and the devices of a pod, or say why there are none.

Called by `reconcile` for every pending pod and by `simulate`. Pure: no clock, no randomness, no
I/O; the same inventory and scheduling request always give the same answer. The answer is not stamped:
shareIDs and the allocation timestamp are added by the caller.
"""

from controller.decide.allowed_nodes import AllowedNodes
from controller.decide.answers import (
    Answer,
    ClaimAllocation,
    Decision,
    EqualRefusals,
    Score,
    Unschedulable,
    without_trace,
)
from controller.decide.companions import Companions, SharedClaims, pod_shape
from controller.decide.company import LeftOut
from controller.decide.decision import MOST_OVERESTIMATED, decide
from controller.decide.request_words import listing_annotations
from controller.decide.scheduling_request import Options, PodClaim, SchedulingRequest
from controller.decide.trace import Trace

"""The texts of events, in HAMi's form. Pure.

Source: HAMi pkg/scheduler/event.go and scheduler.go (FilteringSucceed, FilteringFailed,
BindingSucceed, BindingFailed). Reasons that HAMi does not have are our own and say what to do.
"""

from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from controller.assessment import Fault
from controller.decide import Decision, LeftOut, Unschedulable
from controller.gangs import GangState, UnitRefusal
from controller.reasons import with_command
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.printable import event_note

NORMAL: Final = "Normal"
WARNING: Final = "Warning"

FILTERING_SUCCEED: Final = "FilteringSucceed"
FILTERING_FAILED: Final = "FilteringFailed"
BINDING_FAILED: Final = "BindingFailed"
INVALID_CLAIM: Final = Fault.CLAIM.value
SELECTOR_OVER_BUDGET: Final = "SelectorOverBudget"
ALLOCATION_UNDONE: Final = "AllocationUndone"
REPEATEDLY_REFUSED: Final = "RepeatedlyRefused"
ORPHAN_FREED: Final = "OrphanedAllocationFreed"
FOREIGN_ALLOCATION: Final = "ForeignAllocation"
FENCE_RESTORED: Final = "FenceRestored"
FENCE_BROKEN: Final = "FenceNotInForce"
SCHEDULER_NOT_SERVED: Final = "SchedulerNotServed"
WEBHOOK_BYPASSED: Final = "WebhookBypassed"
CLAIM_VANISHED: Final = "ClaimVanished"
QUOTA_NOT_ENFORCED: Final = "QuotaNotEnforced"
DECISION_STALLED: Final = "DecisionStalled"
UNREADABLE: Final = "Unreadable"
GATE_NOT_LIFTED: Final = "GateNotLifted"
SHARED_CLAIM_APART: Final = "SharedClaimApart"
INVALID_GANG: Final = "InvalidGang"
GANG_INCOMPLETE: Final = "GangIncomplete"
PREEMPTING: Final = "Preempting"
PREEMPTED: Final = "Preempted"
PREEMPTION_DELAYED: Final = "PreemptionDelayed"
DEFRAGMENTING: Final = "Defragmenting"
MOVED: Final = "Moved"
PLACE_RESERVED: Final = "PlaceReserved"
PLACE_GIVEN_UP: Final = "PlaceGivenUp"


class Message(Struct, frozen=True):
    type: Literal["Normal", "Warning"]
    reason: str
    note: str
    topic: str = ""
    """Notes of one topic about one object differ only in figures: not each of them becomes an event."""
    brief: str = ""
    """The note for the other members of the object's gang."""

    def __post_init__(self) -> None:
        force_setattr(self, "note", event_note(self.note))


def placed(decision: Decision) -> Message:
    """Return `find fit node(<n>), <k> nodes not fit, <m> nodes fit(<n>:<score %.2f>,...)`."""
    scores = ",".join(f"{node}:{score:.2f}" for node, score in decision.fitting)
    more = ",..." if decision.fitting_count > len(decision.fitting) else ""
    note = (
        f"find fit node({decision.node}), {decision.unfit_count} nodes not fit, "
        f"{decision.fitting_count} nodes fit({scores}{more})"
    )
    return Message(NORMAL, FILTERING_SUCCEED, note)


def left_out(pod: Pod, node: str, left: LeftOut) -> Message:
    """Return a message for the placed pod about one that shares a claim and cannot run with it; each has a series."""
    other, more = left.companions.pod, left.companions.count - 1
    others = f"Pod {other.key}" + (f" and {more} more like it" if more else "")
    note = (
        f"{others}, with which it shares ResourceClaim {_shared(pod, other)}, cannot run on node {node}, where the claim is "
        f"allocated: {left.code}"
    )
    return Message(WARNING, SHARED_CLAIM_APART, note, f"{SHARED_CLAIM_APART} {other.key}")


def was_left_out(pod: Pod, node: str, left: LeftOut) -> Message:
    """Return a message for a pod that cannot run together with the placed one."""
    other = left.companions.pod
    note = (
        f"ResourceClaim {_shared(pod, other)} is allocated on node {node} for Pod {pod.key}, and this pod does not fit there: "
        f"{left.code}. It runs when there is room for it on that node, or when the claim is free again"
    )
    return Message(WARNING, SHARED_CLAIM_APART, note, SHARED_CLAIM_APART)


def _shared(pod: Pod, other: Pod) -> str:
    theirs = {*claim_keys(other)}
    return ", ".join(key for key in claim_keys(pod) if key in theirs)


def refused(pod: Pod, refusal: Unschedulable) -> Message:
    """Return the one message about a pod that found no node: what fails, with both figures, and the next command."""
    reason = INVALID_CLAIM if refusal.invalid_claim else FILTERING_FAILED
    return Message(WARNING, reason, refusal.sentence(pod.key), "" if refusal.error else "nodes")


def invalid_gang(problem: str) -> Message:
    """Return a message about a gang that cannot be placed. `problem`: object, field and fix."""
    note = f"{problem}. None of its pods is placed until then"
    return Message(WARNING, INVALID_GANG, note, INVALID_GANG, note)


def gang_incomplete(state: GangState) -> Message:
    """Return `3 of 4 members exist`, for a gang that waits for more pods."""
    exist, least = state.existing, state.min_count
    note = f"{exist} of {least} members of {state.key} exist: none is placed until the others exist"
    brief = f"{exist} of {least} members exist"
    if state.bound:
        note = f"{state.bound} of {least} members of {state.key} run and {exist} exist: the others wait"
        brief = f"{state.bound} of {least} members run and {exist} exist"
    return Message(WARNING, GANG_INCOMPLETE, note, GANG_INCOMPLETE, _with_gang(state, brief))


def gang_blocked(state: GangState, blocked: Pod, why: str) -> Message:
    """Return a message for the members of a gang that wait for another one."""
    note = _with_gang(state, f"pod {blocked.key}: {why}")
    return Message(WARNING, GANG_INCOMPLETE, note, GANG_INCOMPLETE, note)


def gang_refused(state: GangState, refusal: UnitRefusal) -> Message:
    """Return the one message about a gang without room; the command is about the member that came closest."""
    counts = refusal.refusal.node_counts
    reason, note = FILTERING_FAILED, f"{state.key}: {refusal.message}"
    brief = refusal.reason.asked if refusal.reason is not None else refusal.message
    if state.bound:
        note = f"{state.bound} of {state.min_count} members of {state.key} run; {refusal.message}"
        brief = f"{state.bound} of {state.min_count} members run; {brief}"
        reason = GANG_INCOMPLETE if state.least else FILTERING_FAILED
    brief = with_command(_with_gang(state, brief), refusal.member, {})
    return Message(WARNING, reason, with_command(note, refusal.member, counts), "gang", brief)


def _with_gang(state: GangState, why: str) -> str:
    return f"waits with {state.key}: {why}"


def over_budget(refusal: Unschedulable, pause: float) -> Message:
    """Return a message about a selector that takes too long. `pause`: seconds until the next attempt."""
    note = (
        f"{refusal.error}. The pod is not placed. Write the selector without loops, or ask your administrator for a DeviceClass; "
        f"hami-dra tries again in {_span(pause)}"
    )
    return Message(WARNING, SELECTOR_OVER_BUDGET, note, "over budget")


def namespace_over_budget(note: str) -> Message:
    return Message(WARNING, SELECTOR_OVER_BUDGET, note, "namespace over budget")


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def warning(reason: str, note: str) -> Message:
    return Message(WARNING, reason, note)


def internal_error(reason: str) -> Message:
    """Return a message about a bug of hami-dra, whose exception is in the log."""
    note = (
        "hami-dra had an internal error with this pod and tries again later. What happened is in its log: "
        f"kubectl -n {names.SYSTEM_NAMESPACE} logs deployment/{names.CONTROLLER}"
    )
    return Message(WARNING, reason, note)


def repeatedly_refused(times: int, why: str) -> Message:
    """Return a message about a pod that lost its allocation again. `why`: the words of kube-scheduler, or the cause."""
    note = (
        f"{times} allocations of this pod were taken back, for reasons that hami-dra cannot foresee; nodes in other zones and of "
        f"other shapes are tried first. The last: {why}"
    )
    return Message(WARNING, REPEATEDLY_REFUSED, note, REPEATEDLY_REFUSED)


def decision_stalled(note: str) -> Message:
    """Return a message whose times differ each time: it forms one series."""
    return Message(WARNING, DECISION_STALLED, note, DECISION_STALLED)


def gate_not_lifted(problem: str) -> Message:
    """Return a message about a gate. `problem`: the API server's words."""
    note = (
        f"the scheduling gate {names.GATE} cannot be removed, so kube-scheduler ignores the pod: {problem}. "
        "hami-dra keeps retrying"
    )
    return Message(WARNING, GATE_NOT_LIFTED, note, GATE_NOT_LIFTED)

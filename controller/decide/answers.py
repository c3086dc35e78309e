"""The answers of `decide`: a `Decision`, or an `Unschedulable` with the reasons by card and node."""

from collections import deque
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeVar

from msgspec import Struct

from controller.decide.company import LeftOut
from controller.decide.trace import Trace
from controller.inventory.ledger import Holding
from controller.inventory.model import DeviceId
from controller.inventory.selector_budget import Overrun
from controller.reasons.reason import Reason, with_command
from hami_dra.api.resource import ResourceClaim


class ClaimAllocation(Struct, frozen=True):
    pod_claim_name: str
    claim: ResourceClaim
    allocation: dict[str, Any]
    """JSON of AllocationResult, without shareID and allocationTimestamp."""
    holdings: tuple[Holding, ...]
    """What the claim will hold by it."""


class Score(Struct, frozen=True):
    node: float
    devices: tuple[tuple[str, float], ...] = ()
    """`driver/pool/device` → device score, in order of the results."""
    topology: float = 0.0
    """The vendors' score of the sets of cards; nodes are compared by it before their own score."""


@dataclass(frozen=True, slots=True)
class Decision:
    node: str
    allocations: tuple[ClaimAllocation, ...]
    """Only the managed claims that had no allocation before."""
    score: Score
    fitting: tuple[tuple[str, float], ...]
    """The fitting nodes with their scores, best first, at most `Options.report_nodes`."""
    fitting_count: int
    unfit_count: int
    left_out: tuple[LeftOut, ...] = ()
    """Pods that share a claim with this one and do not fit on the node."""
    trace: Trace | None = field(default=None, compare=False, repr=False)
    """The data that the decision evaluated; see there. None once it was dropped."""

    @property
    def holdings(self) -> dict[str, tuple[Holding, ...]]:
        """What the claims will hold, by their uid."""
        return {entry.claim.metadata.uid: entry.holdings for entry in self.allocations}

    @property
    def devices(self) -> frozenset[DeviceId]:
        return frozenset([holding.device for entry in self.allocations for holding in entry.holdings])


@dataclass(frozen=True, slots=True)
class Unschedulable:
    message: str
    """One sentence (`refusal_reason`), or the error."""
    _: KW_ONLY
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Reason code → number of cards (or nodes) for which it is the first failing reason."""
    nodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Node → reason code → count, at most `Options.report_nodes`."""
    error: str = ""
    """Set if the allocator could not even search (bad selector, missing class, mixed drivers)."""
    only_quota: bool = False
    """Some node has room, and only a quota of the namespace is in the way: neither more nodes nor
    preemption would help.
    """
    node_counts: Mapping[str, int] = field(default_factory=dict)
    """Reason code → number of nodes with it; `nodes` names only some of them."""
    invalid_claim: bool = False
    """The error is that a claim asks for something that its DeviceClass does not allow."""
    invalid: bool = False
    """The error is in the pod's own objects: it ends when these, or a DeviceClass, change."""
    overrun: Overrun | None = None
    """The selectors of a claim exceeded their time limit; `error` says which, and by how much."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """Reason code of nodes → why one of them is refused: plugin of kube-scheduler, object, figure."""
    reason: Reason | None = None
    """What the message says; None where it is an error."""
    trace: Trace | None = field(default=None, compare=False, repr=False)
    """See `Decision.trace`."""

    @property
    def keeps_gate(self) -> bool:
        """Neither a new node nor preemption would help: kube-scheduler need not see the pod."""
        return self.only_quota or self.invalid or (self.reason is not None and self.reason.is_invalid)

    @property
    def lacks_room(self) -> bool:
        """Whether it may fit once others have left."""
        return self.reason is not None and not self.reason.never and not self.keeps_gate and self.overrun is None

    def sentence(self, pod_key: str) -> str:
        """Return the message for a pod, with the next command and HAMi's codes."""
        return self.error or with_command(self.message, pod_key, self.node_counts)


class EqualRefusals:
    """Lets equal refusals be one object: thousands of pods are refused for the same few reasons."""

    def __init__(self) -> None:
        self._latest: deque[Unschedulable] = deque(maxlen=8)

    def of(self, answer: "Decision | Unschedulable") -> "Decision | Unschedulable":
        """Return an equal refusal of before, if it is among the latest. `answer`: without its trace."""
        if not isinstance(answer, Unschedulable):
            return answer
        for each in self._latest:
            if each == answer:
                return each
        self._latest.append(answer)
        return answer


Answer = Decision | Unschedulable

_Answer = TypeVar("_Answer", bound=Decision | Unschedulable)


def without_trace(answer: _Answer) -> _Answer:
    """Drop the trace, so that the answer can be stored: it then refers to no column."""
    return replace(answer, trace=None)

"""What `decide` answers: a `Decision`, a `Unschedulable` that says why, card by card and node by node, or that it is `Unfinished`."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeVar

from controller.scheduling.decide.company import LeftOut
from controller.scheduling.decide.trace import Trace
from controller.scheduling.inventory.selector_budget import Overrun, SliceSpent
from hami_dra.api.resource import ResourceClaim


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    pod_claim_name: str
    claim: ResourceClaim
    allocation: dict[str, Any]
    """JSON of AllocationResult, without shareID and allocationTimestamp."""


@dataclass(frozen=True, slots=True)
class Score:
    node: float
    devices: tuple[tuple[str, float], ...] = ()
    """`driver/pool/device` → device score, in order of the results."""
    topology: float = 0.0
    """What the vendors say of the sets of cards; on it nodes are compared before their own score."""


@dataclass(frozen=True, slots=True)
class Decision:
    node: str
    allocations: tuple[ClaimAllocation, ...]
    """Only the claims that were not allocated before and are ours."""
    score: Score
    fitting: tuple[tuple[str, float], ...]
    """The fitting nodes with their scores, best first, at most `Options.report_nodes`."""
    fitting_count: int
    unfit_count: int
    left_out: tuple[LeftOut, ...] = ()
    """Pods that share a claim with this one and do not fit on the node."""
    trace: Trace | None = field(default=None, compare=False, repr=False)
    """What was looked at; see there. None where it was let go."""


@dataclass(frozen=True, slots=True)
class Unschedulable:
    message: str
    """HAMi's `no available node, <k> nodes do not meet`, or the error."""
    _: KW_ONLY
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Reason code → how many cards (or nodes) have it as their first failing one."""
    nodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Node → reason code → count, at most `Options.report_nodes`."""
    pools: tuple[str, ...] = ()
    """Pools that cannot be used as published, on nodes that would do otherwise, and why; a few of them."""
    error: str = ""
    """Not empty: the allocator could not even search (bad selector, missing class, mixed drivers)."""
    quotas: tuple[str, ...] = ()
    """Where a quota is among the reasons: what the quotas of the namespace say, and how much of them is used."""
    only_quota: bool = False
    """Some node has room, and a quota of the namespace alone is in the way: no further node and no preemption would help."""
    node_counts: Mapping[str, int] = field(default_factory=dict)
    """Reason code → how many nodes have it; `nodes` names only some of them."""
    invalid_claim: bool = False
    """The error is that a claim asks for what its DeviceClass does not allow."""
    overrun: Overrun | None = None
    """The selectors of a claim take more time than they may; `error` says which, and how much."""
    trace: Trace | None = field(default=None, compare=False, repr=False)
    """As in `Decision`."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The selector budget in force wants others to have their turn. Ask again: what was evaluated is kept."""

    cause: SliceSpent


Answer = Decision | Unschedulable | Unfinished

_Answer = TypeVar("_Answer", bound=Decision | Unschedulable)


def without_trace(answer: _Answer) -> _Answer:
    """To be kept: refers to no column."""
    return replace(answer, trace=None)

"""`decide`: which node and which devices a pod gets, or why it gets none.

Called by `reconcile` for every pending pod and by `simulate`. Pure: no clock, no randomness, no I/O; the same inventory
and demand give the same answer. What it returns is not stamped: shareIDs and the allocation timestamp are the caller's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.inventory.inventory import Inventory
from controller.scoring.policies import Policies
from hami_dra.api.core import Pod
from hami_dra.api.resource import ResourceClaim


@dataclass(frozen=True, slots=True)
class PodClaim:
    pod_claim_name: str
    claim: ResourceClaim


@dataclass(frozen=True, slots=True)
class Demand:
    """A pod and everything about it that decides its place."""

    pod: Pod
    claims: tuple[PodClaim, ...]
    """All claims of the pod in the pod's order, allocated ones included. A claim all of whose devices are foreign is
    not allocated by us: the node is chosen where it looks satisfiable."""
    policies: Policies = Policies()
    refused_nodes: Mapping[str, str] = field(default_factory=dict)
    """Node → why; remembered refusals of kube-scheduler."""
    preferred_node: str = ""
    """`status.nominatedNodeName`: taken if it fits, whatever the scores say."""
    required_node: str = ""
    """`spec.nodeName` of a pod that skipped the scheduler."""
    companions: tuple[Pod, ...] = ()
    """Other pending pods that share a claim with this one: the node must fit them all."""
    plugin_resources: tuple[str, ...] = ()
    """Extended resources the pod asked for before conversion: nodes whose device plugin still offers one are refused."""


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


@dataclass(frozen=True, slots=True)
class Refusal:
    message: str
    """HAMi's `no available node, <k> nodes do not meet`, or the error."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Reason code → how many cards (or nodes) have it as their first failing one."""
    nodes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Node → reason code → count, at most `Options.report_nodes`."""
    error: str = ""
    """Not empty: the allocator could not even search (bad selector, missing class, mixed drivers)."""


@dataclass(frozen=True, slots=True)
class Options:
    managed: frozenset[str] | None = None
    """Drivers that are ours to allocate; None = every driver (`simulate`)."""
    first_fit: bool = False
    """Upstream's own order, vendor rules off."""
    fence_key: str = "hami.io/controller-allocates"
    report_nodes: int = 20


def decide(inventory: Inventory, demand: Demand, options: Options) -> Decision | Refusal:
    raise NotImplementedError

"""What `decide` is asked: a pod and everything about it that decides its place, and how to decide."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.scheduling.allocation.features import FeatureGates
from controller.scheduling.allocation.search import DEFAULT_BUDGET
from controller.scheduling.decide.companions import Companions
from controller.scheduling.scoring.policies import Policies
from controller.scheduling.scoring.ranking import NodeRanker, rank_nodes
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.resource import ResourceClaim


@dataclass(frozen=True, slots=True)
class PodClaim:
    pod_claim_name: str
    claim: ResourceClaim


@dataclass(frozen=True, slots=True)
class SchedulingRequest:
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
    companions: tuple[Companions, ...] = ()
    """Other pods that share a claim with this one and could run: a node that fits more of them is better (`decide.company`)."""
    refused_for_companions: Mapping[str, int] = field(default_factory=dict)
    """Node → for how many of them kube-scheduler refused it."""
    plugin_resources: tuple[str, ...] = ()
    """Extended resources that stand for the cards it may get: nodes whose device plugin still offers one are refused."""

    @property
    def needs_full_path(self) -> bool:
        """Something beside the pod's own shape decides which nodes may take it."""
        return bool(
            self.refused_nodes
            or self.preferred_node
            or self.required_node
            or self.companions
            or any(entry.claim.status.allocation is not None for entry in self.claims)
        )


@dataclass(frozen=True, slots=True)
class Options:
    managed: frozenset[str] | None = None
    """Drivers that are ours to allocate; None = every driver (`simulate`)."""
    first_fit: bool = False
    """Upstream's own order, vendor rules off."""
    gates: FeatureGates = FeatureGates()
    fence_key: str = names.FENCE_TAINT
    report_nodes: int = 20
    search_steps: int = DEFAULT_BUDGET
    """Of the search on one node, before it is given up."""
    rank_nodes: NodeRanker = rank_nodes
    """How nodes are compared under `fair-share`; benchmarks compare other rules with it."""

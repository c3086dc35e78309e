"""The input of `decide`: a pod with everything that decides its placement, and the options of the decision."""

from collections.abc import Mapping

from msgspec import Struct, field

from controller.allocation.attempt import Attempt
from controller.allocation.features import FeatureGates
from controller.allocation.search import DEFAULT_BUDGET
from controller.decide.allowed_nodes import AllowedNodes
from controller.decide.companions import Companions
from controller.inventory.model import DeviceId
from controller.scoring.policies import Policies
from controller.scoring.ranking import NodeRanker, rank_nodes
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.resource import ResourceClaim


class PodClaim(Struct, frozen=True):
    pod_claim_name: str
    claim: ResourceClaim


class SchedulingRequest(Struct, frozen=True):
    """A pod and everything about it that decides its placement."""

    pod: Pod
    claims: tuple[PodClaim, ...]
    """All claims of the pod in the pod's order, including allocated ones. A claim whose devices are
    all foreign is not allocated by hami-dra: a node is chosen where it looks satisfiable.
    """
    policies: Policies = Policies()
    refused_nodes: Mapping[str, str] = field(default_factory=dict)
    """Node → reason; remembered refusals of kube-scheduler."""
    earlier_refusals: Mapping[str, int] = field(default_factory=dict)
    """Node → how often kube-scheduler refused it for this pod, refusals that ended included
    (`decide.unlike_refused`).
    """
    preferred_node: str = ""
    """`status.nominatedNodeName`: taken if it fits, whatever the scores."""
    required_node: str = ""
    """`spec.nodeName` of a pod that skipped the scheduler."""
    companions: tuple[Companions, ...] = ()
    """Other runnable pods that share a claim with this one: a node that fits more of them is better
    (`decide.company`).
    """
    refused_for_companions: Mapping[str, int] = field(default_factory=dict)
    """Node → number of companions that kube-scheduler refused there."""
    plugin_resources: tuple[str, ...] = ()
    """Extended resources of the cards it may get: nodes whose device plugin still offers one are refused."""
    uses_spares: bool = False
    """It may have nodes that are held back: all pods of its unit state that they are preemptible, or it repairs its gang."""
    allowed_nodes: AllowedNodes | None = None
    """Only these nodes, for a member of a gang; None: all."""
    masked_devices: frozenset[DeviceId] = frozenset()
    """Devices that are free and not to be chosen, so that the search finds another set. Not for
    requests for all devices.
    """

    @property
    def needs_full_path(self) -> bool:
        """Whether more than the pod's own shape decides which nodes fit."""
        return bool(
            self.refused_nodes
            or self.earlier_refusals
            or self.preferred_node
            or self.required_node
            or self.companions
            or self.masked_devices
            or any(entry.claim.status.allocation is not None for entry in self.claims)
        )


class Options(Struct, frozen=True):
    managed: frozenset[str] | None = None
    """Drivers that hami-dra allocates; None = every driver (`simulate`)."""
    first_fit: bool = False
    """Upstream's own order, without vendor rules."""
    gates: FeatureGates = FeatureGates()
    fence_key: str = names.FENCE_TAINT
    report_nodes: int = 20
    says_why: bool = True
    """False: a refusal has no reasons, which take most of its time; plans of preemption need none."""
    search_steps: int = DEFAULT_BUDGET
    """Limit of the search on one node, in steps."""
    attempt: Attempt | None = None
    """Limit of this attempt; None: there is no other."""
    honor_preferences: bool = True
    """Nodes that the pod prefers come before those that the node policy prefers."""
    rank_nodes: NodeRanker = rank_nodes
    """Comparison of nodes under `fair-share`; benchmarks replace it to compare other rules."""

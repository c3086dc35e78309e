"""Groups of pods that are scheduled together: PodGroup of Kubernetes, and of coscheduling and
Volcano.

Sources: k8s.io/api scheduling/v1beta1 (1.37) and v1alpha2 (1.36), which differ in nothing that is
read here; sigs.k8s.io/scheduler-plugins apis/scheduling/v1alpha1; volcano.sh/apis
scheduling/v1beta1.
"""

import msgspec

from hami_dra.api.core import PodResourceClaim
from hami_dra.api.meta import UNREADABLE, Object, Struct


class BasicSchedulingPolicy(Struct, frozen=True):
    """The pods are scheduled one by one."""


class GangSchedulingPolicy(Struct, frozen=True):
    min_count: int = 0


class PodGroupSchedulingPolicy(Struct, frozen=True):
    """Exactly one of the two is set."""

    basic: BasicSchedulingPolicy | None = None
    gang: GangSchedulingPolicy | None = None


class TopologyKey(Struct, frozen=True):
    key: str = ""
    """Label of nodes."""


class PodGroupSchedulingConstraints(Struct, frozen=True):
    topology: tuple[TopologyKey, ...] = ()
    """At most one: all pods of the group run on nodes with one value of the label."""


class PodGroupResourceClaim(Struct, frozen=True):
    """A claim of the whole group. A pod uses it by an entry of its own with equal name, claim and template."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class DisruptionMode(Struct, frozen=True):
    """Exactly one of the two is set; `single` where nothing is stated."""

    single: BasicSchedulingPolicy | None = None
    all: BasicSchedulingPolicy | None = None
    """The pods go together or not at all."""


class PodGroupSpec(Struct, frozen=True):
    scheduling_policy: PodGroupSchedulingPolicy = PodGroupSchedulingPolicy()
    scheduling_constraints: PodGroupSchedulingConstraints | None = None
    resource_claims: tuple[PodGroupResourceClaim, ...] = ()
    priority: int | None = None
    disruption_mode: DisruptionMode | str | None = None
    """A text in 1.36: `Pod` or `PodGroup`."""
    unreadable: str = msgspec.field(default="", name=UNREADABLE)
    """Why only a stub was kept (`api.oversized`): no pod of the group is placed."""


class PodGroup(Object, frozen=True):
    """PodGroup of `scheduling.k8s.io`."""

    spec: PodGroupSpec = PodGroupSpec()

    @property
    def goes_as_one(self) -> bool:
        """Return whether its pods may only be disrupted together."""
        mode = self.spec.disruption_mode
        return mode == "PodGroup" if isinstance(mode, str) else mode is not None and mode.all is not None


def is_group_claim(claim: PodResourceClaim, group: PodGroup | None) -> bool:
    """Return whether an entry of a pod is the claim of its PodGroup: then it is reserved for the
    group (`BindTo` in k8s.io/dynamic-resource-allocation/resourceclaim).
    """
    stated = (claim.name, claim.resource_claim_name or "", claim.resource_claim_template_name or "")
    return group is not None and any(
        (each.name, each.resource_claim_name, each.resource_claim_template_name) == stated
        for each in group.spec.resource_claims
    )


class MinMemberSpec(Struct, frozen=True):
    min_member: int = 0


class MinMemberPodGroup(Object, frozen=True):
    """PodGroup of coscheduling (`scheduling.x-k8s.io`) or of Volcano (`scheduling.volcano.sh`)."""

    spec: MinMemberSpec = MinMemberSpec()

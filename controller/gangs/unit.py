"""The unit of scheduling: the members to be placed together, and where. One pod is a unit of one. Pure."""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from controller.cluster.pods.gang_key import GangKey
from controller.decide.allowed_nodes import AllowedNodes
from controller.decide.answers import Decision
from controller.decide.scheduling_request import SchedulingRequest


class TopologyConstraint(Struct, frozen=True):
    """The members run on nodes that agree in the value of a label."""

    key: str
    """Key of the node label."""
    required: bool
    """False: it is only preferred."""
    source: str
    """Object and field for messages: `PodGroup team/train spec.schedulingConstraints.topology[0].key`."""


class Unit(Struct, frozen=True):
    """The input of `decide_unit`."""

    key: GangKey | None
    """None: one pod that belongs to no gang."""
    members: tuple[SchedulingRequest, ...]
    """The members that are not bound, oldest first, each as if it were decided alone. Claims that
    are allocated pin their member to a node.
    """
    least: int
    """How many of `members` must be placed at once: minCount less the members that are bound,
    0 <= least <= len(members). The others are elastic.
    """
    topology: tuple[TopologyConstraint, ...] = ()
    """Required ones first; within either the narrowest first (clique, rack, zone)."""
    settled_nodes: tuple[str, ...] = ()
    """Nodes of the members that are bound: the others join their domain."""

    def within(self, nodes: AllowedNodes) -> "Unit":
        """Return the unit, all of whose members may run on these nodes only."""
        members = tuple([replace(request, allowed_nodes=nodes) for request in self.members])
        return replace(self, members=members)

    def as_asked(
        self, placed: Iterable[tuple[SchedulingRequest, Decision]]
    ) -> tuple[tuple[SchedulingRequest, Decision], ...]:
        """Return what was placed, with the members as they are here: they were restricted to nodes."""
        members = {request.pod.metadata.uid: request for request in self.members}
        return tuple([(members[request.pod.metadata.uid], decision) for request, decision in placed])

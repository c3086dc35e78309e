"""Assesses a gang: which of its members can be decided now, and which wait for what.

Called by the scheduling cycle, once per evaluation of a gang. Each member is assessed like a pod
alone (`pod_assessment`). Reads the informers and changes nothing.
"""

from collections.abc import Callable

from msgspec import Struct

from controller.cluster.incremental import digest_of
from controller.gangs import GangState, TopologyConstraint, constraints_of
from controller.reconcile.queueing.pod_assessment import Answer, Pending, Schedulable
from hami_dra.api.core import Pod
from hami_dra.api.podstate import priority


class BlockedMember(Struct, frozen=True):
    pod: Pod
    wait: Pending


class GangAssessment(Struct, frozen=True):
    """The pending members of a gang, by what is still to be done for them."""

    state: GangState
    ready: tuple[Schedulable, ...] = ()
    """To be decided, in the order in which kube-scheduler would take them from its queue."""
    settled: tuple[Pod, ...] = ()
    """They need no decision: all their claims are allocated, or hami-dra allocates none of them."""
    blocked: tuple[BlockedMember, ...] = ()
    """They cannot be decided now."""
    topology: tuple[TopologyConstraint, ...] = ()
    settled_nodes: tuple[str, ...] = ()
    """Nodes of the members that are bound or settled."""

    @property
    def least(self) -> int:
        """How many members must be placed by this decision, so that minCount of them can run."""
        return max(self.state.least - len(self.settled), 0)

    @property
    def is_blocked(self) -> bool:
        """Whether too many members cannot be decided now."""
        return len(self.ready) < self.least

    @property
    def signature(self) -> bytes:
        """Equal for gangs that ask for the same: they all fit, or none of them does."""
        return digest_of(
            [
                "gang",
                sorted(member.signature for member in self.ready),
                self.least,
                [(each.key, each.required) for each in self.topology],
                self.settled_nodes if self.topology else (),
            ]
        )

    @property
    def identity(self) -> object:
        """Which pods and claims would be decided, besides what they ask for."""
        return [
            (
                request.pod.metadata.uid,
                request.pod.metadata.labels,
                request.pod.spec,
                [(entry.claim.metadata.uid, entry.claim.status) for entry in request.claims],
            )
            for request in (member.request for member in self.ready)
        ]


def assess_gang(
    assess: Callable[[Pod, float], Answer], node_of: Callable[[Pod], str], state: GangState, now: float, first: str
) -> GangAssessment:
    """Assess the members until too many of them wait for something.

    `assess`: as `PodAssessor.assess`. `node_of`: the node to which a pending pod is pinned, or
    empty. `first`: key of the pod that was in the way the last time. It is assessed first, then
    those after it, so that a gang whose claims are generated one after the other costs one look for
    each. Raises SliceSpent.
    """
    ready: list[Schedulable] = []
    settled: list[Pod] = []
    blocked: list[BlockedMember] = []
    pending = state.pending
    spare = len(pending) - state.least
    for pod in _in_order(pending, first):
        answer = assess(pod, now)
        if isinstance(answer, Schedulable):
            ready.append(answer)
        elif isinstance(answer, Pending):
            blocked.append(BlockedMember(pod, answer))
            if len(blocked) > spare:
                break
        else:
            settled.append(pod)
    turns = {pod.metadata.uid: turn for turn, pod in enumerate(sorted(pending, key=priority, reverse=True))}
    ready.sort(key=lambda each: turns[each.request.pod.metadata.uid])
    nodes = {pod.spec.node_name for pod in state.members} | {node_of(pod) for pod in settled}
    return GangAssessment(
        state,
        tuple(ready),
        tuple(settled),
        tuple(blocked),
        constraints_of(state, [member.request for member in ready]),
        tuple(sorted(nodes - {""})),
    )


def _in_order(pending: tuple[Pod, ...], first: str) -> tuple[Pod, ...]:
    """Return the members from the first one on, then those before it."""
    at = next((index for index, pod in enumerate(pending) if pod.key == first), 0)
    return pending[at:] + pending[:at]

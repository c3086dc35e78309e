"""Assesses a unit: one pod, or the members of a gang that wait. Pure.

Called once per evaluation of a unit, by the scheduling cycle and by simulations, which say how one
pod is assessed: the controller adds what only it knows to `assess`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from controller.assessment.pod_assessment import Foreign, Ignored, signature, states_preemptible
from controller.cluster.incremental import digest_of
from controller.decide import SchedulingRequest
from controller.gangs import GangKey, GangState, TopologyConstraint, Unit, constraints_of, reads_labels
from controller.inventory import Inventory
from hami_dra.api.core import Pod
from hami_dra.api.podstate import priority

Wait = TypeVar("Wait")
Why = TypeVar("Why")


@dataclass(frozen=True, slots=True)
class Undecided(Generic[Why]):
    """A pod that is not decided now, and why."""

    pod: Pod
    why: Why


class Signature(NamedTuple):
    digest: bytes
    """Equal for units that ask for the same: they all fit, or none of them does."""
    is_uniform: bool
    """All members ask for the same, and anywhere: what helps one of them helps the unit."""


@dataclass(frozen=True)
class AssessedUnit(Generic[Wait]):
    """The pods of a unit, by what is still to be done for them."""

    pod: Pod
    """The one whose turn it is."""
    pods: tuple[Pod, ...]
    """All that wait."""
    gang: GangState | None = None
    """None: one pod that belongs to no gang."""
    ready: tuple[SchedulingRequest, ...] = ()
    """To be decided, in the order in which kube-scheduler would take them from its queue."""
    settled: tuple[Undecided[Ignored | Foreign], ...] = ()
    """They need no decision: all their claims are allocated, or hami-dra allocates none of them."""
    blocked: tuple[Undecided[Wait], ...] = ()
    """They cannot be decided now."""
    settled_nodes: tuple[str, ...] = ()
    """Nodes of the members that are bound or settled."""

    @property
    def key(self) -> GangKey | str:
        """The gang, or the UID of the pod."""
        return self.gang.key if self.gang is not None else self.pod.metadata.uid

    @cached_property
    def least(self) -> int:
        """How many members must be placed by this decision, so that enough of them can run."""
        return max((self.gang.least if self.gang is not None else 1) - len(self.settled), 0)

    @property
    def is_blocked(self) -> bool:
        """Whether too many members cannot be decided now."""
        return len(self.ready) < self.least or bool(self.blocked and not self.ready)

    @property
    def has_minimum(self) -> bool:
        """Whether enough of the gang run, or are about to: the others ask one by one, as pods do."""
        return self.gang is not None and not self.least

    @property
    def may_be_released(self) -> bool:
        """Whether members have their devices, and too few others have: no pod is evicted for the rest."""
        return bool(self.least) and any(each.pod.spec.resource_claims for each in self.settled)

    @cached_property
    def topology(self) -> tuple[TopologyConstraint, ...]:
        return constraints_of(self.gang, self.ready) if self.gang is not None else ()

    @property
    def unit(self) -> Unit:
        key = self.gang.key if self.gang is not None else None
        return Unit(key, self.ready, self.least, self.topology, self.settled_nodes)

    def signature(self, inventory: Inventory) -> Signature:
        related = self.gang is not None and any(reads_labels(request.pod) for request in self.ready)
        members = [
            signature(request, by_labels=related or inventory.rules.refuses_by_labels(request.pod))
            for request in self.ready
        ]
        if self.gang is None:
            return Signature(members[0], is_uniform=True)
        constraints = [(each.key, each.required) for each in self.topology]
        nodes = self.settled_nodes if self.topology else ()
        digest = digest_of(["gang", sorted(members), self.least, constraints, nodes])
        return Signature(digest, is_uniform=len({*members}) == 1 and not self.topology)


def assess_unit(
    pod: Pod,
    pods: Iterable[Pod],
    gang: GangState | None,
    assess: Callable[[Pod], SchedulingRequest | Ignored | Foreign | Wait],
    *,
    first: str = "",
    thorough: bool = False,
    node_of: Callable[[Pod], str] = lambda _pod: "",
) -> AssessedUnit[Wait]:
    """Assess the pods until too many of them wait for something; `thorough`: all of them.

    `pod`: the one whose turn it is. `assess`: returns the request of a pod, or why it is not decided.
    `node_of`: the node to which a settled pod is pinned, or empty. `first`: key of the pod that was
    in the way the last time. It is assessed first, then those after it, so that a gang whose claims
    are generated one after the other costs one look for each. Raises SliceSpent.
    """
    pods = tuple(pods)
    ready: list[SchedulingRequest] = []
    settled: list[Undecided[Ignored | Foreign]] = []
    blocked: list[Undecided[Wait]] = []
    spare = len(pods) - (gang.least if gang is not None else 1)
    for member in _in_order(pods, first):
        answer = assess(member)
        if isinstance(answer, SchedulingRequest):
            ready.append(answer)
        elif isinstance(answer, Ignored | Foreign):
            settled.append(Undecided(member, answer))
        else:
            blocked.append(Undecided(member, answer))
            if len(blocked) > spare and not thorough:
                break
    turns = {each.metadata.uid: turn for turn, each in enumerate(sorted(pods, key=priority, reverse=True))}
    ready.sort(key=lambda request: turns[request.pod.metadata.uid])
    if gang is not None:
        uses_spares = bool(gang.bound and gang.least) or all(map(states_preemptible, gang.members))
        ready = [replace(request, uses_spares=uses_spares) for request in ready]
    bound = gang.members if gang is not None else ()
    nodes = {each.spec.node_name for each in bound} | {node_of(each.pod) for each in settled}
    return AssessedUnit(
        pod, pods, gang, tuple(ready), tuple(settled), tuple(blocked), settled_nodes=tuple(sorted(nodes - {""}))
    )


def _in_order(pods: tuple[Pod, ...], first: str) -> tuple[Pod, ...]:
    """Return the pods from the first one on, then those before it."""
    at = next((index for index, pod in enumerate(pods) if pod.key == first), 0)
    return pods[at:] + pods[:at]

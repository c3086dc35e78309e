"""Places that are held for units while pods terminate there.

What is held is assumed on top of the pods that are still there. When these are gone the place is the
unit's; for everybody else it was never free. A hold lasts until the unit is placed, or it is given up.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from controller.decide import Decision, SchedulingRequest
from controller.gangs import GangKey
from controller.inventory import QuotaLine, Trial
from controller.moves import Moved, as_waiting
from controller.reconcile.binding import AssumedPods
from hami_dra.api.core import Pod
from hami_dra.api.meta import Object, controller_of
from hami_dra.api.podclaims import claim_keys

Item = TypeVar("Item", bound=Object)
_MOVED: Final = "moved/"
"""Before the UID of a pod or claim that moves: those of what is held for it."""
Slot = tuple[tuple[str, ...], str]
"""Device classes, and the size of the place: empty for one node."""


class Transfer(Struct, eq=False):
    """A pod that moves: it is evicted, and the one that replaces it has a place."""

    pod: Pod
    placeholder: Pod
    """Counts at the new place, with UIDs that no object has."""
    decision: Decision
    claims: tuple[str, ...]
    """UIDs of the claims that are free without the pod."""
    until: float = math.inf
    """When it must have arrived, in seconds of the monotonic clock; infinite: it is not evicted yet."""
    successor: Pod | None = None
    """The pod that replaces it."""
    is_held: bool = True
    """Whether the place is held: that of the successor is its own once it is decided."""
    has_arrived: bool = False

    @property
    def is_begun(self) -> bool:
        return self.until < math.inf

    def is_replaced_by(self, pod: Pod) -> bool:
        return pod.metadata.namespace == self.pod.metadata.namespace and controller_of(pod) == controller_of(self.pod)


def transfer_of(moved: Moved) -> Transfer:
    pod, decision = moved.movable.pod, moved.decision
    allocations = tuple([replace(entry, claim=_renamed(entry.claim)) for entry in decision.allocations])
    there = dataclasses.replace(decision, allocations=allocations)
    return Transfer(pod, _renamed(as_waiting(pod)), there, moved.movable.claims)


def _renamed(item: Item) -> Item:
    return replace(item, metadata=replace(item.metadata, uid=_MOVED + item.metadata.uid))


class Hold(Struct, eq=False):
    key: GangKey | str
    """The gang, or the UID of the pod."""
    placed: tuple[tuple[SchedulingRequest, Decision], ...]
    together: tuple[tuple[Pod, ...], ...]
    """The victims, in the order in which they are evicted: each of these goes as a whole or not at all."""
    releasing: tuple[Pod, ...]
    claims: frozenset[str]
    """UIDs of the claims that are free once all of these are gone."""
    priority: int
    began: float
    """Seconds of the monotonic clock."""
    is_owed: bool = False
    """The namespace is owed the place: it is lost to no pod of another one."""
    reclaims: tuple[QuotaLine, ...] = ()
    """What namespaces had when the place was taken back (`PreemptionPlan.reclaims`)."""
    evicted: dict[str, float] = field(default_factory=dict)
    """UID of a victim → when its eviction was accepted, in seconds since 1970."""
    until: float = math.inf
    """When the unit is evaluated at the latest, in seconds of the monotonic clock; a reservation ends then."""
    slot: Slot | None = None
    """Of a reservation (`reservations`); None: pods are evicted for the place, or terminate already."""
    guests: dict[str, frozenset[str]] = field(default_factory=dict)
    """UID of a pod that runs on reserved devices meanwhile, or is to → UIDs of the claims that it was given."""
    ends: float | None = None
    """When a reserved place is free at the latest, in seconds since 1970; None: not known."""
    empty_since: float | None = None
    """Since when only claims are waited for, in seconds of the monotonic clock."""
    transfers: tuple[Transfer, ...] = ()
    """Of its victims, in their order, if these move: each is evicted when all before it have arrived."""
    moves_begin: float = math.inf
    """When pods that are too young now may move for the unit, in seconds of the monotonic clock; infinite: unknown."""

    @property
    def kind(self) -> Literal["preemption", "moves", "reserved"]:
        return "reserved" if self.slot is not None else "moves" if self.transfers else "preemption"

    @property
    def namespace(self) -> str:
        return self.placed[0][0].pod.metadata.namespace

    @property
    def pods(self) -> tuple[Pod, ...]:
        return tuple([request.pod for request, _ in self.placed])

    @property
    def victims(self) -> tuple[Pod, ...]:
        return tuple({pod.metadata.uid: pod for pods in self.together for pod in pods}.values())

    @property
    def leaving(self) -> tuple[Pod, ...]:
        return (*self.victims, *self.releasing)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([decision.node for _, decision in self.placed]))

    @property
    def promised(self) -> list[str]:
        """The UIDs of the claims that are to be allocated there."""
        return [entry.claim.metadata.uid for _, decision in self.placed for entry in decision.allocations]

    def transfer(self, victim: Pod) -> Transfer | None:
        return next((each for each in self.transfers if each.pod.metadata.uid == victim.metadata.uid), None)

    def is_turn(self, victim: Pod) -> bool:
        """Return whether the pod may be evicted now, as to other pods that move."""
        before = itertools.takewhile(lambda each: each.pod.metadata.uid != victim.metadata.uid, self.transfers)
        return all(each.has_arrived for each in before)

    def lift(self, trial: Trial) -> None:
        """Let it not count on the trial."""
        trial.remove_all([pod.metadata.uid for pod in self.pods], self.promised)


class Holds:
    def __init__(self, assumed_pods: AssumedPods) -> None:
        self._assumed_pods = assumed_pods
        self._by_key: dict[GangKey | str, Hold] = {}
        self._concerned: dict[str, dict[GangKey | str, None]] = {}
        """UID of a pod, key of a claim, or name of a node → the holds that it concerns."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Hold]:
        return iter(list(self._by_key.values()))

    def of(self, key: GangKey | str) -> Hold | None:
        return self._by_key.get(key)

    def concerned(self, name: str) -> list[Hold]:
        """Return the holds that a pod (by UID), claim (by key) or node (by name) concerns."""
        return [self._by_key[key] for key in self._concerned.get(name, ())]

    def begin(self, hold: Hold) -> None:
        self._by_key[hold.key] = hold
        for name in _names(hold):
            self._concerned.setdefault(name, {})[hold.key] = None
        for request, decision in hold.placed:
            self._assumed_pods.begin(request.pod, decision)

    def end(self, hold: Hold) -> None:
        del self._by_key[hold.key]
        for name in _names(hold):
            self._concerned[name].pop(hold.key, None)
            if not self._concerned[name]:
                del self._concerned[name]
        for pod in hold.pods:
            self._assumed_pods.end(pod)

    def welcome(self, hold: Hold, placed: Iterable[tuple[SchedulingRequest, Decision]]) -> None:
        """Let a place wait for more pods, which run there meanwhile."""
        for request, decision in placed:
            pod = request.pod
            hold.releasing = (*hold.releasing, pod)
            hold.guests[pod.metadata.uid] = frozenset([each.claim.metadata.uid for each in decision.allocations])
            for name in (pod.metadata.uid, *claim_keys(pod)):
                self._concerned.setdefault(name, {})[hold.key] = None

    def stop(self) -> None:
        """End the term: nothing is held any more."""
        for hold in self:
            self.end(hold)


def _names(hold: Hold) -> dict[str, None]:
    names = dict.fromkeys(pod.metadata.uid for pod in (*hold.pods, *hold.leaving))
    names |= dict.fromkeys(key for pod in hold.leaving for key in claim_keys(pod))
    names |= dict.fromkeys(entry.claim.key for _, decision in hold.placed for entry in decision.allocations)
    return names | dict.fromkeys(hold.nodes)

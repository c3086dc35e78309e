"""The pods on nodes as possible victims: which of them go together, and which are protected. Pure.

Fed with pods as they are placed, bound and go; claims and gangs are looked up when they are needed.
"""

import math
from collections.abc import Callable, Collection, Container, Iterable
from datetime import datetime
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from controller.gangs import GangKey, Gangs, GangState
from controller.inventory.columns import DeviceColumns
from controller.inventory.model import DeviceId
from controller.preemption.bounds import HeldDevices
from controller.preemption.budgets import Budgets
from controller.preemption.plan import PATIENCE
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.flags import duration
from hami_dra.api.meta import belongs_to_node
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.podstate import is_bound, is_live, priority
from hami_dra.api.resource import ResourceClaim
from hami_dra.api.short_texts import cached_if_short

_DURATION: Final = duration(least=0, most=math.inf)
_LONGEST: Final = (1 << 31) - 1
"""Seconds: the longest `activeDeadlineSeconds` that the API server accepts."""
_AT_ONCE: Final = 5_000
"""Claims that are read again at once: 60 ms of CPU."""
_NOT_STARTED: Final = math.inf
"""Counts as started now: after every other pod (GetPodStartTime)."""


class Block(Struct, frozen=True):
    """Pods that are evicted together or not at all."""

    pods: tuple[Pod, ...]
    claims: tuple[str, ...] = ()
    """UIDs of the claims that are free once they are gone."""
    devices: int = 0
    """How many they hold; one that two claims share counts twice."""
    breaks: GangKey | None = None
    """The gang that cannot run any more."""


class NodeSummary(NamedTuple):
    lowest: float
    """Priority of the least important pod."""
    latest: float
    """When the youngest pod started."""
    devices: int
    """The most that one pod holds."""


class Tenants:
    """`claim`: returns a claim by its key."""

    def __init__(self, gangs: Gangs, claim: Callable[[str], ResourceClaim | None]) -> None:
        self._gangs = gangs
        self.claim = claim
        self._on: dict[str, dict[str, Pod]] = {}
        """Node → uid → pod."""
        self._users: dict[str, dict[str, Pod]] = {}
        """Claim → uid → pod."""
        self._releasing: dict[str, Pod] = {}
        self._arriving: dict[str, Pod] = {}
        """By UID, as if they were bound."""
        self._held = HeldDevices()
        self._stale_claims: set[str] = set()
        self._summaries: dict[str, NodeSummary] = {}
        """Those that are up to date."""

    # -- feed --------------------------------------------------------------------------------------

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and is_bound(old):
            self._remove(old)
        if new is not None and is_bound(new):
            self.arrived(new.metadata.uid)
            self._add(new)

    def arrives(self, pod: Pod, node: str) -> None:
        """Count a pod that is not bound on the node to which its claims pin it, until `arrived`."""
        self.arrived(pod.metadata.uid)
        arriving = replace(pod, spec=replace(pod.spec, node_name=node))
        self._arriving[pod.metadata.uid] = arriving
        self._add(arriving)

    def arrived(self, uid: str) -> None:
        """Count a pod only where it is bound."""
        if (arriving := self._arriving.pop(uid, None)) is not None:
            self._remove(arriving)

    def _add(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self._on.setdefault(pod.spec.node_name, {})[uid] = pod
        if pod.metadata.deletion_timestamp is not None:
            self._releasing[uid] = pod
        self._summaries.pop(pod.spec.node_name, None)
        for key in claim_keys(pod):
            self._users.setdefault(key, {})[uid] = pod
            self._note_stale(key)

    def _remove(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        _drop(self._on, pod.spec.node_name, uid)
        self._releasing.pop(uid, None)
        self._summaries.pop(pod.spec.node_name, None)
        for key in claim_keys(pod):
            _drop(self._users, key, uid)
            self._note_stale(key)

    def claim_changed(self, key: str) -> None:
        """Note that a claim may hold other devices."""
        self._note_stale(key)

    def _note_stale(self, key: str) -> None:
        """Note that what a claim holds is to be read again; of a claim that came and went since it was read, nothing."""
        if key in self._users or self._held.knows(key):
            self._stale_claims.add(key)
        else:
            self._stale_claims.discard(key)

    # -- reading -----------------------------------------------------------------------------------

    def on(self, node: str) -> Collection[Pod]:
        return self._on.get(node, {}).values()

    def gang_of(self, pod: Pod) -> GangKey | None:
        return self._gangs.of(pod)

    def is_arriving(self, pod: Pod) -> bool:
        return pod.metadata.uid in self._arriving

    @property
    def are_arriving(self) -> bool:
        """Whether pods have devices that are not bound yet: they are no victims before."""
        return bool(self._arriving)

    def releasing(self, now: float) -> list[Pod]:
        """Return the pods that terminate and are still waited for."""
        return [pod for pod in self._releasing.values() if now <= grace_ends(pod) + PATIENCE]

    def held(self) -> HeldDevices:
        """Return which devices the pods hold that do not terminate."""
        while self._stale_claims:
            self._read(self._stale_claims.pop())
        return self._held

    def is_read(self, devices: DeviceColumns) -> bool:
        """Return whether `held` takes little time; else read a part of it."""
        if len(self._stale_claims) <= _AT_ONCE:
            return True
        for _ in range(_AT_ONCE):
            self._read(self._stale_claims.pop())
        self._held.columns(devices)
        return False

    def _read(self, key: str) -> None:
        """Note what a claim holds now."""
        users = [each for each in self._users.get(key, {}).values() if each.metadata.deletion_timestamp is None]
        claim = self.claim(key) if users else None
        allocation = claim.status.allocation if claim is not None else None
        results = allocation.devices.results if allocation is not None else ()
        devices = {DeviceId(each.driver, each.pool, each.device) for each in results if not each.admin_access}
        self._held.put(key, [*devices], max(map(self.priority, users), default=0))
        for user in users:
            self._summaries.pop(user.spec.node_name, None)

    def summary(self, node: str) -> NodeSummary:
        """Return what is known of all pods of a node that do not terminate; `held` was just called."""
        known = self._summaries.get(node)
        if known is None:
            pods = [pod for pod in self.on(node) if pod.metadata.deletion_timestamp is None]
            known = self._summaries[node] = NodeSummary(
                min(map(self.priority, pods), default=math.inf),
                max(map(started, pods), default=0.0),
                max([self._held.number(claim_keys(pod)) for pod in pods], default=0),
            )
        return known

    def priority(self, pod: Pod) -> int:
        """Return the pod's priority: that of its PodGroup if it states one."""
        group = self._gangs.pod_group(pod)
        stated = group.spec.priority if group is not None else None
        return priority(pod) if stated is None else stated

    def freed_by(self, pods: Iterable[Pod]) -> tuple[str, ...]:
        """Return the UIDs of the claims that no other pod uses."""
        pods = list(pods)
        gone = {pod.metadata.uid for pod in pods}
        freed = []
        for key in dict.fromkeys(key for pod in pods for key in claim_keys(pod)):
            claim = self.claim(key)
            if claim is None or claim.status.allocation is None:
                continue
            reserved = {each.uid for each in claim.status.reserved_for}
            if reserved <= gone and self._users.get(key, {}).keys() <= gone:
                freed.append(claim.metadata.uid)
        return tuple(freed)

    def blocks(
        self, nodes: Iterable[str], may_go: Callable[[Pod], bool], condemned: Container[str] = ()
    ) -> list[Block]:
        """Return the possible victims on these nodes, with the pods of other nodes that go with them.

        `condemned`: UIDs of pods that will be evicted in any case, which a gang cannot count on.
        """
        blocks: list[Block] = []
        seen: set[str] = set()
        gangs: dict[GangKey, list[Pod]] = {}
        for node in nodes:
            for pod in self.on(node):
                if pod.metadata.uid in seen or not may_go(pod):
                    continue
                if (gang := self._gangs.of(pod)) is not None:
                    gangs.setdefault(gang, []).append(pod)
                    continue
                together = self._together(pod)
                seen.update(each.metadata.uid for each in together)
                if all(map(may_go, together)):
                    blocks.append(self._block(together))
        for gang, members in gangs.items():
            blocks += self._of_gang(self._gangs.state(gang), members, may_go, condemned)
        return blocks

    # -- inside ------------------------------------------------------------------------------------

    def _of_gang(
        self, gang: GangState, here: list[Pod], may_go: Callable[[Pod], bool], condemned: Container[str]
    ) -> list[Block]:
        """Return the blocks of a gang: members that it can spare one by one, then all of it.

        Four members of which three must run: the least important one may go alone; if it is not
        enough, all four go.
        """
        bound = {pod.metadata.uid: pod for pod in gang.members if pod.spec.node_name}
        members = [*(bound | {pod.metadata.uid: pod for pod in here}).values()]
        group = self._gangs.pod_group(here[0])
        goes_as_one = bool(gang.problem) or (group is not None and group.goes_as_one)
        going = sum([is_live(pod) and pod.metadata.uid in condemned for pod in members])
        spare = 0 if goes_as_one else gang.bound - going - gang.min_count
        least = sorted(here, key=self._importance)[: max(spare, 0)]
        blocks = [self._block((pod,)) for pod in least if len(self._together(pod)) == 1]
        whole = {each.metadata.uid: each for pod in members for each in self._together(pod)}
        if all(map(may_go, whole.values())):
            blocks.append(self._block(whole.values(), gang.key))
        return blocks

    def _block(self, pods: Iterable[Pod], breaks: GangKey | None = None) -> Block:
        pods = tuple(pods)
        devices = self.held().number({key for pod in pods for key in claim_keys(pod)})
        return Block(pods, self.freed_by(pods), devices, breaks)

    def _together(self, pod: Pod) -> list[Pod]:
        """Return the pods that use one claim with it, directly or through others, and those of a
        PodGroup that goes as one.
        """
        found, left = {pod.metadata.uid: pod}, [pod]
        while left:
            each = left.pop()
            others = [other for key in claim_keys(each) for other in self._users.get(key, {}).values()]
            group = self._gangs.pod_group(each)
            if group is not None and group.goes_as_one:
                others += [other for other in self._gangs.peers(each) if is_bound(other)]
            for other in others:
                if other.metadata.uid not in found:
                    found[other.metadata.uid] = other
                    left.append(other)
        return list(found.values())

    def _importance(self, pod: Pod) -> tuple[int, float]:
        return self.priority(pod), -started(pod)


def why_it_stays(pod: Pod, budgets: Budgets, now: float, least: float = 0.0) -> str:
    """Return why the pod is no victim, whatever its priority, or empty. `least`: see `must_run_until`."""
    if pod.metadata.deletion_timestamp is not None:
        return "it terminates already"
    if pod.metadata.annotations.get(names.PREEMPTIBLE) == "false":
        return f"its annotation {names.PREEMPTIBLE} is false"
    if belongs_to_node(pod):
        return "it belongs to its node"
    if now < must_run_until(pod, now, least):
        return f"its {names.MIN_RUNTIME} of {pod.metadata.annotations.get(names.MIN_RUNTIME, least)} has not passed"
    return budgets.forbids(pod)


def must_run_until(pod: Pod, now: float, least: float = 0.0) -> float:
    """Return when the pod has run as long as its annotation says, in seconds since 1970; 0: it may go at any time.

    `least`: seconds for which a pod runs that says nothing.
    """
    text = pod.metadata.annotations.get(names.MIN_RUNTIME, "")
    stated = seconds_of(text) if text else None
    least = least if stated is None else stated
    return started(pod, now) + least if least else 0.0


def started(pod: Pod, otherwise: float = _NOT_STARTED) -> float:
    """Return when the kubelet took the pod, in seconds since 1970."""
    return _seconds(pod.status.start_time, otherwise)


def grace_ends(pod: Pod) -> float:
    """Return when the grace of a pod that terminates is over, in seconds since 1970."""
    return _seconds(pod.metadata.deletion_timestamp)


def expected_end(pod: Pod, now: float) -> float:
    """Return when the pod ends at the latest if nobody evicts it, in seconds since 1970; infinite: it does not say."""
    if pod.metadata.deletion_timestamp is not None:
        return grace_ends(pod)
    deadline = pod.spec.active_deadline_seconds
    return math.inf if deadline is None else min(started(pod, now), now) + min(deadline, _LONGEST)


def latest_moment(pod: Pod) -> float:
    """Return the last time that a pod states of its life, in seconds since 1970, or 0."""
    stated = (pod.metadata.creation_timestamp, pod.status.start_time, pod.metadata.deletion_timestamp)
    return max([0.0, *(each for text in stated if text and (each := _parsed(text)) < _NOT_STARTED)])


@cached_if_short(256)
def seconds_of(text: str) -> float | None:
    """Return the seconds of the annotation, or None if it is no duration."""
    try:
        return float(_DURATION.read(text)) if _DURATION.read is not None else None
    except ValueError:
        return None


def _seconds(text: str | None, otherwise: float = _NOT_STARTED) -> float:
    return otherwise if text is None else _parsed(text)


@cached_if_short(4_096)
def _parsed(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return _NOT_STARTED


def _drop(where: dict[str, dict[str, Pod]], key: str, uid: str) -> None:
    if (found := where.get(key)) is not None:
        found.pop(uid, None)
        if not found:
            del where[key]

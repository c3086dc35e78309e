"""Which gang a pod is a member of, and what is known of each gang. Pure.

A gang is a group of pods of which none may run before `min_count` of them can. Groups exist under
several names; the first of these that a pod states counts:

| source | on the pod | minCount |
|---|---|---|
| PodGroup | `spec.schedulingGroup.podGroupName` | PodGroup of `scheduling.k8s.io` |
| coscheduling | label `scheduling.x-k8s.io/pod-group` | PodGroup of `scheduling.x-k8s.io` |
| labels | label `pod-group.scheduling.sigs.k8s.io/name` | label `.../min-available` |
| kueue | label `kueue.x-k8s.io/pod-group-name` | annotation `.../pod-group-total-count` |
| leaderworkerset (option) | label `leaderworkerset.sigs.k8s.io/group-key` | annotation `.../size` |
| volcano (option) | annotation `scheduling.k8s.io/group-name` | PodGroup of `scheduling.volcano.sh` |

Updated incrementally with pods and groups, in any order; a group may come after its pods. An event
costs the logarithm of the members of the gang; `Gangs.state` reads all of them.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct, field

from controller.cluster.pods.gang_key import SOURCES, GangKey, Source, gang_of
from controller.gangs.member_index import MemberIndex
from controller.gangs.stated_group import StatedGroup, statements_of
from controller.gangs.unit import TopologyConstraint
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.meta import Object, controller_of
from hami_dra.api.podgroups import PodGroup
from hami_dra.api.podstate import is_live, is_pending, priority, scheduled_condition

_FEW: Final = 64
"""Up to this many members a gang is evaluated at each event."""
_LIVE: Final = frozenset({"pending", "bound"})
_NEVER: Final = "~"
"""Later than every timestamp."""


class GangState(Struct, frozen=True):
    """A gang at one moment."""

    key: GangKey
    min_count: int
    """0 while it is unknown (`problem` then says why)."""
    members: tuple[Pod, ...]
    """Those that wait for a node or run, oldest first; not those that are being deleted."""
    bound: int
    """Number of members that have a node."""
    succeeded: int
    """Number of members that ended well in the run to which the waiting ones belong (`_same_run`).
    Each stands in for a member that does not exist.
    """
    topology: tuple[TopologyConstraint, ...] = ()
    """Required ones first."""
    uid: str = ""
    """UID of the group's object; it is another group when that changes."""
    problem: str = ""
    """Why no member can be placed until the group is corrected: object, field and fix."""

    @property
    def pending(self) -> tuple[Pod, ...]:
        return tuple([pod for pod in self.members if is_pending(pod)])

    @property
    def existing(self) -> int:
        """Number of members that wait, run, or ended well."""
        return self.bound + self.succeeded + len(self.pending)

    @property
    def stand_ins(self) -> int:
        """Number of members that ended well and count, because fewer exist than must run."""
        absent = self.min_count - self.bound - len(self.pending) if self.succeeded else 0
        return max(min(self.succeeded, absent), 0)

    @property
    def least(self) -> int:
        """How many pending members must be placed at once: 0 once enough run.

        >>> key = GangKey("labels", "team", "train")
        >>> [GangState(key, 4, (), bound, 0).least for bound in (0, 3, 4, 5)]
        [4, 1, 0, 0]
        """
        return max(self.min_count - self.bound - self.stand_ins, 0)

    @property
    def missing(self) -> int:
        """How many members must still be created."""
        return max(self.min_count - self.existing, 0)

    @property
    def incomplete(self) -> str:
        """Return why the gang cannot be decided before more pods exist, or empty."""
        if not self.missing:
            return ""
        return (
            f"{self.key} is incomplete: {self.existing} of {self.min_count} members exist; none is placed until the "
            "others exist"
        )

    @property
    def priority(self) -> int:
        """The highest priority of a member."""
        return max(map(priority, self.members), default=0)


class _Gang(Struct):
    """The members of one gang, and its object."""

    pods: dict[str, Pod] = field(default_factory=dict)
    """By UID, finished ones included."""
    counts: Counter[str] = field(default_factory=Counter)
    """Members by state (`_state`)."""
    index: MemberIndex = field(default_factory=MemberIndex)
    """Of the live ones."""
    group: Object | None = None

    def add(self, key: GangKey, pod: Pod) -> None:
        """Add a member, or what it has become."""
        uid, state = pod.metadata.uid, _state(pod)
        if uid in self.pods:
            self._discount(key, self.pods[uid])
        self.pods[uid] = pod
        self.counts[state] += 1
        if state in _LIVE:
            self.index.add(pod, statements_of(key, pod))

    def remove(self, key: GangKey, uid: str) -> None:
        self._discount(key, self.pods.pop(uid))
        self.index.forget(uid)

    def _discount(self, key: GangKey, pod: Pod) -> None:
        state = _state(pod)
        self.counts[state] -= 1
        if state in _LIVE:
            self.index.remove(pod, statements_of(key, pod))


class Gangs:
    """The gangs of a cluster. `also`: optional sources that count."""

    def __init__(self, also: Collection[Source] = frozenset()) -> None:
        self._also = frozenset(also)
        self._gangs: dict[GangKey, _Gang] = {}
        self._keys: dict[str, GangKey] = {}
        """By UID of the pod."""
        self._readable: dict[Source, bool] = dict.fromkeys(SOURCES.values(), True)
        self._checks_priority = True

    # --- feeds ------------------------------------------------------------------------------------

    def set_version(self, major: int, minor: int) -> None:
        """Note the version of Kubernetes. Since 1.37 a PodGroup's priority must be its pods'."""
        self._checks_priority = (major, minor) >= (1, 37)

    def set_readable(self, source: Source, readable: bool) -> None:
        """Note whether the group's kind is served, and may be read."""
        self._readable[source] = readable

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._remove(old.metadata.uid)
        if new is None:
            return
        uid, key = new.metadata.uid, gang_of(new, self._also)
        if self._keys.get(uid) not in (None, key):
            self._remove(uid)
        if key is None:
            return
        gang = self._gangs.setdefault(key, _Gang())
        gang.add(key, new)
        self._keys[uid] = key

    def group_changed(self, source: Source, old: Object | None, new: Object | None) -> None:
        """Feed a PodGroup; `source` says of which API group (`SOURCES`)."""
        found = new or old
        assert found is not None
        key = GangKey(source, found.metadata.namespace, found.metadata.name)
        if new is not None:
            self._gangs.setdefault(key, _Gang()).group = new
        elif (gang := self._gangs.get(key)) is not None:
            gang.group = None
            self._drop_if_empty(key, gang)

    # --- reading ----------------------------------------------------------------------------------

    def of(self, pod: Pod) -> GangKey | None:
        """Return the gang of a pod that was fed, or None: also if its group schedules pod by pod."""
        key = self._keys.get(pod.metadata.uid)
        return key if key is not None and not self._is_basic(self._gangs[key]) else None

    def __contains__(self, key: object) -> bool:
        return key in self._gangs

    def keys(self) -> list[GangKey]:
        """Return the gangs that have members."""
        return [key for key, gang in self._gangs.items() if gang.pods and not self._is_basic(gang)]

    def members(self, key: GangKey) -> Iterable[Pod]:
        """Return the members in no order, finished ones included."""
        gang = self._gangs.get(key)
        return tuple(gang.pods.values()) if gang is not None else ()

    def peers(self, pod: Pod) -> Iterable[Pod]:
        """Return the pods of its group, of one that schedules pod by pod, too."""
        key = self._keys.get(pod.metadata.uid)
        return self.members(key) if key is not None else (pod,)

    def pod_group(self, pod: Pod) -> PodGroup | None:
        """Return the PodGroup of `scheduling.k8s.io` that the pod states, if it is known."""
        key = self._keys.get(pod.metadata.uid)
        group = self._gangs[key].group if key is not None else None
        return group if isinstance(group, PodGroup) else None

    def state(self, key: GangKey) -> GangState:
        """Return what is known of the gang. Costs as much as it has members."""
        gang = self._gangs.get(key, _Gang())
        members = [gang.pods[uid] for uid in gang.index.live()]
        min_count, problem = self._stated(key, gang)
        return GangState(
            key=key,
            min_count=min_count,
            members=tuple(members),
            bound=gang.counts["bound"],
            succeeded=_same_run(gang, members) if gang.counts["succeeded"] else 0,
            topology=_group_of(key, gang).topology(),
            uid=gang.group.metadata.uid if gang.group is not None else "",
            problem=problem,
        )

    def cannot_run(self, key: GangKey) -> bool:
        """Return whether the gang certainly lacks members, or must be corrected (`GangState.problem`),
        and is so large that `state` is not for each event.
        """
        gang = self._gangs.get(key)
        if gang is None or len(gang.pods) <= _FEW:
            return False
        min_count, problem = self._stated(key, gang)
        return bool(problem) or min_count > sum(gang.counts.values())

    def first_waiting(self, key: GangKey, schedulers: Collection[str]) -> Pod | None:
        """Return the oldest pending member with claims that one of these schedulers places."""
        gang = self._gangs.get(key)
        uid = gang.index.first_waiting(schedulers) if gang is not None else ""
        return gang.pods[uid] if gang is not None and uid else None

    def age_and_priority(self, key: GangKey) -> tuple[str, int]:
        """Return when the oldest live member was created, and the highest priority of one."""
        gang = self._gangs.get(key, _Gang())
        return gang.index.oldest(), _group_of(key, gang).priority

    def has_members(self, key: GangKey) -> bool:
        """Return whether the gang has live members."""
        gang = self._gangs.get(key)
        return gang is not None and any(gang.index.live())

    # --- inside -----------------------------------------------------------------------------------

    def _remove(self, uid: str) -> None:
        key = self._keys.pop(uid, None)
        if key is None:
            return
        gang = self._gangs[key]
        gang.remove(key, uid)
        self._drop_if_empty(key, gang)

    def _drop_if_empty(self, key: GangKey, gang: _Gang) -> None:
        if not gang.pods and gang.group is None:
            del self._gangs[key]

    def _stated(self, key: GangKey, gang: _Gang) -> tuple[int, str]:
        """Return minCount, and why no member can be placed until the group is corrected."""
        group = _group_of(key, gang)
        min_count, problem = group.min_count(readable=self._readable.get(key.source, True))
        return min_count, problem or group.problem(checks_priority=self._checks_priority)

    @staticmethod
    def _is_basic(gang: _Gang) -> bool:
        return isinstance(gang.group, PodGroup) and gang.group.spec.scheduling_policy.gang is None


def _group_of(key: GangKey, gang: _Gang) -> StatedGroup:
    return StatedGroup(key, gang.group, gang.pods, gang.index)


def _state(pod: Pod) -> str:
    """Return `pending`, `bound`, `succeeded`, or an empty text for a pod that counts for nothing: it
    failed or is being deleted.
    """
    if is_live(pod):
        return "bound" if pod.spec.node_name else "pending"
    return "succeeded" if pod.status.phase == "Succeeded" and pod.metadata.deletion_timestamp is None else ""


def _same_run(gang: _Gang, members: Iterable[Pod]) -> int:
    """Return how many of the succeeded members belong to the run of the pending ones.

    Finished pods are kept, and a CronJob's next Job has the same labels: its pods are another run.
    A member counts if it has the owner of the pending ones, or was placed when pods of that owner
    existed already. Without an owner the group's object or a running member shows when the run
    began.

    | owner | pod | created | placed | counts for b2, which is pending |
    |---|---|---|---|---|
    | Job a | a0 | 10:00 | 10:01 | no: another run |
    | Job b | b1 | 11:00 | 11:01 | yes |
    | Job c | c1 | 10:59 | 11:01 | yes: b1 and c1 were placed together |
    | Job b | b2 | 11:30 | | |
    """
    began: dict[str, str] = {}
    for pod in gang.pods.values():
        if owner := _owner(pod):
            began[owner] = min(began.get(owner, _NEVER), _created(pod))
    if gang.group is not None:
        began[""] = gang.group.metadata.creation_timestamp or ""
    else:
        running = [_created(pod) for pod in members if pod.spec.node_name and not _owner(pod)]
        began[""] = min(running, default=_NEVER)
    waiting = {_owner(pod) for pod in members if not pod.spec.node_name}

    def counts(pod: Pod) -> bool:
        if waiting == {_owner(pod)} != {""}:
            return True
        placed = _placed(pod)  # times have whole seconds: of two owners the next may follow within one
        return all(placed > began[owner] if owner else placed >= began[owner] for owner in waiting)

    return sum(_state(pod) == "succeeded" and counts(pod) for pod in gang.pods.values())


def _owner(pod: Pod) -> str:
    """Return the UID of the JobSet or controller that creates the pod again, or empty."""
    return pod.metadata.labels.get(names.JOBSET_UID) or controller_of(pod)


def _created(pod: Pod) -> str:
    return pod.metadata.creation_timestamp or ""


def _placed(pod: Pod) -> str:
    """Return when the pod was bound: a time of the API server, like `_created`."""
    condition = scheduled_condition(pod)
    return (condition.last_transition_time if condition is not None else None) or _created(pod)

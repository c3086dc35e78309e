"""The live members of one gang by age, and what each of them states. Pure.

An event about a pod costs the logarithm of the members, and the answers here cost no look at all of
them: a gang of thousands comes and goes pod by pod.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Hashable, Iterable, Iterator

from hami_dra.api.core import Pod
from hami_dra.api.podstate import is_pending, priority

_Turn = tuple[str, int, str]
"""(created, number of arrival, uid)"""
Statement = tuple[str, Hashable]
"""What is stated, and the value."""


class MemberIndex:
    def __init__(self) -> None:
        self._arrivals: dict[str, int] = {}
        """By UID, finished members included."""
        self._latest = 0
        self._live: list[_Turn] = []
        self._waiting: dict[str, list[_Turn]] = {}
        """Pending members with claims, by the name of their scheduler."""
        self._stated: dict[str, dict[Hashable, dict[str, None]]] = {}
        """What is stated → value → UIDs of the members."""

    def add(self, pod: Pod, statements: Iterable[Statement]) -> None:
        """Add a live member, again after `remove` if it changed."""
        turn = self._turn(pod)
        insort(self._live, turn)
        if is_pending(pod) and pod.spec.resource_claims:
            insort(self._waiting.setdefault(pod.spec.scheduler_name, []), turn)
        for what, value in (*statements, (PRIORITY, priority(pod))):
            self._stated.setdefault(what, {}).setdefault(value, {})[turn[2]] = None

    def remove(self, pod: Pod, statements: Iterable[Statement]) -> None:
        """Undo `add`, with the same arguments."""
        turn = self._turn(pod)
        del self._live[bisect_left(self._live, turn)]
        if is_pending(pod) and pod.spec.resource_claims:
            waiting = self._waiting[pod.spec.scheduler_name]
            del waiting[bisect_left(waiting, turn)]
            if not waiting:
                del self._waiting[pod.spec.scheduler_name]
        for what, value in (*statements, (PRIORITY, priority(pod))):
            uids = self._stated[what][value]
            del uids[turn[2]]
            if not uids:
                del self._stated[what][value]

    def forget(self, uid: str) -> None:
        """Forget when the pod arrived: it is gone, or a member of another gang."""
        self._arrivals.pop(uid, None)

    def live(self) -> Iterator[str]:
        """Yield the UIDs, oldest first."""
        return (uid for _, _, uid in self._live)

    def oldest(self) -> str:
        """Return when the oldest member was created; empty without members."""
        return self._live[0][0] if self._live else ""

    def first_waiting(self, schedulers: Collection[str]) -> str:
        """Return the UID of the oldest pending member with claims that one of these schedulers
        places; empty if there is none.
        """
        first = [waiting[0] for name in schedulers if (waiting := self._waiting.get(name))]
        return min(first)[2] if first else ""

    def values(self, what: str) -> Collection[Hashable]:
        """Return the values that members state, the one first that was stated first."""
        return self._stated.get(what, {}).keys()

    def one_of(self, what: str, value: Hashable) -> str:
        """Return the UID of a member that states this."""
        return next(iter(self._stated[what][value]))

    def _turn(self, pod: Pod) -> _Turn:
        uid = pod.metadata.uid
        if uid not in self._arrivals:
            self._latest += 1
            self._arrivals[uid] = self._latest
        return pod.metadata.creation_timestamp or "", self._arrivals[uid], uid


PRIORITY = "priority"

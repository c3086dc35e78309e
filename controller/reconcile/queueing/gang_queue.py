"""Gangs in the queue of pods: one member stands for all of them.

The oldest member that waits is queued with the gang's rank; the others wait until it wakes them,
and whatever wakes one of them wakes the gang. Used by the scheduling cycle; subscribed by the term.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from controller.gangs import OPTIONAL_SOURCES, SOURCES, GangKey, gang_of
from controller.reconcile.queueing.refused_groups import Rank
from controller.reconcile.queueing.triggers import rank
from controller.reconcile.queueing.waiting_pods import WaitingPods
from controller.reconcile.runtime import Context, State
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.meta import Object
from hami_dra.api.podgroups import MinMemberPodGroup, PodGroup
from hami_dra.api.podstate import is_live, is_pending

_GANG_ANNOTATIONS: Final = names.annotations_read(names.Read.GANG)


class WaitingGang(Struct):
    """What is remembered of a gang between two evaluations."""

    blocked_by: str = ""
    """Key of the pod that was in the way the last time."""
    incomplete_since: float | None = None
    """Since when members are missing."""
    arrived: tuple[int, float] = (0, float("-inf"))
    """How many members waited at the latest evaluation, and since when."""
    settles_at: float = float("-inf")
    """Until when a large gang that cannot run is not looked at again for each event."""
    held_until: float | None = None
    """Until when its waiting members keep their devices."""


class GangQueue:
    def __init__(self, context: Context, waiting: WaitingPods) -> None:
        self._gangs = context.informers.gangs
        self._scheduler_names = context.settings.scheduling.scheduler_names
        self._guard = context.guard("gangs")
        self.queue = waiting.queue
        self._timeouts = waiting.timeouts
        self._wake = waiting.wake.set
        self._waiting: dict[GangKey, WaitingGang] = {}

    def of(self, pod: Pod) -> GangKey | None:
        """Return the gang of a pod that waits to be placed, or None if the pod is decided alone."""
        key = self._gangs.of(pod)
        return key if key is not None and self._is_placed_by_us(pod) else None

    def stands_for(self, pod: Pod, key: GangKey) -> bool:
        """Return whether the pod stands for its gang. If not, the pod that does is made ready."""
        first = self._first(key)
        if first is None or first.key == pod.key:
            return True
        self.queue.wait(pod.key)
        self._make_ready(key, first)
        return False

    def wake(self, key: GangKey) -> None:
        if (first := self._first(key)) is not None:
            self._make_ready(key, first)
            self._wake()

    def remembered(self, key: GangKey) -> WaitingGang:
        """Return what is remembered of a gang, until `wake` finds that none of its pods waits."""
        return self._waiting.setdefault(key, WaitingGang())

    def is_waiting(self, key: GangKey) -> bool:
        return key in self._waiting

    def forget(self, key: GangKey) -> None:
        self._waiting.pop(key, None)
        self._timeouts.forget(key)

    def held_until(self, key: GangKey) -> float | None:
        """Return when the waiting members of a gang give back what they hold; None: no end is set."""
        found = self._waiting.get(key)
        return found.held_until if found is not None else None

    def held(self) -> list[GangKey]:
        """Return the gangs of which `held_until` is known."""
        return [key for key, waiting in self._waiting.items() if waiting.held_until is not None]

    def waiting(self) -> tuple[Mapping[State, int], Mapping[State, str]]:
        """Implements `QueueStats`: members count in the state of the one that stands for them."""
        return self.queue.waiting(
            {
                pod.key: first.key
                for key in self._waiting
                if (first := self._gangs.first_waiting(key, self._scheduler_names)) is not None
                for pod in self._gangs.members(key)
            }
        )

    # --- feeds ------------------------------------------------------------------------------------

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Evaluate the gang of a pod that stood for it and is bound now, that is gone or has
        finished, or that states something else of its gang. Before the triggers, which take it out
        of the queue.
        """
        if old is None or not is_live(old):
            return
        was = gang_of(old, OPTIONAL_SOURCES)
        now = new if new is not None and is_live(new) and new.metadata.uid == old.metadata.uid else None
        if now is None:
            if was is not None:
                self.wake(was)
        elif is_pending(old) and not is_pending(now):
            if was is not None and old.key in self.queue:
                self.wake(was)
        elif old.metadata.labels != now.metadata.labels or _stated(old) != _stated(now):
            if was is not None:
                self.wake(was)
            if is_pending(now) and (was is not None or gang_of(now, OPTIONAL_SOURCES) is not None):
                self.queue.ready(now.key, rank(now))
                self._wake()

    def group_changed(self, old: Object | None, new: Object | None) -> None:
        """Evaluate the members of a group that was created, changed or deleted."""
        group = new or old
        assert group is not None
        if old is not None and new is not None and old.metadata.uid == new.metadata.uid and _spec(old) == _spec(new):
            return
        for source in SOURCES.values():
            for pod in self._gangs.members(GangKey(source, group.metadata.namespace, group.metadata.name)):
                with self._guard.each(pod.key):
                    if self._is_placed_by_us(pod):
                        self.queue.ready(pod.key, rank(pod))
        self._wake()

    # --- inside -----------------------------------------------------------------------------------

    def _first(self, key: GangKey) -> Pod | None:
        """Return the member that stands for the gang: the oldest that waits. None: none of them waits."""
        first = self._gangs.first_waiting(key, self._scheduler_names)
        if first is None:
            self.forget(key)
        return first

    def _make_ready(self, key: GangKey, first: Pod) -> None:
        """Queue the gang with the highest priority of its members, and the age of the oldest."""
        oldest, priority = self._gangs.age_and_priority(key)
        self.queue.ready(first.key, Rank(-priority, oldest, first.key))

    def _is_placed_by_us(self, pod: Pod) -> bool:
        return bool(pod.spec.resource_claims) and is_pending(pod) and pod.spec.scheduler_name in self._scheduler_names


def _stated(pod: Pod) -> dict[str, str]:
    annotations = pod.metadata.annotations
    return {name: annotations[name] for name in _GANG_ANNOTATIONS.intersection(annotations)}


def _spec(group: Object) -> object:
    return group.spec if isinstance(group, PodGroup | MinMemberPodGroup) else None

"""A `Source` for users who may view some namespaces only.

Pods, claims and decisions of other namespaces do not exist in it. Texts of decisions name objects
of the pod's own namespace only (`cluster.pods.pod_names`). Nodes and devices are those of the whole
cluster, with all amounts: capacity belongs to no namespace. What the inventory knows of namespaces
is left out by its readers (`Source.namespaces`).
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from controller.dashboard.source import ControllerState, Decisions, Heard, Source
from controller.gangs import GangKey, GangState
from controller.inventory import Inventory
from controller.reconcile.runtime import SchedulingSettings
from controller.views.explanation import Explanation
from hami_dra.api.core import Pod
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.api.resource import ResourceClaim

T = TypeVar("T", Pod, ResourceClaim)


class NamespacedSource:
    """What `source` has in `namespaces`."""

    def __init__(self, source: Source, namespaces: frozenset[str]) -> None:
        self._source = source
        self._mine = namespaces
        self.decisions: Decisions = _NamespacedDecisions(source, namespaces)

    @property
    def namespaces(self) -> frozenset[str] | None:
        return self._mine

    @property
    def state(self) -> ControllerState:
        return self._source.state

    @property
    def inventory(self) -> Inventory:
        return self._source.inventory

    @property
    def scheduling(self) -> SchedulingSettings:
        return self._source.scheduling

    def problems(self) -> Sequence[str]:
        return self._source.problems()

    def pods(self) -> Iterable[Pod]:
        return self._of_mine(self._source.pods())

    def pending_pods(self) -> Iterable[Pod]:
        return self._of_mine(self._source.pending_pods())

    def pod(self, key: str) -> Pod | None:
        return self._source.pod(key) if _namespace(key) in self._mine else None

    def pods_of(self, claim: str) -> Sequence[Pod]:
        return self._source.pods_of(claim) if _namespace(claim) in self._mine else ()

    def unconverted(self, pod: Pod) -> str:
        return self._source.unconverted(pod)

    def is_legacy(self, pod: Pod) -> bool:
        return self._source.is_legacy(pod)

    def gang_key(self, pod: Pod) -> GangKey | None:
        return self._source.gang_key(pod)

    def gang_keys(self) -> Iterable[GangKey]:
        return [key for key in self._source.gang_keys() if key.namespace in self._mine]

    def gang(self, key: GangKey) -> GangState:
        return self._source.gang(key)

    def held_until(self, key: GangKey) -> datetime | None:
        return self._source.held_until(key)

    def claims(self) -> Iterable[ResourceClaim]:
        return self._of_mine(self._source.claims())

    def claim(self, key: str) -> ResourceClaim | None:
        return self._source.claim(key) if _namespace(key) in self._mine else None

    def claims_on(self, device: str) -> Sequence[ResourceClaim]:
        return list(self._of_mine(self._source.claims_on(device)))

    def objects(self) -> list[tuple[Kind[Any], Object]]:
        """Return nothing: a simulation of the cluster is for those who may view all of it."""
        return []

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._source.on_change(callback)

    def on_claim(self, heard: Heard) -> Callable[[], None]:
        return self._source.on_claim(heard)

    def _of_mine(self, objects: Iterable[T]) -> Iterable[T]:
        return (each for each in objects if each.metadata.namespace in self._mine)


class _NamespacedDecisions:
    def __init__(self, source: Source, namespaces: frozenset[str]) -> None:
        self._source = source
        self._mine = namespaces

    def of_pod(self, key: str, *, brief: bool = False) -> Explanation | None:
        return self._source.decisions.of_pod(key, brief=brief) if self._has(key) else None

    def of_claim(self, key: str) -> Explanation | None:
        return self._source.decisions.of_claim(key) if self._has(key) else None

    def latest(self, most: int) -> list[Explanation]:
        return [each for each in self._source.decisions.latest(most) if self._has(each.pod)]

    def _has(self, key: str) -> bool:
        return _namespace(key) in self._mine


def _namespace(key: str) -> str:
    return key.partition("/")[0]

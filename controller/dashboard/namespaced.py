"""A `Source` for users who may view some namespaces only.

Pods, claims and decisions of other namespaces do not exist in it, and their names are removed from
the texts of decisions. Nodes and devices are those of the whole cluster, with all amounts: capacity
belongs to no namespace. What the inventory knows of namespaces is left out by its readers
(`Source.namespaces`).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from controller.dashboard.source import ControllerState, Decisions, Heard, Source
from controller.insight.explain import Explanation
from controller.scheduling.decide import Options
from controller.scheduling.gangs import GangKey, GangState
from controller.scheduling.inventory import Inventory
from controller.scheduling.scoring import Policies
from hami_dra.api.core import Pod
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.api.resource import ResourceClaim

T = TypeVar("T", Pod, ResourceClaim)
ELSEWHERE: Final = "another namespace"
_KEY: Final = re.compile(
    r"(?<![\w./-])(?!\d+/\d+(?![\w.-]))([a-z0-9](?:[-a-z0-9]*[a-z0-9])?)/[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?"
)
"""`namespace/name`, but no part of a longer path such as a device, and no `0/2`."""
_NAMED: Final = re.compile(r"(namespaces?:? )([\"']?)([a-z0-9](?:[-a-z0-9]*[a-z0-9])?)\2")
"""`namespace x`"""


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
    def policies(self) -> Policies:
        return self._source.policies

    @property
    def options(self) -> Options:
        return self._source.options

    @property
    def scheduler_names(self) -> frozenset[str]:
        return self._source.scheduler_names

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
        return self._cleaned(self._source.decisions.of_pod(key, brief=brief)) if self._has(key) else None

    def of_claim(self, key: str) -> Explanation | None:
        return self._cleaned(self._source.decisions.of_claim(key)) if self._has(key) else None

    def latest(self, most: int) -> list[Explanation]:
        found = [each for each in self._source.decisions.latest(most) if self._has(each.pod)]
        return [cleaned for each in found if (cleaned := self._cleaned(each)) is not None]

    def _has(self, key: str) -> bool:
        return _namespace(key) in self._mine

    def _cleaned(self, found: Explanation | None) -> Explanation | None:
        return without_others(found, self._mine) if found is not None else None


def without_others(found: Explanation, mine: frozenset[str]) -> Explanation:
    """Return the explanation without the names of objects of other namespaces than `mine`."""
    return msgspec.convert(_cleaned(msgspec.to_builtins(found), mine), Explanation)


def cleaned_text(text: str, mine: frozenset[str]) -> str:
    """Return the text without names in other namespaces.

    >>> cleaned_text("port 80 is taken by Pod team-b/web, in namespace team-b; see team-a/x", frozenset({"team-a"}))
    'port 80 is taken by Pod another namespace, in namespace (another namespace); see team-a/x'
    """
    text = _KEY.sub(lambda found: found[0] if found[1] in mine else ELSEWHERE, text)
    return _NAMED.sub(lambda found: found[0] if found[3] in mine else f"{found[1]}({ELSEWHERE})", text)


_PLACES: Final = frozenset({"device", "node", "pod", "claim", "value", "origin", "deviceClass", "uuid", "product"})
"""Fields that are no sentences: devices and nodes of the cluster, and the pod's own objects."""


def _cleaned(value: Any, mine: frozenset[str], field: str = "") -> Any:
    if isinstance(value, str):
        return value if field in _PLACES else cleaned_text(value, mine)
    if isinstance(value, dict):
        return {key: _cleaned(each, mine, key) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(each, mine, field) for each in value]
    return value


def _namespace(key: str) -> str:
    return key.partition("/")[0]

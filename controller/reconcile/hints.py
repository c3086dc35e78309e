"""Queueing hints: which change of which object may make a refused pod fit. Pure.

As kube-scheduler's (KEP-4247): a pod that was refused is decided again when something happened that can help against one of the
reasons it was refused for. A node that is refused has one reason, its first, so nothing helps that does not help against that one.

| refused because of | may help |
|---|---|
| devices: too few, too small, taken, of another type | devices freed or published, labels of a node (they decide which slices it reaches) |
| a quota | devices of the namespace freed, the quota raised |
| cordon, readiness, taints | the node's taints and readiness |
| node affinity, or a claim that is elsewhere | the node's labels |
| resources | a pod that leaves a node, allocatable of the node |
| topology spread | pods of the namespace that are placed, leave, or change their labels; nodes that go, their labels and taints |
| a node that kube-scheduler refused | its refusal ends |
| an error (class, selector, pool) | any of these |

A new node helps against everything, for it may be the one. Heartbeats and metadata are no change.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Final

from controller.decide import Refusal
from controller.inventory.nodes import effective_taints
from hami_dra.api import names
from hami_dra.api.core import Node


class Change(Flag):
    """What happened, as far as it may make room."""

    NOTHING = 0
    DEVICES_FREED = auto()
    DEVICES_PUBLISHED = auto()
    """Slices, or the taints of rules on devices."""
    NODE_ADDED = auto()
    NODE_GONE = auto()
    NODE_ALLOCATABLE = auto()
    NODE_LABELS = auto()
    NODE_TAINTS = auto()
    """Taints, cordon, readiness."""
    RESOURCES_FREED = auto()
    """A node has more left: a pod is gone, was resized, or counts elsewhere."""
    PODS_MOVED = auto()
    """Pods of a namespace were placed, left a node, or changed their labels: topology spread counts anew."""
    QUOTA = auto()
    REFUSAL_ENDED = auto()
    """kube-scheduler's refusal of a node counts no more, for some pod."""
    CLASS = auto()
    """Classes, and labels of namespaces."""


ANY: Final = ~Change.NOTHING
RELEASED: Final = Change.DEVICES_FREED | Change.RESOURCES_FREED
_DEVICES: Final = Change.DEVICES_FREED | Change.DEVICES_PUBLISHED | Change.NODE_LABELS
_ALWAYS: Final = Change.NODE_ADDED | Change.CLASS
FOREIGN: Final = Change.DEVICES_PUBLISHED | _ALWAYS
"""A pod all of whose devices are of drivers that are not managed."""
_HELPS: Final = {
    names.NODE_UNSCHEDULABLE: Change.NODE_TAINTS,
    names.NODE_NOT_READY: Change.NODE_TAINTS,
    names.NODE_TAINTED: Change.NODE_TAINTS,
    names.NODE_AFFINITY: Change.NODE_LABELS,
    names.NODE_CLAIM_ELSEWHERE: Change.NODE_LABELS,
    names.NODE_RESOURCES: Change.RESOURCES_FREED | Change.NODE_ALLOCATABLE,
    names.NODE_DEVICE_PLUGIN: Change.NODE_ALLOCATABLE,
    names.NODE_REFUSED: Change.REFUSAL_ENDED,
    names.NODE_TOPOLOGY_SPREAD: Change.PODS_MOVED | Change.NODE_GONE | Change.NODE_LABELS | Change.NODE_TAINTS,
    names.RESOURCE_QUOTA_NOT_FIT: _DEVICES | Change.QUOTA,
}


def helpful(refusal: Refusal) -> Change:
    """Return what may make a pod fit that was refused like this."""
    if refusal.error or not refusal.reasons:
        return ANY
    found = _ALWAYS
    for code in refusal.reasons:
        found |= _HELPS.get(code, _DEVICES)
    return found


def node_change(old: Node | None, new: Node | None) -> Change:
    """Return what a change of a node comes to."""
    if new is None:
        return Change.NODE_GONE
    if old is None:
        return Change.NODE_ADDED
    found = Change.NOTHING
    if old.status.allocatable != new.status.allocatable:
        found |= Change.NODE_ALLOCATABLE
    if old.metadata.labels != new.metadata.labels:
        found |= Change.NODE_LABELS
    if effective_taints(old) != effective_taints(new):
        found |= Change.NODE_TAINTS
    return found


@dataclass(slots=True)
class News:
    """What changed since somebody looked."""

    everywhere: Change = Change.NOTHING
    by_namespace: defaultdict[str, Change] = field(default_factory=lambda: defaultdict(lambda: Change.NOTHING))

    def add(self, change: Change, namespace: str = "") -> None:
        """`namespace`: only pods there can be helped by it."""
        if namespace:
            self.by_namespace[namespace] |= change
        else:
            self.everywhere |= change

    def __bool__(self) -> bool:
        return bool(self.everywhere) or bool(self.by_namespace)

    def of(self, namespace: str) -> Change:
        """What may help pods of the namespace."""
        return self.everywhere | self.by_namespace.get(namespace, Change.NOTHING)

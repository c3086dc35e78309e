"""Queueing hints: which change of which object may make a refused pod schedulable. Pure.

As in kube-scheduler (KEP-4247): a refused pod is decided again when something happens that can help
against one of the reasons for its refusal. A refused node has one reason, its first, so only
changes that help against that one can help.

| refused because of | may help |
|---|---|
| devices: too few, too small, taken, of another type | devices freed or published, labels of a node (they decide which slices it reaches) |
| a quota | devices of the namespace freed, the quota raised |
| cordon, readiness, taints | the node's taints and readiness |
| node affinity, or a claim allocated elsewhere | the node's labels |
| resources | a pod that leaves a node, allocatable of the node |
| volumes: in use, out of reach, in another zone, over a limit | volumes and their claims, classes, CSI objects, a pod that leaves a node, the node's labels |
| topology spread | pods of the namespace that are placed, leave, or change their labels; removed nodes, their labels and taints |
| host ports | a pod that leaves a node |
| pod affinity | pods that are placed or change their labels, the node's labels |
| anti-affinity between pods | pods that leave or change their labels, removed nodes, the node's labels |
| features that a node does not declare | the node's declared features |
| a node that kube-scheduler refused | the end of its refusal |
| an error (class, selector, pool) | any of these |

A new node helps against everything, because it may fit. Heartbeats and metadata are no change.
"""

from collections import defaultdict
from enum import Flag, auto
from typing import Final

from msgspec import Struct, field

from controller.decide import Unschedulable
from controller.rules import VOLUME_CODES, effective_taints
from hami_dra.api import names
from hami_dra.api.core import Node


class Change(Flag):
    """Kinds of changes that may make room."""

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
    """A node has more left: a pod was deleted, resized, or counts elsewhere."""
    PODS_MOVED = auto()
    """Pods of a namespace were placed, left a node, or changed their labels: topology spread is counted again."""
    PODS_JOINED = auto()
    """Pods of any namespace began to count on a node, or changed their labels: affinity is counted again."""
    PODS_LEFT = auto()
    """Pods of any namespace left a node, or changed their labels: so for anti-affinity."""
    NODE_FEATURES = auto()
    QUOTA = auto()
    REFUSAL_ENDED = auto()
    """kube-scheduler's refusal of a node no longer counts, for some pod."""
    CLASS = auto()
    """Classes, and labels of namespaces."""
    VOLUMES = auto()
    """PersistentVolumes and their claims, StorageClasses, CSI objects."""


ANY: Final = ~Change.NOTHING
RELEASED: Final = Change.DEVICES_FREED | Change.RESOURCES_FREED
_DEVICES: Final = Change.DEVICES_FREED | Change.DEVICES_PUBLISHED | Change.NODE_LABELS
_ALWAYS: Final = Change.NODE_ADDED | Change.CLASS
FOREIGN: Final = Change.DEVICES_PUBLISHED | _ALWAYS
"""For a pod whose devices are all of unmanaged drivers."""
_VOLUMES: Final = Change.VOLUMES | Change.RESOURCES_FREED | Change.NODE_LABELS
_HELPS: Final = {
    names.NODE_UNSCHEDULABLE: Change.NODE_TAINTS,
    names.NODE_NOT_READY: Change.NODE_TAINTS,
    names.NODE_TAINTED: Change.NODE_TAINTS,
    names.NODE_AFFINITY: Change.NODE_LABELS,
    names.NODE_CLAIM_ELSEWHERE: Change.NODE_LABELS,
    names.NODE_RESOURCES: Change.RESOURCES_FREED | Change.NODE_ALLOCATABLE,
    names.NODE_DEVICE_PLUGIN: Change.NODE_ALLOCATABLE,
    names.NODE_REFUSED: Change.REFUSAL_ENDED,
    names.NODE_OUTSIDE_DOMAIN: ANY,  # whatever makes room in another domain
    names.NODE_PORTS: Change.RESOURCES_FREED,
    **dict.fromkeys(VOLUME_CODES, _VOLUMES),
    names.NODE_POD_AFFINITY: Change.PODS_JOINED | Change.NODE_LABELS,
    names.NODE_POD_ANTI_AFFINITY: Change.PODS_LEFT | Change.NODE_GONE | Change.NODE_LABELS,
    names.NODE_DECLARED_FEATURES: Change.NODE_FEATURES,
    names.NODE_TOPOLOGY_SPREAD: Change.PODS_MOVED | Change.NODE_GONE | Change.NODE_LABELS | Change.NODE_TAINTS,
    names.RESOURCE_QUOTA_NOT_FIT: _DEVICES | Change.QUOTA,
}


def helpful(refusal: Unschedulable) -> Change:
    """Return the changes that may make a pod with this refusal schedulable."""
    if refusal.error or not refusal.reasons:
        return ANY
    found = _ALWAYS
    for code in refusal.reasons:
        found |= _HELPS.get(code, _DEVICES)
    return found


def node_change(old: Node | None, new: Node | None) -> Change:
    """Return the kinds of change between two states of a node."""
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
    if old.status.declared_features != new.status.declared_features:
        found |= Change.NODE_FEATURES
    return found


class News(Struct):
    """Changes since they were last read."""

    everywhere: Change = Change.NOTHING
    by_namespace: defaultdict[str, Change] = field(default_factory=lambda: defaultdict(lambda: Change.NOTHING))

    def add(self, change: Change, namespace: str = "") -> None:
        """Add a change. `namespace`: it helps only pods there."""
        if namespace:
            self.by_namespace[namespace] |= change
        else:
            self.everywhere |= change

    def __bool__(self) -> bool:
        return bool(self.everywhere) or bool(self.by_namespace)

    def of(self, namespace: str) -> Change:
        """Return the changes that may help pods of the namespace."""
        return self.everywhere | self.by_namespace.get(namespace, Change.NOTHING)

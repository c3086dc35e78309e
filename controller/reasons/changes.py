"""Kinds of changes in the cluster that may make a refused pod schedulable (queueing hints). Pure."""

from enum import Flag, auto
from typing import Final


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
ALWAYS: Final = Change.NODE_ADDED | Change.CLASS
"""A new node helps against everything, because it may fit."""
FOREIGN: Final = Change.DEVICES_PUBLISHED | ALWAYS
"""For a pod whose devices are all of unmanaged drivers."""

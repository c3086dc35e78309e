"""Queueing hints: which change of which object may make a refused pod schedulable. Pure.

As in kube-scheduler (KEP-4247): a refused pod is decided again when something happens that can help
against one of the reasons for its refusal. A refused node has one reason, its first, so only
changes that help against that one can help.

What helps against a reason: `controller.reasons.catalogue`. An error (class, selector, pool) may be
helped by anything.

A new node helps against everything, because it may fit. Heartbeats and metadata are no change.
"""

from collections import defaultdict

from msgspec import Struct, field

from controller.decide import Unschedulable
from controller.reasons import ALWAYS, ANY, Change, meaning_of
from controller.rules import effective_taints
from hami_dra.api.core import Node


def helpful(refusal: Unschedulable) -> Change:
    """Return the changes that may make a pod with this refusal schedulable."""
    if refusal.error or not refusal.reasons:
        return ANY
    found = ALWAYS
    for code in refusal.reasons:
        found |= meaning_of(code).helps
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

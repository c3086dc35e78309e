"""What rules derive from the shapes of pods: one table, whose memory is charged to namespaces. Pure.

A rule asks with what it reads of a pod (tolerations, terms, volumes); pods that are alike in that
share the answer, which the rule itself keeps up to date:

    replicas of one Deployment      one verdict on taints, one on resources, one count of its pods
    pods with labels of their own   share the first two still
"""

from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from controller.cluster.incremental.changes import Shared
from hami_dra.api.core import Namespace, Pod

V = TypeVar("V")
_MOST: Final = 1_024
"""Columns of all rules together: 40 KiB each, at most, with 5,000 nodes."""


class SeesPods:
    """What is derived from other pods by terms."""

    def close(self) -> None:
        """Release the counts of these pods; nothing must use it any more."""
        raise NotImplementedError

    def sees(self, before: Namespace | None, after: Namespace | None) -> bool:
        """Return whether the change of a namespace changes which pods they are."""
        raise NotImplementedError


class PodShapes:
    def __init__(self) -> None:
        self._kept: Shared[Any] = Shared(_MOST, dropped=_close)

    def of(self, pod: Pod, rule: str, key: Hashable, make: Callable[[], V], columns: int = 1) -> V:
        """Return what the rule derived for pods like this one, made now if there is nothing.

        `key`: all that the rule reads of the pod. `columns`: how many numbers per node it keeps.
        """
        return self.of_namespace(pod.metadata.namespace, rule, key, make, columns)

    def of_namespace(self, namespace: str, rule: str, key: Hashable, make: Callable[[], V], columns: int = 1) -> V:
        """As `of`, for what does not hang on a pod."""
        value: V = self._kept.get((rule, key), namespace, make, max(columns, 1))
        return value

    def namespace_changed(self, before: Namespace | None, after: Namespace | None) -> None:
        """Drop what sees the change: it means other pods now."""
        self._kept.drop(lambda value: isinstance(value, SeesPods) and value.sees(before, after))


def _close(value: object) -> None:
    if isinstance(value, SeesPods):
        value.close()

"""Pods whose decision stalled a leader, passed from one leader to the next in an annotation of the
Lease.

Pure. Written by `watchdog` when a leader gives up or may not live to do so; read by `held_back`.
Example::

    [{"namespace": "team-a", "name": "web-0", "uid": "5f0c", "count": 1, "at": "2026-11-22T12:00:00Z", "by": "node-1_17_a3"}]
"""

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from controller.cluster.pods.gang_key import GangKey
from hami_dra.api.core import Pod
from hami_dra.api.times import timestamp
from hami_dra.kube.backoff import doubled

FIRST_HOLD: Final = 300.0
LONGEST_HOLD: Final = 4 * 3600.0
"""Seconds for which a pod is postponed: the first time, and at most; doubles each time."""
_MOST_LENGTH: Final = 12_000
"""Characters, some 50 entries: longer annotations are not read; the oldest entries are dropped."""
_NAMESPACE_AT: Final = 3
"""Number of postponed pods of one namespace from which all its pods are postponed: otherwise each
pod of a Deployment, or of a tenant who keeps creating pods, would stall a leader once.
"""


class PodRef(Struct, frozen=True):
    namespace: str
    name: str
    uid: str
    gang: str = ""
    """The gang for which the pod stands, as `gang_text` has it."""

    @classmethod
    def of(cls, pod: Pod, gang: GangKey | None) -> "PodRef":
        return cls(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid, gang_text(gang))

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class StalledDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    namespace: str
    name: str
    uid: str
    count: int
    """Number of consecutive stalls."""
    at: str
    """Time of the last stall, by the wall clock of the leader that recorded it."""
    by: str
    """Identity of the stalled leader."""
    gang: str = ""
    """The gang for which the pod stood, as `gang_text` has it: any member may stand for it next."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def is_about(self, pod: PodRef) -> bool:
        """Return whether it postpones the pod, itself or as a member of its gang."""
        return self.uid == pod.uid or (bool(self.gang) and (self.namespace, self.gang) == (pod.namespace, pod.gang))


def gang_text(gang: GangKey | None) -> str:
    """Return the gang within its namespace: `labels/train`; empty for none."""
    return f"{gang.source}/{gang.name}" if gang is not None else ""


def read(text: str) -> tuple[StalledDecision, ...]:
    """Parse the annotation; unreadable text counts as empty."""
    if not text:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[StalledDecision, ...])
    except (msgspec.DecodeError, RecursionError):
        return ()


def noted(text: str, pod: PodRef, at: datetime, by: str) -> str:
    """Return the annotation with one more stall of the pod or its gang. Idempotent for the same stall."""
    known = read(text)
    moment = timestamp(at)
    former = next((entry for entry in known if entry.is_about(pod)), None)
    if former is not None and (former.at, former.by) == (moment, by):
        return text
    count = former.count + 1 if former is not None else 1
    others = [entry for entry in known if not entry.is_about(pod)]
    return _text([*others, StalledDecision(pod.namespace, pod.name, pod.uid, count, moment, by, pod.gang)])


def forgotten(text: str, known: Collection[StalledDecision]) -> str:
    """Return the annotation without these entries. Newer entries about the same pod stay."""
    return _text(entry for entry in read(text) if entry not in known)


def taken_back(text: str, pod: PodRef, by: str) -> str:
    """Return the annotation without the entry of `by` about the pod."""
    return _text(entry for entry in read(text) if (entry.uid, entry.by) != (pod.uid, by))


def _text(entries: Iterable[StalledDecision]) -> str:
    texts = [msgspec.json.encode(entry).decode() for entry in entries]
    while texts and sum(len(text) + 1 for text in texts) > _MOST_LENGTH:
        texts.pop(0)
    return f"[{','.join(texts)}]" if texts else ""


def hold_seconds(count: int) -> float:
    """Return for how long a pod is postponed after this many consecutive stalls.

    >>> [hold_seconds(count) for count in (1, 2, 3, 100)]
    [300.0, 600.0, 1200.0, 14400.0]
    """
    return doubled(FIRST_HOLD, max(count, 1) - 1, LONGEST_HOLD)


def seconds_left(entry: StalledDecision, wall: datetime) -> float:
    """Return how long the pod is still postponed, by our wall clock but never beyond the full time."""
    hold = hold_seconds(entry.count)
    try:
        passed = (wall - datetime.fromisoformat(entry.at)).total_seconds()
    except (ValueError, TypeError):
        return hold
    return min(max(hold - passed, 0.0), hold)


def namespace_end(ends: Iterable[float]) -> float | None:
    """Return when a namespace whose pods are postponed until `ends` is free again.

    Returns None if it is not postponed as a whole.

        >>> namespace_end([5.0, 9.0]) is None, namespace_end([5.0, 9.0, 7.0]), namespace_end([5.0, 9.0, 7.0, 8.0])
        (True, 5.0, 7.0)
    """
    ordered = sorted(ends)
    return ordered[len(ordered) - _NAMESPACE_AT] if len(ordered) >= _NAMESPACE_AT else None

"""Pods whose decision held up a leader for too long, as one leader tells the next: an annotation of the Lease. Pure.

Written by `watchdog`, when a leader gives up or may not live to say so; read by `heldback`. Example::

    [{"namespace": "team-a", "name": "web-0", "uid": "5f0c", "count": 1, "at": "2026-11-22T12:00:00Z", "by": "node-1_17_a3"}]
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from hami_dra.api.times import timestamp
from hami_dra.cluster.backoff import doubled

FIRST_HOLD: Final = 300.0
LONGEST_HOLD: Final = 4 * 3600.0
"""Seconds that a pod is held back: the first time, and at most; it doubles from time to time."""
_MOST_LENGTH: Final = 12_000
"""Characters: some 50 entries. Longer annotations are not read (`hami_dra.vendors.annotations`); the oldest entries go."""
_NAMESPACE_AT: Final = 3
"""So many held pods of one namespace hold all its pods back: otherwise each pod of a Deployment, or of a tenant who makes new
ones, would hold up a leader once."""


@dataclass(frozen=True, slots=True)
class PodRef:
    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class StalledDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    namespace: str
    name: str
    uid: str
    count: int
    """How often in a row."""
    at: str
    """When the last time was noted, by the wall clock of who noted it."""
    by: str
    """Identity of the leader that was held up."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def read(text: str) -> tuple[StalledDecision, ...]:
    """Empty for a text that cannot be read: it is then as if nobody had written it."""
    if not text:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[StalledDecision, ...])
    except (msgspec.DecodeError, RecursionError):
        return ()


def noted(text: str, pod: PodRef, at: datetime, by: str) -> str:
    """The annotation with one more stall of the pod. Noting the same once more changes nothing."""
    known = read(text)
    moment = timestamp(at)
    former = next((entry for entry in known if entry.uid == pod.uid), None)
    if former is not None and (former.at, former.by) == (moment, by):
        return text
    count = former.count + 1 if former is not None else 1
    others = [entry for entry in known if entry.uid != pod.uid]
    return _text([*others, StalledDecision(pod.namespace, pod.name, pod.uid, count, moment, by)])


def forgotten(text: str, known: Collection[StalledDecision]) -> str:
    """The annotation without these entries. One that somebody noted about the same pod since then stays."""
    return _text(entry for entry in read(text) if entry not in known)


def taken_back(text: str, pod: PodRef, by: str) -> str:
    """The annotation without what `by` itself noted about the pod."""
    return _text(entry for entry in read(text) if (entry.uid, entry.by) != (pod.uid, by))


def _text(entries: Iterable[StalledDecision]) -> str:
    texts = [msgspec.json.encode(entry).decode() for entry in entries]
    while texts and sum(len(text) + 1 for text in texts) > _MOST_LENGTH:
        texts.pop(0)
    return f"[{','.join(texts)}]" if texts else ""


def hold_seconds(count: int) -> float:
    """
    >>> [hold_seconds(count) for count in (1, 2, 3, 100)]
    [300.0, 600.0, 1200.0, 14400.0]
    """
    return doubled(FIRST_HOLD, max(count, 1) - 1, LONGEST_HOLD)


def seconds_left(entry: StalledDecision, wall: datetime) -> float:
    """How long the pod is still held back, by our wall clock. A clock that differs makes it no longer than the hold itself."""
    hold = hold_seconds(entry.count)
    try:
        passed = (wall - datetime.fromisoformat(entry.at)).total_seconds()
    except (ValueError, TypeError):
        return hold
    return min(max(hold - passed, 0.0), hold)


def namespace_end(ends: Iterable[float]) -> float | None:
    """When a namespace is free again whose pods are held back until `ends`; None where it is not held back as a whole.

    >>> namespace_end([5.0, 9.0]) is None, namespace_end([5.0, 9.0, 7.0]), namespace_end([5.0, 9.0, 7.0, 8.0])
    (True, 5.0, 7.0)
    """
    ordered = sorted(ends)
    return ordered[len(ordered) - _NAMESPACE_AT] if len(ordered) >= _NAMESPACE_AT else None

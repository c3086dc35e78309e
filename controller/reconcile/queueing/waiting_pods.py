"""The queue, and what is remembered of the pods in it between two decisions.

Created once in each term, and shared by all parts that put pods into the queue, take them out, or
must know why they wait.
"""

import asyncio
from collections.abc import Hashable, Mapping
from typing import Final, Literal

from msgspec import Struct

from controller.decide import SharedClaims
from controller.reconcile.queueing.node_backoff import NodeBackoff
from controller.reconcile.queueing.queue import Queue
from controller.reconcile.runtime import InFlight
from controller.settings.controller import QueueingSettings

_CREATED_AFTER: Final = 2.5
"""Seconds in which claims and templates are expected that are created after their pod; less than the other
members of a gang wait for their events (`notices.ARRIVAL`)."""
_BOUND_AFTER: Final = 60.0
"""Seconds in which it is known that a pod was bound before its claim vanished."""


Reason = Literal["room", "refusal", "nomination", "object", "vanished"]
"""What it waits for: any node, so that its gate is removed in time; any node, since it was refused first;
the node that kube-scheduler is emptying for it; a claim or template that its user has not created;
or a claim that vanished after it was allocated, while the pod may have been bound.
"""


class Timeouts:
    """Timeouts of pods and gangs that wait for something that may never come, by UID of the pod or by
    gang, in seconds of the monotonic clock.
    """

    def __init__(self, seconds: Mapping[Reason, float]) -> None:
        self._seconds = seconds
        self._since: dict[Reason, dict[Hashable, float]] = {reason: {} for reason in seconds}

    def runs_out(self, key: Hashable, reason: Reason, now: float) -> float:
        """Return the end of the timeout, counted from the first call for this reason."""
        return self._since[reason].setdefault(key, now) + self._seconds[reason]

    def forget(self, key: Hashable) -> None:
        """Forget what was placed or deleted."""
        for since in self._since.values():
            since.pop(key, None)


class WaitingPods(Struct, frozen=True):
    queue: Queue
    timeouts: Timeouts
    refusals: NodeBackoff
    """Nodes that kube-scheduler refused for a pod."""
    in_flight: InFlight
    """Pods and claims that are being written."""
    shared: SharedClaims
    """Claims that pending pods refer to."""
    wake: asyncio.Event
    """Set when the scheduling cycle has something to do."""

    @classmethod
    def of(cls, settings: QueueingSettings) -> "WaitingPods":
        return cls(
            queue=Queue(
                turn_cost=settings.turn_cost, pause_first=settings.room_retry_first, pause_most=settings.room_retry_most
            ),
            timeouts=Timeouts(
                {
                    "room": settings.gate_patience,
                    "refusal": 0.0,
                    "nomination": settings.nomination_patience,
                    "object": _CREATED_AFTER,
                    "vanished": _BOUND_AFTER,
                }
            ),
            refusals=NodeBackoff(settings.refusal_time, settings.refusal_time_most),
            in_flight=InFlight(),
            shared=SharedClaims(),
            wake=asyncio.Event(),
        )

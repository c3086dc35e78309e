"""The queue, and what is remembered of the pods in it between two decisions.

Created once in each term, and shared by all parts that put pods into the queue, take them out, or
must know why they wait.
"""

import asyncio
from typing import Final

from msgspec import Struct

from controller.decide import SharedClaims
from controller.reconcile.queueing.node_backoff import NodeBackoff
from controller.reconcile.queueing.queue import Queue
from controller.reconcile.queueing.timeouts import Timeouts
from controller.reconcile.runtime import InFlight
from controller.settings.controller import QueueingSettings

_CREATED_AFTER: Final = 2.5
"""Seconds in which claims and templates are expected that are created after their pod; less than the other
members of a gang wait for their events (`notices.ARRIVAL`)."""


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
                {"room": settings.gate_patience, "nomination": settings.nomination_patience, "object": _CREATED_AFTER}
            ),
            refusals=NodeBackoff(settings.refusal_time, settings.refusal_time_most),
            in_flight=InFlight(),
            shared=SharedClaims(),
            wake=asyncio.Event(),
        )

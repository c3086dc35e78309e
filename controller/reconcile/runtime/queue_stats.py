"""The queue's figures for metrics. Pure; implemented by `queue.Queue`.

A separate protocol, so that metrics do not depend on the queue's implementation.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

State = Literal["ready", "no_room", "not_ours", "waiting", "held"]
"""`Queue` describes each."""


class QueueStats(Protocol):
    def waiting(self) -> tuple[Mapping[State, int], Mapping[State, str]]:
        """Return the number of pods in each state and the creation time of the oldest of each, where there is one."""

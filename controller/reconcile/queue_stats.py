"""What metrics ask of the queue of pending pods. Pure; implemented by `queue.Queue`.

A protocol of its own, so that what is counted does not depend on how pods are queued.
"""

from collections.abc import Mapping
from typing import Literal, Protocol

State = Literal["ready", "no_room", "not_ours", "waiting", "held"]
"""`Queue` describes each."""


class QueueStats(Protocol):
    def waiting(self) -> tuple[Mapping[State, int], Mapping[State, str]]:
        """Return the number of pods in each state and the creation time of the oldest of each, where there is one."""

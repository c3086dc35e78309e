"""Timeouts of pods and gangs that wait for something that may never come. Pure."""

from collections.abc import Hashable, Mapping
from typing import Literal

Reason = Literal["room", "nomination", "object"]
"""What it waits for: any node, so that its gate is removed in time; the node that kube-scheduler is
emptying for it; or a claim or template that its user has not created.
"""


class Timeouts:
    """Timeouts by UID of the pod, or by gang, in seconds of the monotonic clock."""

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

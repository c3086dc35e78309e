"""Timeouts of pods that wait for something that may never come. Pure."""

from collections.abc import Mapping
from typing import Literal

Reason = Literal["room", "nomination", "object"]
"""What it waits for: any node, so that its gate is removed in time; the node that kube-scheduler is
emptying for it; or a claim or template that its user has not created.
"""


class Timeouts:
    """Timeouts by pod UID, in seconds of the monotonic clock."""

    def __init__(self, seconds: Mapping[Reason, float]) -> None:
        self._seconds = seconds
        self._since: dict[Reason, dict[str, float]] = {reason: {} for reason in seconds}

    def runs_out(self, pod_uid: str, reason: Reason, now: float) -> float:
        """Return the end of the pod's timeout, counted from the first call for this reason."""
        return self._since[reason].setdefault(pod_uid, now) + self._seconds[reason]

    def forget(self, pod_uid: str) -> None:
        """Forget a pod that was placed or deleted."""
        for since in self._since.values():
            since.pop(pod_uid, None)

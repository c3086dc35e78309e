"""How long pods have been waiting for something that may never come. Pure."""

from collections.abc import Mapping
from typing import Literal

Reason = Literal["room", "nomination"]
"""What it waits for: any place at all, so that its gate goes in time; the node that kube-scheduler is emptying for it."""


class Patience:
    """Seconds of the monotonic clock; pods by uid."""

    def __init__(self, seconds: Mapping[Reason, float]) -> None:
        self._seconds = seconds
        self._since: dict[str, dict[Reason, float]] = {}

    def runs_out(self, pod_uid: str, reason: Reason, now: float) -> float:
        """The pod waits for this now: when its patience ends, counted from the first time this was so."""
        return self._since.setdefault(pod_uid, {}).setdefault(reason, now) + self._seconds[reason]

    def forget(self, pod_uid: str) -> None:
        """It has a place, or is gone."""
        self._since.pop(pod_uid, None)

"""How long pods have been without room, so that their gate goes in time. Pure."""


class Patience:
    """Seconds of the monotonic clock; pods by uid."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[str, float] = {}

    def runs_out(self, pod_uid: str, now: float) -> float:
        """The pod has no room now: when its patience ends, counted from the first time this was so."""
        return self._since.setdefault(pod_uid, now) + self._seconds

    def forget(self, pod_uid: str) -> None:
        """It has room, or is gone."""
        self._since.pop(pod_uid, None)

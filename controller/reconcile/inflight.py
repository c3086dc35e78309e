"""What is being written right now, and which pods have their turn when that is over. Pure.

While a pod's claims are being allocated or taken back, nothing can be decided about the pod, nor about others that wait for one
of these claims. A wake-up that comes meanwhile is never dropped: whoever cannot act on it hands it to `put_off`, and `end`
gives it back, whatever became of the work. docs/decision.md has an example ("No wake-up is lost").
"""

from collections import Counter
from collections.abc import Iterable


class InFlight:
    """Pods and claims by uid, so that a namesake is somebody else.

    >>> in_flight = InFlight()
    >>> in_flight.begin(["pod-1", "claim-1"])
    >>> in_flight.put_off("claim-1", "default/second")
    >>> in_flight.end(["pod-1", "claim-1"])
    ['default/second']
    """

    def __init__(self) -> None:
        self._works: Counter[str] = Counter()
        self._put_off: dict[str, dict[str, None]] = {}
        """By uid of what is being written: keys of pods, in order."""

    def __contains__(self, uid: object) -> bool:
        return uid in self._works

    def begin(self, uids: Iterable[str]) -> None:
        """Something is being written to these. Works on one object may overlap; each ends by itself."""
        self._works.update(list(uids))  # of a mapping Counter would add the values

    def put_off(self, uid: str, pod_key: str) -> None:
        """`pod_key` is to be looked at when what is being written to `uid` now is over."""
        assert uid in self._works, "nobody would give it back"
        self._put_off.setdefault(uid, {})[pod_key] = None

    def end(self, uids: Iterable[str]) -> list[str]:
        """Return the keys of the pods to look at now, each once. What is still in their way puts them off again."""
        keys: dict[str, None] = {}
        for uid in uids:
            self._works[uid] -= 1
            if not self._works[uid]:
                del self._works[uid]
            keys |= self._put_off.pop(uid, {})
        return list(keys)

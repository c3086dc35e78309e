"""Objects that are being written, and the pods to evaluate when that has ended. Pure.

While a pod's claims are being allocated or deallocated, nothing can be decided about the pod, nor
about others that wait for one of these claims. A wake-up that comes meanwhile is never dropped:
code that cannot act on it hands it to `put_off`, and `end` returns it, whatever the result of the
work. docs/design/decision.md has an example ("No wake-up is lost").
"""

from collections import Counter
from collections.abc import Iterable


class InFlight:
    """Pods and claims by UID, so that a new object of the same name is distinct.

    >>> in_flight = InFlight()
    >>> in_flight.begin(["pod-1", "claim-1"])
    >>> in_flight.put_off("claim-1", "default/second")
    >>> in_flight.end(["pod-1", "claim-1"])
    ['default/second']
    """

    def __init__(self) -> None:
        self._works: Counter[str] = Counter()
        self._put_off: dict[str, dict[str, None]] = {}
        """By UID of the object that is being written: keys of pods, in order."""

    def __contains__(self, uid: object) -> bool:
        return uid in self._works

    def begin(self, uids: Iterable[str]) -> None:
        """Record a write to these objects. Writes to one object may overlap; each ends separately."""
        self._works.update(list(uids))  # given a mapping, Counter would add its values

    def put_off(self, uid: str, pod_key: str) -> None:
        """Evaluate `pod_key` once the present write to `uid` has ended."""
        assert uid in self._works, "no end would return it"
        self._put_off.setdefault(uid, {})[pod_key] = None

    def end(self, uids: Iterable[str]) -> list[str]:
        """Return the keys of the pods to evaluate now, each once. Remaining obstacles put them off again."""
        keys: dict[str, None] = {}
        for uid in uids:
            self._works[uid] -= 1
            if not self._works[uid]:
                del self._works[uid]
            keys |= self._put_off.pop(uid, {})
        return list(keys)

"""How often each pod was given devices, as the API server's watch of claims tells."""

from collections import Counter

from tests.e2e import observe


class AllocationCount(observe.Watcher):
    """Follows every claim; `by_pod` counts by pod's name how often a claim went from unallocated to allocated for it."""

    def __init__(self, api):
        super().__init__(api)
        self.by_pod = Counter()

    def _hold(self, uid, claim):
        before = self.allocations_seen
        touched = super()._hold(uid, claim)
        if self.allocations_seen > before:
            self.by_pod.update(consumer["name"] for consumer in claim["status"].get("reservedFor", ()))
        return touched

    def of(self, *names):
        """By pod, once all that was written before has been seen."""
        self.catch_up()
        return {name: self.by_pod[name] for name in names}

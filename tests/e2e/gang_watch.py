"""How many claims of each gang are allocated, at every moment: read from the watch, so that nothing in between is missed."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hack.controlplane.api import Api
from tests.e2e.observe import Key, Watcher, allocations


class GangWatcher(Watcher):
    """A `Watcher` that also counts by gang. Members are called `<gang>-<anything>`, and claims are generated for them."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.moments: list[Counter[str]] = []
        """Gang → its allocated claims; one entry for each change, in their order."""
        self._namespace = namespace
        self._gangs: dict[str, str] = {}
        super().__init__(api)

    def most(self, gang: str) -> int:
        """The most claims of the gang that were allocated at one moment."""
        return max((moment[gang] for moment in self.moments), default=0)

    def _hold(self, uid: str, claim: dict[str, Any] | None) -> set[Key]:
        touched = super()._hold(uid, claim)
        before = self._gangs.pop(uid, None)
        if claim and claim["metadata"]["namespace"] == self._namespace and allocations([claim]):
            owner = claim["metadata"]["ownerReferences"][0]["name"]
            self._gangs[uid] = owner.rpartition("-")[0]
        if self._gangs.get(uid) != before:
            self.moments.append(Counter(self._gangs.values()))
        return touched

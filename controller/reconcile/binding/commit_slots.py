"""Limits concurrent commits, so that no object and no namespace can block the others.

A commit holds a slot until it ends, but no longer than one write may take (`patience`): a commit
that takes longer, because the API server does not answer or an admission webhook is slow, continues
without a slot. For a minute after such a commit its namespace may have only a few slots
(`slow_share`). A namespace in which nothing can be written therefore holds all slots once, for one
write timeout, and a small part of them afterwards.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

_REMEMBERED: Final = 60.0
"""Seconds for which a namespace has fewer slots after its last slow commit."""


class CommitSlots:
    """Slots for commits. `patience` in seconds of the running loop."""

    def __init__(self, total: int, patience: float, slow_share: int) -> None:
        self._free = asyncio.Semaphore(total)
        self._total = total
        self._patience = patience
        self._slow_share = slow_share
        self._running: Counter[str] = Counter()
        self._slow_until: dict[str, float] = {}
        self._parked: dict[str, dict[str, None]] = {}

    async def wait(self) -> None:
        async with self._free:
            return

    def may_start(self, namespace: str) -> bool:
        return not self._is_slow(namespace) or self._running[namespace] < self._slow_share

    def at_once(self, namespace: str) -> int:
        """Return how many commits of one gang may run at a time: others keep half of the slots."""
        return self._slow_share if self._is_slow(namespace) else max(self._total // 2, 1)

    def park(self, namespace: str, pod_key: str) -> None:
        """Evaluate the pod again once `may_start` is true."""
        self._parked.setdefault(namespace, {})[pod_key] = None

    def admitted(self, namespace: str) -> list[str]:
        """Return the parked pods that may be evaluated now. Call it when a commit of the namespace has ended."""
        parked = self._parked.get(namespace, {})
        room = self._slow_share - self._running[namespace] if self._is_slow(namespace) else len(parked)
        admitted = list(parked)[: max(room, 0)]
        for key in admitted:
            del parked[key]
        if not parked:
            self._parked.pop(namespace, None)
        return admitted

    @asynccontextmanager
    async def held(self, namespace: str) -> AsyncGenerator[None]:
        """Hold a slot for one commit or for `patience`, whichever is shorter."""
        loop = asyncio.get_running_loop()
        slow = False

        def too_slow() -> None:
            nonlocal slow
            slow = True
            now = loop.time()
            self._slow_until = {each: until for each, until in self._slow_until.items() if now < until}
            self._slow_until[namespace] = now + _REMEMBERED
            self._free.release()

        self._running[namespace] += 1
        try:
            await self._free.acquire()
            timer = loop.call_later(self._patience, too_slow)
            try:
                yield
            finally:
                timer.cancel()
                if not slow:
                    self._free.release()
        finally:
            self._running[namespace] -= 1
            if not self._running[namespace]:
                del self._running[namespace]

    def _is_slow(self, namespace: str) -> bool:
        until = self._slow_until.get(namespace)
        if until is None:
            return False
        if asyncio.get_running_loop().time() < until:
            return True
        del self._slow_until[namespace]
        return False

"""Keys of namespaced objects, handed out fairly between namespaces.

Used by loops whose work is a request to the API server for each object (`templates`). Namespaces take
turns, and one namespace has only so many keys in work at a time: neither many objects of one tenant nor
requests of one tenant that hang hold up another tenant's.

    queue.add("team/web-1")
    async with queue.next() as key:
        ...                                   # the key counts for its namespace until the block ends
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairQueue:
    """`per_namespace`: how many keys of one namespace may be in work at a time."""

    def __init__(self, per_namespace: int) -> None:
        self._per_namespace = per_namespace
        self._waiting: dict[str, deque[str]] = {}
        """Namespace -> its keys in order of arrival; no entry for a namespace without keys."""
        self._turns: OrderedDict[str, None] = OrderedDict()
        """Namespaces that wait and may have one more key in work, the next one first."""
        self._keys: set[str] = set()
        self._in_work: Counter[str] = Counter()
        self._news = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of keys that wait."""
        return len(self._keys)

    def add(self, key: str) -> None:
        """Put `namespace/name` at the end of its namespace's keys; a key that waits already stays where it is."""
        if key in self._keys:
            return
        self._keys.add(key)
        namespace = key.partition("/")[0]
        self._waiting.setdefault(namespace, deque()).append(key)
        self._offer(namespace)

    @asynccontextmanager
    async def next(self) -> AsyncIterator[str]:
        """Wait for the next key and hand it out."""
        while not self._turns:
            self._news.clear()
            await self._news.wait()
        namespace, _ = self._turns.popitem(last=False)
        keys = self._waiting[namespace]
        key = keys.popleft()
        self._keys.discard(key)
        if not keys:
            del self._waiting[namespace]
        self._in_work[namespace] += 1
        self._offer(namespace)
        try:
            yield key
        finally:
            self._in_work[namespace] -= 1
            if not self._in_work[namespace]:
                del self._in_work[namespace]
            self._offer(namespace)

    def _offer(self, namespace: str) -> None:
        """Give the namespace a turn, behind all others, if it waits and may have one more key in work."""
        if namespace in self._waiting and self._in_work[namespace] < self._per_namespace:
            self._turns.setdefault(namespace)
            self._news.set()

"""Work on objects, side by side, in which no namespace can be in another's way.

Every loop that writes to one object after the other uses it: a write can take as long as the API server, or a webhook of
the object's namespace, likes. Each namespace has a lane of its own, in which at most `width` pieces of work run at a time and the
others wait in order.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

Work = Callable[[], Awaitable[object]]


class Lanes:
    def __init__(self, group: asyncio.TaskGroup, width: int) -> None:
        self._group = group
        self._width = width
        self._lanes: dict[str, _Lane] = {}

    def start(self, namespace: str, work: Work, name: str) -> None:
        """Run `work` as a task of the group as soon as its namespace has room for it. Errors end the group."""
        lane = self._lanes.setdefault(namespace, _Lane())
        lane.waiting.append((work, name))
        if lane.running < self._width:
            self._next(namespace, lane)

    def _next(self, namespace: str, lane: "_Lane") -> None:
        work, name = lane.waiting.popleft()
        lane.running += 1
        self._group.create_task(self._run(namespace, lane, work), name=name)

    async def _run(self, namespace: str, lane: "_Lane", work: Work) -> None:
        await work()  # an error, or a cancellation, ends the group: nothing follows
        lane.running -= 1
        if lane.waiting:
            self._next(namespace, lane)
        elif not lane.running:
            del self._lanes[namespace]


class _Lane:
    __slots__ = ("running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[tuple[Work, str]] = deque()

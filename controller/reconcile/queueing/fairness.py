"""Whose turn it is: start-time fair queueing between namespaces. Pure.

Called by `queue`, one `FairOrder` for each priority. Each namespace has a tag: the virtual time at
which its next turn starts. The namespace with the lowest tag is next, and its tag then grows by
what the turn has cost. A namespace that comes back after a while starts at the present virtual
time, so it is next soon, but has no credit from the time it was away. Between two namespaces that
both have pods all the time, time used differs by at most one turn of each (Goyal, Vin, Chen 1996).

    >>> order = FairOrder(least=1.0)
    >>> for name in ("a/1", "a/2", "a/3", "b/1"):
    ...     order.push(name[0], Turn(False, "", name, 0))
    >>> order.pop(lambda turn: True).key
    'a/1'
    >>> order.charge(5.0)  # deciding on a/1 took long
    >>> [order.pop(lambda turn: True).key for _ in range(3)]
    ['b/1', 'a/2', 'a/3']
"""

import heapq
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct, field

_FEW: Final = 64


class Turn(NamedTuple):
    """A pod that is ready. Within a namespace: never decided first, then older, then by name."""

    tried: bool
    created: str
    key: str
    version: int
    """Version of the queue's item: the turn is void once that has changed."""


class _Flow(Struct):
    """The turns of one namespace."""

    tag: float = 0.0
    turns: list[Turn] = field(default_factory=list)
    """A heap."""
    is_waiting: bool = False
    """Whether it is in the heap of namespaces."""


class FairOrder:
    """Order of the turns of all namespaces. `least`: seconds that a turn costs at least."""

    def __init__(self, least: float) -> None:
        self._least = least
        self._now = 0.0
        """Virtual time: the tag of the namespace that was served last."""
        self._flows: dict[str, _Flow] = {}
        self._waiting: list[tuple[float, Turn, str]] = []
        """Heap of (tag, a turn, namespace); the older pod first among equal tags. An entry whose
        tag has grown since is corrected when it reaches the top.
        """
        self._served: _Flow | None = None

    def push(self, namespace: str, turn: Turn) -> None:
        flow = self._flows.get(namespace)
        if flow is None:
            flow = self._flows[namespace] = _Flow()
        heapq.heappush(flow.turns, turn)
        if not flow.is_waiting:
            flow.tag = max(flow.tag, self._now)
            flow.is_waiting = True
            heapq.heappush(self._waiting, (flow.tag, turn, namespace))

    def pop(self, is_valid: Callable[[Turn], bool]) -> Turn | None:
        """Return the next turn, or None if no namespace has one. Void turns are dropped on the way."""
        if not self.has_turn(is_valid):
            # No namespace waits: all start equal the next time.
            self._flows.clear()
            self._now = 0.0
            self._served = None
            return None
        tag, _, namespace = self._waiting[0]
        self._now, self._served = tag, self._flows[namespace]
        return self._take(self._served, namespace)

    def has_turn(self, is_valid: Callable[[Turn], bool]) -> bool:
        """Return whether `pop` has a turn: it is the first one of the namespace on top."""
        while self._waiting:
            tag, _, namespace = self._waiting[0]
            flow = self._flows[namespace]
            while flow.turns and not is_valid(flow.turns[0]):
                heapq.heappop(flow.turns)
            if not flow.turns:
                heapq.heappop(self._waiting)
                flow.is_waiting = False
            elif tag < flow.tag:
                heapq.heapreplace(self._waiting, (flow.tag, flow.turns[0], namespace))
            else:
                return True
        return False

    def charge(self, seconds: float, others: Mapping[str, float] = MappingProxyType({})) -> None:
        """Charge the cost of the turn that `pop` returned last. `others`: what of it is charged to other namespaces."""
        if self._served is not None:
            self._served.tag += max(0.0, seconds - sum(others.values()) - self._least)
            self._served = None
        for namespace, cost in others.items():
            flow = self._flows.setdefault(namespace, _Flow())
            flow.tag = max(flow.tag, self._now) + cost

    def _take(self, flow: _Flow, namespace: str) -> Turn:
        turn = heapq.heappop(flow.turns)
        flow.tag += self._least
        if flow.turns:
            heapq.heapreplace(self._waiting, (flow.tag, flow.turns[0], namespace))
        else:
            heapq.heappop(self._waiting)
            flow.is_waiting = False
        if len(self._flows) > _FEW + 2 * len(self._waiting):
            self._flows = {name: each for name, each in self._flows.items() if each.is_waiting or each.tag > self._now}
        return turn

"""Which pending pod comes next. Pure: no clock of its own, no I/O; every call is told what time it is.

A pod is in one of these states:

- ready: comes out of `pop` by priority, then age, then name.
- no room: `decide` refused it. Pods that ask for the same (equal signature) wait as one group; when something happens that
  may make room, only the first of a group is tried, and the others follow when it was placed. So an event costs one
  decision per kind of pod, not one per pod.
- waiting: for an event about itself, which calls `ready`, or for a point in time.
- held: taken out by `pop`; the caller decides what becomes of it.
"""

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

State = Literal["ready", "no_room", "waiting", "held"]
FOREVER: Final = float("inf")


class Rank(NamedTuple):
    """Orders pods: higher priority first, then older, then by name."""

    negative_priority: int
    created: str
    key: str


@dataclass(slots=True)
class _Item:
    rank: Rank
    state: State = "held"
    version: int = 0
    """Counts changes of state: entries of the heaps with an older version are void."""
    signature: bytes = b""


class Queue:
    def __init__(self) -> None:
        self._items: dict[str, _Item] = {}
        self._ready: list[tuple[Rank, int]] = []
        self._timers: list[tuple[float, str, int]] = []
        self._groups: dict[bytes, set[str]] = defaultdict(set)
        self._scouts: dict[bytes, str] = {}
        """Per group the one pod that was sent ahead since room may have been made."""

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def state(self, key: str) -> State | None:
        item = self._items.get(key)
        return item.state if item else None

    def count(self, state: State) -> int:
        return sum(item.state == state for item in self._items.values())

    def waiting(self) -> tuple[Counter[State], dict[State, str]]:
        """By state: how many pods, and when the oldest of them was created."""
        counts: Counter[State] = Counter()
        oldest: dict[State, str] = {}
        for item in self._items.values():
            counts[item.state] += 1
            oldest[item.state] = min(oldest.get(item.state, item.rank.created), item.rank.created)
        return counts, oldest

    # --- what happens to a pod ---------------------------------------------------------------------------------------

    def ready(self, key: str, rank: Rank) -> None:
        """It is new, or something about it changed: look at it at once."""
        item = self._items.setdefault(key, _Item(rank))
        item.rank = rank
        self._move(key, item, "ready")
        heapq.heappush(self._ready, (rank, item.version))

    def wait(self, key: str, until: float = FOREVER) -> None:
        """Nothing but an event about the pod, or the time, helps it."""
        if (item := self._items.get(key)) is not None:
            self._move(key, item, "waiting")
            self._set_timer(key, item, until)
            if self._scouts.get(item.signature) == key:
                self._send_scout(item.signature)

    def no_room(self, key: str, signature: bytes, until: float = FOREVER) -> None:
        if (item := self._items.get(key)) is None:
            return
        self._move(key, item, "no_room")
        former, item.signature = item.signature, signature
        self._groups[signature].add(key)
        self._set_timer(key, item, until)
        if self._scouts.get(former) == key:
            if former == signature:
                del self._scouts[former]
            else:
                # it asks for something else now, so it said nothing about its former group
                self._send_scout(former)

    def is_known_full(self, signature: bytes) -> bool:
        """Whether an equal pod was refused and nothing has happened since."""
        return bool(self._groups.get(signature)) and signature not in self._scouts

    def placed(self, key: str) -> None:
        """There was room for it: the next of its kind may have some too."""
        item = self._items.get(key)
        signature = item.signature if item else b""
        self.drop(key)
        if signature:
            self._send_scout(signature)

    def drop(self, key: str) -> None:
        """It is gone, bound, or none of ours."""
        item = self._items.pop(key, None)
        if item is None:
            return
        self._leave_group(key, item)
        if self._scouts.get(item.signature) == key:
            self._send_scout(item.signature)

    # --- what happens around -----------------------------------------------------------------------------------------

    def try_again(self, signature: bytes) -> bool:
        """Something changed that may help this one group. False when it has no member any more."""
        if signature not in self._groups and signature not in self._scouts:
            return False
        if signature not in self._scouts:
            self._send_scout(signature)
        return True

    def room_made(self) -> None:
        """Something changed that may make a refused pod fit."""
        for signature in list(self._groups):
            if signature not in self._scouts:
                self._send_scout(signature)

    def pop(self, now: float) -> str | None:
        """The next pod to look at; its state becomes `held`."""
        while self._timers and self._timers[0][0] <= now:
            _, key, version = heapq.heappop(self._timers)
            item = self._items.get(key)
            if item is not None and item.version == version:
                self.ready(key, item.rank)
        while self._ready:
            rank, version = heapq.heappop(self._ready)
            item = self._items.get(rank.key)
            if item is not None and item.version == version and item.state == "ready":
                item.state = "held"
                return rank.key
        return None

    def next_timer(self) -> float:
        """When `pop` may have something that it has not now; FOREVER if only events can."""
        while self._timers:
            until, key, version = self._timers[0]
            item = self._items.get(key)
            if item is not None and item.version == version:
                return until
            heapq.heappop(self._timers)
        return FOREVER

    def keys_in(self, state: State) -> list[str]:
        return [key for key, item in self._items.items() if item.state == state]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _move(self, key: str, item: _Item, state: State) -> None:
        self._leave_group(key, item)
        item.state = state
        item.version += 1

    def _leave_group(self, key: str, item: _Item) -> None:
        members = self._groups.get(item.signature)
        if members is not None:
            members.discard(key)
            if not members:
                del self._groups[item.signature]

    def _set_timer(self, key: str, item: _Item, until: float) -> None:
        if until < FOREVER:
            heapq.heappush(self._timers, (until, key, item.version))

    def _send_scout(self, signature: bytes) -> None:
        self._scouts.pop(signature, None)
        members = self._groups.get(signature)
        if not members:
            return
        key = min(members, key=lambda member: self._items[member].rank)
        self.ready(key, self._items[key].rank)
        self._scouts[signature] = key

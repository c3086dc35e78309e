"""Which pending pod comes next. Pure: no clock of its own, no I/O; every call is told what time it is.

A pod is in one of these states:

- ready: comes out of `pop`. Higher priority first; within a priority namespaces share the time that decisions take
  (`fairness`); within a namespace pods that were not decided on yet come before those that were, then by age, then by name.
- no room: `decide` refused it. Pods that ask for the same (equal signature) wait as one group; when something happens that
  may help them (`hints`), or when the group was not tried for a while, only the first of it is tried, and the others follow when
  it was placed. So an event costs one decision per kind of pod that it may help, not one per pod. Each time one is refused the
  group pauses before the next attempt, twice as long as before, up to `pause_most`.
- not ours: as no room, for pods whose devices are all of drivers that are not managed.
- waiting: for an event about itself, which calls `ready`, or for a point in time.
- held: taken out by `pop`; the caller decides what becomes of it, and says with `charge` what it has cost.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from controller.reconcile.fairness import FairOrder, Turn
from controller.reconcile.hints import ANY, Change, News
from controller.reconcile.queue_stats import State
from hami_dra.cluster.backoff import doubled

FOREVER: Final = float("inf")


class Rank(NamedTuple):
    """Orders pods: higher priority first, then older, then by name."""

    negative_priority: int
    created: str
    key: str

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]


@dataclass(slots=True)
class _Item:
    rank: Rank
    state: State = "held"
    version: int = 0
    """Counts changes of state: entries of the heaps with an older version are void."""
    signature: bytes = b""
    tried: bool = False
    """It was decided on since it, or what it asks for, last changed."""


@dataclass(slots=True)
class _Group:
    """Refused pods of one signature, and the one of them that was sent ahead."""

    members: set[str] = field(default_factory=set)
    by_rank: list[tuple[Rank, int]] = field(default_factory=list)
    """Heap of (rank, version) of the members; void ones among them."""
    scout: str = ""
    """The one pod that was sent ahead since room may have been made."""
    refusals: int = 0
    not_before: float = -FOREVER
    """The pause after the last refusal ends."""
    is_due: bool = False
    """Room may have been made during the pause: one is to be tried when it ends."""
    helps: Change = ANY
    """What may make the pods fit."""
    review_at: float = FOREVER
    """When one is tried even if nothing happened."""
    review_queued: float = FOREVER
    """When that is looked at: one entry of the heap for each group, however often it is refused."""

    @property
    def namespace(self) -> str:
        return next(iter(self.members)).partition("/")[0] if self.members else ""


class Queue:
    """`turn_cost`: CPU seconds that a look at a pod counts at least. `pause_first`, `pause_most`: of refused groups, seconds."""

    def __init__(self, *, turn_cost: float = 0.0005, pause_first: float = 0.02, pause_most: float = 1.0) -> None:
        self._turn_cost = turn_cost
        self._pause_first = pause_first
        self._pause_most = pause_most
        self._items: dict[str, _Item] = {}
        self._ready: dict[int, FairOrder] = {}
        """By negative priority."""
        self._priorities: list[int] = []
        """Heap of those that may have ready pods."""
        self._served: FairOrder | None = None
        self._timers: list[tuple[float, str, int]] = []
        self._pauses: list[tuple[float, bytes]] = []
        self._reviews: list[tuple[float, bytes]] = []
        self._groups: dict[bytes, _Group] = {}
        self._settled: dict[bytes, None] = {}
        """Groups of which nobody is to be tried before room is made."""

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

    def ready(self, key: str, rank: Rank, *, changed: bool = False) -> None:
        """Look at it at once. `changed`: it is new, or asks for something else than before."""
        item = self._items.get(key)
        if item is None:
            item = self._items[key] = _Item(rank)
        elif item.state == "ready" and item.rank == rank and not (changed and item.tried):
            return
        item.rank = rank
        item.tried = item.tried and not changed
        self._move(key, item, "ready")
        priority = rank.negative_priority
        order = self._ready.get(priority)
        if order is None:
            order = self._ready[priority] = FairOrder(self._turn_cost)
            heapq.heappush(self._priorities, priority)
        order.push(rank.namespace, Turn(item.tried, rank.created, key, item.version))

    def unfinished(self, key: str) -> None:
        """Its decision needs more turns: the next one comes when it is its namespace's turn again."""
        if (item := self._items.get(key)) is not None:
            item.tried = True
            self.ready(key, item.rank)

    def wait(self, key: str, until: float = FOREVER) -> None:
        """Nothing but an event about the pod, or the time, helps it."""
        if (item := self._items.get(key)) is not None:
            self._move(key, item, "waiting")
            self._set_timer(key, item, until)
            self._replace_scout(item.signature, key)

    def no_room(
        self,
        key: str,
        signature: bytes,
        until: float = FOREVER,
        *,
        refused_at: float | None = None,
        helps: Change = ANY,
        review: float = FOREVER,
        ours: bool = True,
    ) -> None:
        """`refused_at`: when it was decided on. None: without a decision, because its equals were refused.

        `helps`: what may make it and its equals fit. `review`: seconds after which one of them is tried in any case.
        """
        if (item := self._items.get(key)) is None:
            return
        self._move(key, item, "no_room" if ours else "not_ours")
        former, item.signature, item.tried = item.signature, signature, True
        group = self._groups.get(signature)
        if group is None:
            group = self._groups[signature] = _Group()
        group.members.add(key)
        heapq.heappush(group.by_rank, (item.rank, item.version))
        self._set_timer(key, item, until)
        if refused_at is not None:
            group.refusals += 1
            group.not_before = refused_at + doubled(self._pause_first, group.refusals - 1, self._pause_most)
            group.helps, group.review_at = helps, refused_at + review
            if group.review_queued == FOREVER:
                self._queue_review(signature, group)
        if group.scout == key:
            group.scout = ""
        if not group.scout and not group.is_due:
            self._settled[signature] = None
        if former != signature:
            # it asks for something else now, so it said nothing about its former group
            self._replace_scout(former, key)

    def is_known_full(self, signature: bytes) -> bool:
        """Whether an equal pod was refused, and the next of them is not to be tried yet."""
        group = self._groups.get(signature)
        return group is not None and bool(group.members) and not group.scout

    def placed(self, key: str) -> None:
        """There was room for it: the next of its kind may have some too."""
        item = self._items.get(key)
        signature = item.signature if item else b""
        if (group := self._groups.get(signature)) is not None:
            group.refusals, group.not_before = 0, -FOREVER
        self.drop(key)
        if (group := self._groups.get(signature)) is not None and not group.scout:
            self._send_scout(signature)

    def drop(self, key: str) -> None:
        """It is gone, bound, or none of ours."""
        item = self._items.pop(key, None)
        if item is None:
            return
        self._leave_group(key, item)
        self._replace_scout(item.signature, key)

    def charge(self, seconds: float) -> None:
        """What the pod that `pop` gave last has cost, in CPU seconds."""
        if self._served is not None:
            self._served.charge(seconds)
            self._served = None

    # --- what happens around -----------------------------------------------------------------------------------------

    def room_made(self, now: float, news: News) -> None:
        """Something changed that may make refused pods fit: those whom it may help try."""
        for signature in list(self._settled):
            group = self._groups[signature]
            if group.helps & news.of(group.namespace):
                self._try(signature, group, now)

    def groups_in(self, signatures: Iterable[bytes]) -> set[bytes]:
        """Those of the groups that have members still."""
        return {signature for signature in signatures if signature in self._groups}

    def pop(self, now: float) -> str | None:
        """The next pod to look at; its state becomes `held`."""
        self._end_pauses(now)
        self._start_reviews(now)
        while self._timers and self._timers[0][0] <= now:
            _, key, version = heapq.heappop(self._timers)
            item = self._items.get(key)
            if item is not None and item.version == version:
                self.ready(key, item.rank)
        while self._priorities:
            order = self._ready[self._priorities[0]]
            turn = order.pop(self._is_valid)
            if turn is not None:
                self._items[turn.key].state = "held"
                self._served = order
                return turn.key
            del self._ready[heapq.heappop(self._priorities)]
        return None

    def next_timer(self) -> float:
        """When `pop` may have something that it has not now; FOREVER if only events can."""
        pause = min(heap[0][0] if heap else FOREVER for heap in (self._pauses, self._reviews))
        while self._timers:
            until, key, version = self._timers[0]
            item = self._items.get(key)
            if item is not None and item.version == version:
                return min(until, pause)
            heapq.heappop(self._timers)
        return pause

    def keys_in(self, state: State) -> list[str]:
        return [key for key, item in self._items.items() if item.state == state]

    # --- inside ------------------------------------------------------------------------------------------------------

    def _is_valid(self, turn: Turn) -> bool:
        item = self._items.get(turn.key)
        return item is not None and item.version == turn.version and item.state == "ready"

    def _move(self, key: str, item: _Item, state: State) -> None:
        self._leave_group(key, item)
        item.state = state
        item.version += 1

    def _leave_group(self, key: str, item: _Item) -> None:
        group = self._groups.get(item.signature)
        if group is not None:
            group.members.discard(key)
            if not group.members and not group.scout:
                del self._groups[item.signature]
                self._settled.pop(item.signature, None)

    def _set_timer(self, key: str, item: _Item, until: float) -> None:
        if until < FOREVER:
            heapq.heappush(self._timers, (until, key, item.version))

    # --- groups ------------------------------------------------------------------------------------------------------

    def _try(self, signature: bytes, group: _Group, now: float) -> None:
        """One of the group, as soon as its pause is over."""
        self._settled.pop(signature, None)
        if now >= group.not_before:
            self._send_scout(signature)
        else:
            group.is_due = True
            heapq.heappush(self._pauses, (group.not_before, signature))

    def _end_pauses(self, now: float) -> None:
        while self._pauses and self._pauses[0][0] <= now:
            _, signature = heapq.heappop(self._pauses)
            group = self._groups.get(signature)
            if group is not None and group.is_due and group.not_before <= now:
                self._send_scout(signature)

    def _start_reviews(self, now: float) -> None:
        while self._reviews and self._reviews[0][0] <= now:
            at, signature = heapq.heappop(self._reviews)
            group = self._groups.get(signature)
            if group is None or group.review_queued != at:
                continue
            if group.review_at <= now and signature in self._settled:
                group.review_at = FOREVER
                self._try(signature, group, now)
            self._queue_review(signature, group)

    def _queue_review(self, signature: bytes, group: _Group) -> None:
        group.review_queued = group.review_at
        if group.review_at < FOREVER:
            heapq.heappush(self._reviews, (group.review_at, signature))

    def _replace_scout(self, signature: bytes, key: str) -> None:
        """If it was sent ahead, somebody else is to go."""
        group = self._groups.get(signature)
        if group is not None and group.scout == key:
            self._send_scout(signature)

    def _send_scout(self, signature: bytes) -> None:
        group = self._groups[signature]
        group.scout, group.is_due = "", False
        self._settled.pop(signature, None)
        while group.by_rank:
            rank, version = heapq.heappop(group.by_rank)
            item = self._items.get(rank.key)
            if item is not None and item.version == version and rank.key in group.members:
                group.scout = rank.key
                self.ready(rank.key, item.rank)
                return
        del self._groups[signature]

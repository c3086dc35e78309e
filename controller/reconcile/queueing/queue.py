"""The queue of pending pods. Pure: no clock of its own, no I/O; every call gets the time.

A pod is in one of these states:

- ready: returned by `pop`. Higher priority first; within a priority, namespaces share the time that
  decisions take (`fairness`); within a namespace, pods that were never decided come first, then by
  age, then by name.
- no room: `decide` refused it. Pods with equal requests (equal signature) wait as one group. When
  something happens that may help them (`queueing_hints`), or when the group was not tried for a
  while, only its first pod is tried, and the others follow once it was placed. So an event costs
  one decision per kind of pod that it may help, not one per pod. After each refusal the group
  pauses before the next attempt, twice as long as before, up to `pause_most`. If something that may
  help happens meanwhile, the pause ends as soon as a pod of lower priority would be next: it must
  not take the room. Each pod that is evaluated pays for one such attempt, so there are at most
  twice as many.
- not ours: like no room, for pods whose devices are all of unmanaged drivers.
- waiting: for an event about itself, which calls `ready`, or for a point in time.
- held: taken out by `pop`; the caller decides its next state, and reports its cost with `charge`.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from controller.reasons import ANY, Change
from controller.reconcile.queueing.fairness import FairOrder, Turn
from controller.reconcile.queueing.queueing_hints import News
from controller.reconcile.queueing.refused_groups import FOREVER, Pause, Rank, RefusedGroup
from controller.reconcile.runtime import State

_ATTEMPTS_SAVED: Final = 256
"""Attempts before pods of lower priority that may be made without others between them."""
_REFUSED: Final = frozenset({"no_room", "not_ours"})
"""States of the members of a group."""


class _Item(Struct):
    rank: Rank
    state: State = "held"
    version: int = 0
    """Counts changes of state: heap entries with an older version are void."""
    signature: bytes = b""
    tried: bool = False
    """It was decided since it, or its request, last changed."""
    is_early: bool = False
    """It is ready because the pause of its group ended early."""


class Queue:
    """The queue.

    `turn_cost`: least CPU seconds that an evaluation counts. `pause_first`, `pause_most`: pauses of
    refused groups, in seconds.
    """

    def __init__(self, *, turn_cost: float = 0.0005, pause_first: float = 0.02, pause_most: float = 1.0) -> None:
        self._turn_cost = turn_cost
        self._pause_first = pause_first
        self._pause_most = pause_most
        self._items: dict[str, _Item] = {}
        self._ready: dict[int, FairOrder] = {}
        """By negative priority."""
        self._priorities: list[int] = []
        """Heap of priorities that may have ready pods."""
        self._served: FairOrder | None = None
        self._timers: list[tuple[float, str, int]] = []
        self._pauses: list[tuple[float, bytes]] = []
        self._reviews: list[tuple[float, bytes]] = []
        self._groups: dict[bytes, RefusedGroup] = {}
        self._refused_ranks: Counter[int] = Counter()
        """Negative priority → number of refused pods."""
        self._due: dict[int, dict[bytes, None]] = {}
        """Negative priority → groups for which something happened during their pause."""
        self._attempts_left = _ATTEMPTS_SAVED
        """Pauses that may end early (`_end_pauses_above`)."""
        self._settled: dict[bytes, None] = {}
        """Groups without a pod to try before something may help them."""

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def waiting(self, evaluated_as: Mapping[str, str] | None = None) -> tuple[Counter[State], dict[State, str]]:
        """Return by state the number of pods, and the creation time of the oldest.

        `evaluated_as`: by key of a pod, the pod that stands for it: its state counts.
        """
        counts: Counter[State] = Counter()
        oldest: dict[State, str] = {}
        others = evaluated_as or {}
        for key, item in self._items.items():
            state = self._items.get(others.get(key, key), item).state
            counts[state] += 1
            oldest[state] = min(oldest.get(state, item.rank.created), item.rank.created)
        return counts, oldest

    # --- what happens to a pod --------------------------------------------------------------------

    def ready(self, key: str, rank: Rank, *, changed: bool = False) -> None:
        """Make the pod ready. `changed`: it is new, or requests something else than before."""
        item = self._items.get(key)
        if item is None:
            item = self._items[key] = _Item(rank)
        elif item.state == "ready" and item.rank == rank and not (changed and item.tried):
            return
        item.tried = item.tried and not changed
        self._move(item, "ready")
        item.rank = rank
        priority = rank.negative_priority
        order = self._ready.get(priority)
        if order is None:
            order = self._ready[priority] = FairOrder(self._turn_cost)
            heapq.heappush(self._priorities, priority)
        order.push(rank.namespace, Turn(item.tried, rank.created, key, item.version))

    def unfinished(self, key: str) -> None:
        """Queue the pod again in its namespace's order: its decision needs more turns."""
        if (item := self._items.get(key)) is not None:
            item.tried = True
            self.ready(key, item.rank)

    def wait(self, key: str, until: float = FOREVER) -> None:
        """Wait for an event about the pod, or until a time."""
        if (item := self._items.get(key)) is not None:
            self._move(item, "waiting")
            self._set_timer(key, item, until)
            self._replace_representative(item.signature, key)

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
        """Add the pod to its group of refused pods.

        `refused_at`: time of the decision; None: not decided, because equal pods were refused.
        `helps`: changes that may make it and equal pods fit. `review`: time at which one of them is
        tried in any case; of equal ones since the last decision the earliest counts.
        """
        if (item := self._items.get(key)) is None:
            return
        self._move(item, "no_room" if ours else "not_ours")
        former, item.signature, item.tried = item.signature, signature, True
        group = self._groups.get(signature)
        if group is None:
            group = self._groups[signature] = RefusedGroup()
        group.size += 1
        self._refused_ranks[item.rank.negative_priority] += 1
        heapq.heappush(group.by_rank, (item.rank, item.version))
        self._set_timer(key, item, until)
        if refused_at is not None:
            group.pause.begin(refused_at, self._pause_first, self._pause_most)
            group.helps, group.review_at = helps, review
        group.review_at = min(group.review_at, review)
        if group.review_at < group.review_queued:
            self._queue_review(signature, group)
        if group.representative == key or refused_at is not None:  # a decision says the same of equal pods
            group.representative = ""
        if not group.representative and not group.pause.is_due:
            self._settled[signature] = None
        if group.pause.is_due:
            self._set_due(signature, group, is_due=True)  # it may have the highest priority of the group
        if former != signature:
            # It requests something else now, so its result says nothing about its former group.
            self._replace_representative(former, key)

    def is_known_full(self, signature: bytes) -> bool:
        """Return whether an equal pod was refused, and the next one must not be tried yet."""
        group = self._groups.get(signature)
        return group is not None and group.size > 0 and not group.representative

    def placed(self, key: str) -> None:
        """Record that the pod was placed: the next of its group may fit, too."""
        item = self._items.get(key)
        signature = item.signature if item else b""
        if (group := self._groups.get(signature)) is not None:
            group.pause = Pause(is_due=group.pause.is_due)
        self.drop(key)
        if (group := self._groups.get(signature)) is not None and not group.representative:
            self._send_representative(signature)

    def drop(self, key: str) -> None:
        """Remove a pod that was deleted, bound, or is not ours."""
        item = self._items.pop(key, None)
        if item is None:
            return
        self._leave_group(item)
        self._replace_representative(item.signature, key)

    def charge(self, seconds: float, others: Mapping[str, float] = MappingProxyType({})) -> None:
        """Charge the cost, in CPU seconds, of the pod that `pop` returned last. `others`: what of it
        other namespaces caused, who pay for that.
        """
        if self._served is not None:
            self._served.charge(seconds, others)
            self._served = None

    # --- what happens around ----------------------------------------------------------------------

    def room_made(self, now: float, news: News) -> None:
        """Try the refused pods that these changes may help."""
        for signature in list(self._settled):
            group = self._groups[signature]
            if group.helps & news.of(group.namespace):
                self._try(signature, group, now)

    def groups_in(self, signatures: Iterable[bytes]) -> set[bytes]:
        """Return the groups that still have members."""
        return {signature for signature in signatures if signature in self._groups}

    def pop(self, now: float) -> str | None:
        """Return the next pod to evaluate; its state becomes `held`."""
        self._end_waits(now)
        order = self._next_order()
        while order is not None and self._end_pauses_above(self._priorities[0], now):
            order = self._next_order()
        turn = order.pop(self._is_valid) if order is not None else None
        if turn is None:
            return None
        item = self._items[turn.key]
        self._attempts_left = min(self._attempts_left + (not item.is_early), _ATTEMPTS_SAVED)
        item.state, item.is_early = "held", False
        self._served = order
        return turn.key

    def is_outranked(self, now: float) -> bool:
        """Return whether a refused pod has a higher priority than the one that `pop` would return."""
        self._end_waits(now)
        return self._next_order() is not None and self._is_refused_above(self._priorities[0])

    def next_timer(self) -> float:
        """Return when `pop` may have a pod that it has not now; FOREVER if only events can change that."""
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

    # --- inside -----------------------------------------------------------------------------------

    def _end_waits(self, now: float) -> None:
        """Make the pods ready whose time has come."""
        self._end_pauses(now)
        self._start_reviews(now)
        while self._timers and self._timers[0][0] <= now:
            _, key, version = heapq.heappop(self._timers)
            item = self._items.get(key)
            if item is not None and item.version == version:
                self.ready(key, item.rank)

    def _next_order(self) -> FairOrder | None:
        """Return the ready pods of the highest priority that has some."""
        while self._priorities:
            order = self._ready[self._priorities[0]]
            if order.has_turn(self._is_valid):
                return order
            del self._ready[heapq.heappop(self._priorities)]
        return None

    def _is_valid(self, turn: Turn) -> bool:
        item = self._items.get(turn.key)
        return item is not None and item.version == turn.version and item.state == "ready"

    def _move(self, item: _Item, state: State) -> None:
        self._leave_group(item)
        item.state = state
        item.version += 1

    def _leave_group(self, item: _Item) -> None:
        group = self._groups.get(item.signature)
        if group is not None:
            if item.state in _REFUSED:
                group.size -= 1
                self._refused_ranks[item.rank.negative_priority] -= 1
            if not group.size and not group.representative:
                self._set_due(item.signature, group, is_due=False)
                del self._groups[item.signature]
                self._settled.pop(item.signature, None)

    def _set_timer(self, key: str, item: _Item, until: float) -> None:
        if until < FOREVER:
            heapq.heappush(self._timers, (until, key, item.version))

    # --- groups -----------------------------------------------------------------------------------

    def _try(self, signature: bytes, group: RefusedGroup, now: float) -> None:
        """Try one pod of the group, as soon as its pause is over."""
        self._settled.pop(signature, None)
        if now >= group.pause.end:
            self._send_representative(signature)
        else:
            self._set_due(signature, group, is_due=True)
            heapq.heappush(self._pauses, (group.pause.end, signature))

    def _end_pauses(self, now: float) -> None:
        while self._pauses and self._pauses[0][0] <= now:
            _, signature = heapq.heappop(self._pauses)
            group = self._groups.get(signature)
            if group is not None and group.pause.is_due and group.pause.end <= now:
                self._send_representative(signature)

    def _is_refused_above(self, negative_priority: int) -> bool:
        return any(rank < negative_priority and count for rank, count in self._refused_ranks.items())

    def _end_pauses_above(self, negative_priority: int, now: float) -> bool:
        """End the pause of the group with the highest priority, if that is higher than this one and
        something happened that may help. Returns whether one ended.
        """
        if not self._attempts_left or not self._is_refused_above(negative_priority):
            return False
        for rank in sorted(each for each in self._due if each < negative_priority):
            for signature in self._due[rank]:
                if self._groups[signature].pause.start <= now:
                    self._attempts_left -= 1
                    self._send_representative(signature)
                    self._items[self._groups[signature].representative].is_early = True
                    return True
        return False

    def _set_due(self, signature: bytes, group: RefusedGroup, *, is_due: bool) -> None:
        if group.pause.is_due and (known := self._due.get(group.due_rank)) is not None:
            known.pop(signature, None)
            if not known:
                del self._due[group.due_rank]
        group.pause.is_due = is_due
        if is_due and (first := self._first_of(signature, group)) is not None:
            group.due_rank = first.negative_priority
            self._due.setdefault(group.due_rank, {})[signature] = None

    def _first_of(self, signature: bytes, group: RefusedGroup) -> Rank | None:
        """Return the rank of the group's first refused pod."""
        while group.by_rank:
            rank, version = group.by_rank[0]
            item = self._items.get(rank.key)
            if item is not None and item.version == version and item.signature == signature and item.state in _REFUSED:
                return rank
            heapq.heappop(group.by_rank)
        return None

    def _start_reviews(self, now: float) -> None:
        while self._reviews and self._reviews[0][0] <= now:
            at, signature = heapq.heappop(self._reviews)
            group = self._groups.get(signature)
            if group is None or group.review_queued != at:
                continue
            is_over = group.review_at <= now
            if is_over:
                group.review_at = FOREVER  # until the attempt, which may be under way already, has failed
            self._queue_review(signature, group)
            if is_over and signature in self._settled:
                self._try(signature, group, now)

    def _queue_review(self, signature: bytes, group: RefusedGroup) -> None:
        group.review_queued = group.review_at
        if group.review_at < FOREVER:
            heapq.heappush(self._reviews, (group.review_at, signature))

    def _replace_representative(self, signature: bytes, key: str) -> None:
        """Choose another pod to try if `key` was the chosen one."""
        group = self._groups.get(signature)
        if group is not None and group.representative == key:
            self._send_representative(signature)

    def _send_representative(self, signature: bytes) -> None:
        group = self._groups[signature]
        group.representative = ""
        self._set_due(signature, group, is_due=False)
        self._settled.pop(signature, None)
        first = self._first_of(signature, group)
        if first is None:
            del self._groups[signature]
            return
        heapq.heappop(group.by_rank)
        group.representative = first.key
        self.ready(first.key, self._items[first.key].rank)

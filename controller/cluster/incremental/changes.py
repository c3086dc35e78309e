"""Change logs for incremental updates of derived columns, LRU caches, and tracking of uids that are gone."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

import numpy as np

from hami_dra.api.arrays import Positions
from hami_dra.api.meta import Object

V = TypeVar("V")
KEPT: Final = 1 << 16
_FEW: Final = 32
"""Up to this many entries, sorting without numpy is faster."""


class ChangeLog:
    """Row numbers in the order they changed."""

    def __init__(self) -> None:
        self.version = 0
        """Increases by one with each entry. Readers must not change it."""
        self._rows: list[int] = []
        self._forgotten = 0

    def add(self, row: int) -> None:
        if len(self._rows) >= KEPT:
            half = KEPT // 2
            del self._rows[:half]
            self._forgotten += half
        self._rows.append(row)
        self.version += 1

    def restart(self) -> None:
        """Every row changed: readers hear that the log does not know which."""
        self.version += 1
        self._rows.clear()
        self._forgotten = self.version

    def since(self, version: int) -> Positions | None:
        """Return the rows that changed after `version`, each once; None if the log no longer has
        them: then all did.

        >>> log = ChangeLog()
        >>> for row in (7, 3, 7):
        ...     log.add(row)
        >>> log.since(1).tolist(), log.entries(1), log.since(3).tolist()
        ([3, 7], [3, 7], [])
        """
        rows = self.entries(version)
        if rows is None:
            return None
        return np.array(sorted(set(rows)), dtype=np.intp) if len(rows) <= _FEW else np.unique(np.array(rows, np.intp))

    def entries(self, version: int) -> list[int] | None:
        """Return the rows in the order they changed, repeated ones included: faster if there are
        few. None as for `since`.
        """
        return self._rows[version - self._forgotten :] if version >= self._forgotten else None


class LruCache(Generic[V]):
    """Values by key, made at first use; the least recently used goes when there are more than `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        found = self.find(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found

    def find(self, key: Hashable) -> V | None:
        """Return the value, marked as used; None if there is none."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: Hashable, value: V) -> None:
        """Set the value, marked as used."""
        self._kept[key] = value
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def drop(self, key: Hashable) -> None:
        self._kept.pop(key, None)

    def clear(self) -> None:
        self._kept.clear()


class Shared(Generic[V]):
    """`LruCache` for values that several accounts make: one that makes many pushes out its own, not
    those of the others.

    When they weigh more than `most` together, the account whose values weigh most loses its least
    recently used one: a tenant who chooses how large a value is gets as many fewer of them.
    `dropped` is called with each value that goes.

    >>> shapes = Shared(3)
    >>> for key, namespace in (("plain", "honest"), ("a", "evil"), ("b", "evil"), ("c", "evil")):
    ...     _ = shapes.get(key, namespace, lambda: key)
    >>> sorted(shapes.values())
    ['b', 'c', 'plain']
    """

    def __init__(self, most: int, dropped: Callable[[V], None] | None = None) -> None:
        self._most = most
        self._dropped = dropped
        self._weight = 0
        self._kept: dict[Hashable, tuple[str, int, V]] = {}
        """Key → account, weight, value."""
        self._by_account: dict[str, OrderedDict[Hashable, None]] = {}
        self._weights: dict[str, int] = {}

    def find(self, key: Hashable) -> V | None:
        """Return the cached value, without marking it as used."""
        found = self._kept.get(key)
        return found[2] if found is not None else None

    def get(self, key: Hashable, account: str, make: Callable[[], V], weight: int = 1) -> V:
        """Return the value, made now if there is none. `account`: owner of a new value."""
        found = self._kept.get(key)
        if found is not None:
            owner, _, value = found
            self._by_account[owner].move_to_end(key)
            return value
        value = make()
        self._kept[key] = account, weight, value
        self._by_account.setdefault(account, OrderedDict())[key] = None
        self._add(account, weight)
        while self._weight > self._most:
            self._drop_one()
        return value

    def values(self) -> list[V]:
        return [value for _, _, value in self._kept.values()]

    def clear(self) -> None:
        """Drop all values."""
        values = self.values()
        self._kept.clear()
        self._by_account.clear()
        self._weights.clear()
        self._weight = 0
        if self._dropped is not None:
            for value in values:
                self._dropped(value)

    def drop(self, is_unwanted: Callable[[V], bool]) -> None:
        for key, (_, _, value) in [*self._kept.items()]:
            if is_unwanted(value):
                self._drop(key)

    def _drop_one(self) -> None:
        largest = max(self._weights, key=lambda each: self._weights[each])
        self._drop(next(iter(self._by_account[largest])))

    def _drop(self, key: Hashable) -> None:
        account, weight, value = self._kept.pop(key)
        del self._by_account[account][key]
        self._add(account, -weight)
        if not self._by_account[account]:
            del self._by_account[account], self._weights[account]
        if self._dropped is not None:
            self._dropped(value)

    def _add(self, account: str, weight: int) -> None:
        self._weight += weight
        self._weights[account] = self._weights.get(account, 0) + weight


class UidTracker:
    """Tracks the uid of the object under each key."""

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}

    def gone(self, old: Object | None, new: Object | None) -> list[str]:
        """Record the current object. Returns the uids that were there before and are gone.

        Events may be repeated: a second deletion does not affect an object created since under the
        same name.
        """
        if new is None:
            if old is None or self._uids.get(old.key) != old.metadata.uid:
                return []
            return [self._uids.pop(old.key)]
        key, uid = new.key, new.metadata.uid
        before = self._uids.get(key, uid)
        self._uids[key] = uid
        return [before] if before != uid else []

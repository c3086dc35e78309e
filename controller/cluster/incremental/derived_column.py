"""Columns that are computed from others, and recomputed only for the rows that changed since they
were last read.

`LogReader` is the one place that knows how a reader keeps up with a `ChangeLog`; `DerivedColumns`
is the base of everything that follows one log. Whatever is computed this way is a cache: made from
scratch it says the same, which property tests hold.
"""

from abc import ABC, abstractmethod

import numpy as np

from controller.cluster.incremental.changes import ChangeLog
from hami_dra.api.arrays import Positions


class LogReader:
    """One reader's place in a ChangeLog.

    Rows stay unread until `done`, so that an update that raises is repeated:

    >>> log = ChangeLog()
    >>> reader = LogReader(log)
    >>> reader.unread() is None     # the first time every row counts as changed
    True
    >>> reader.done()
    >>> for row in (4, 2, 4):
    ...     log.add(row)
    >>> reader.is_current, reader.unread().tolist()
    (False, [2, 4])
    >>> reader.done()
    >>> reader.is_current, reader.unread().tolist()
    (True, [])
    """

    __slots__ = ("_log", "_version")

    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self._version = -1

    @property
    def is_current(self) -> bool:
        return self._version == self._log.version

    @property
    def unread_count(self) -> int:
        """Number of entries; a row that changed twice counts twice."""
        return self._log.version - self._version

    def unread(self) -> Positions | None:
        """Return the changed rows, ascending, each once; None where the log does not know any more: every row, then."""
        return self._log.since(self._version) if self._version >= 0 else None

    def entries(self) -> list[int] | None:
        """Return the changed rows in the order they changed, repeated ones included: faster where they are few."""
        return self._log.entries(self._version) if self._version >= 0 else None

    def done(self) -> None:
        self._version = self._log.version

    def restart(self) -> None:
        """Every row counts as changed again."""
        self._version = -1

    def take(self) -> Positions | None:
        """`unread` and `done` in one."""
        rows = self.unread()
        self.done()
        return rows


class DerivedColumns(ABC):
    """Columns that follow the rows of one log. A subclass grows its arrays and recomputes rows;
    this class says which.

    >>> class Doubled(DerivedColumns):
    ...     def __init__(self, log, source):
    ...         super().__init__(log)
    ...         self.source, self.values = source, np.zeros(0, dtype=np.int64)
    ...     def _grow(self):
    ...         fresh = np.zeros(len(self.source) - len(self.values), dtype=np.int64)
    ...         self.values = np.concatenate([self.values, fresh])
    ...         return len(self.source)
    ...     def _update(self, rows):
    ...         print("update", rows.tolist())
    ...         self.values[rows] = [2 * self.source[row] for row in rows]
    >>> log, source = ChangeLog(), [1, 2, 3]
    >>> doubled = Doubled(log, source)
    >>> doubled.refresh()
    update [0, 1, 2]
    >>> source[1] = 7
    >>> log.add(1)
    >>> doubled.refresh()
    update [1]
    >>> doubled.refresh()
    >>> doubled.values.tolist()
    [2, 14, 6]
    """

    __slots__ = ("_reader",)

    def __init__(self, log: ChangeLog) -> None:
        self._reader = LogReader(log)

    def refresh(self) -> None:
        """Bring the columns up to date; to be called before they are read."""
        if self._reader.is_current:  # a new row is in the log, too
            return
        size = self._grow()
        changed = self._reader.unread()
        self._update(np.arange(size) if changed is None else changed)
        self._reader.done()

    @abstractmethod
    def _grow(self) -> int:
        """Make room for every row there is now, and return how many those are."""

    @abstractmethod
    def _update(self, rows: Positions, /) -> None:
        """Recompute some rows."""

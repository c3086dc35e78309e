"""Contain a failure on one object, so that no object ends the loop that handles it.

Every loop over objects of a cluster, in the controller, the driver and the CLI, handles each object
under one guard::

    guard = LoopGuard("undo", metrics.internal_error, passing=(LeadershipLost,))
    while True:
        key = await queue.get()
        with guard.each(key):
            await self._undo(key)

Only unexpected errors are contained: a bug, or an object of an unforeseen form. Errors with a
meaning (`ClusterError`, `Stale`) are handled where they are understood. A cancellation is never
contained.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final

log = logging.getLogger(__name__)

_REMEMBERED: Final = 1_000


def first_failure(error: BaseException) -> BaseException:
    """Return the first failure of a task group, or the error itself if it is of none."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def count_nothing(_loop: str) -> None:
    """Count nothing, for programs without metrics."""


class LoopGuard:
    """The guard of one loop.

    `count` is called with the loop's name for each failure; `passing` are the errors that must end
    the loop, even if a task group wraps them.
    """

    def __init__(
        self, loop: str, count: Callable[[str], None] = count_nothing, *, passing: tuple[type[Exception], ...] = ()
    ) -> None:
        self._loop = loop
        self._count = count
        self._passing = passing
        self._logged: OrderedDict[tuple[str, str], None] = OrderedDict()

    def each(self, key: str) -> "_Each":
        """Return a context manager for the handling of one object. `key` names the object in the log."""
        return _Each(self, key)

    async def run(self, key: str, work: Awaitable[object]) -> None:
        with self.each(key):
            await work

    def contains(self, key: str, error: BaseException | None) -> bool:
        """Log and count the error of one object; return False if it must propagate."""
        if not isinstance(error, Exception) or self._passes(error):
            return False
        self._count(self._loop)
        message = "%s: %s: internal error, the loop continues without it: %s"
        if self._is_news(key, error):
            log.error(message, self._loop, key, error, exc_info=error)
        else:
            log.debug(message, self._loop, key, error)
        return True

    def _passes(self, error: Exception) -> bool:
        if isinstance(error, ExceptionGroup):
            return error.subgroup(self._passing) is not None if self._passing else False
        return isinstance(error, self._passing)

    def _is_news(self, key: str, error: Exception) -> bool:
        """Return whether this object fails like this for the first time: retries must not fill the log."""
        kind = (key, type(error).__name__)
        known = kind in self._logged
        self._logged[kind] = None
        self._logged.move_to_end(kind)
        if len(self._logged) > _REMEMBERED:
            self._logged.popitem(last=False)
        return not known


class _Each:
    """Context manager for one object, written as a class because a generator is slower than most work."""

    __slots__ = ("_guard", "_key")

    def __init__(self, guard: LoopGuard, key: str) -> None:
        self._guard = guard
        self._key = key

    def __enter__(self) -> None:
        return

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        return error is not None and self._guard.contains(self._key, error)

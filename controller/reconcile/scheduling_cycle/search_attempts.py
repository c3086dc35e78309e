"""How long the next attempt at a decision may search: twice as long as the one before, up to a limit.

Kept by pod or gang, of the latest only: one that is forgotten begins with a short attempt again.
"""

from collections.abc import Hashable
from typing import Final

from controller.allocation import FIRST_ATTEMPT, Attempt
from controller.cluster.incremental import LruCache

_KEPT: Final = 1_024


class SearchAttempts:
    def __init__(self) -> None:
        self._steps: LruCache[int] = LruCache(_KEPT)
        """Of the next attempt."""

    def next(self, key: Hashable, most: int) -> Attempt:
        """Return the next attempt; `most`: steps of the longest one."""
        steps = min(self._steps.find(key) or FIRST_ATTEMPT, most)
        return Attempt(steps, is_last=steps == most)

    def spent(self, key: Hashable, attempt: Attempt) -> None:
        """Note that the attempt was too short."""
        self._steps.put(key, 2 * attempt.most)

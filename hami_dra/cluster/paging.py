"""How many objects a list asks for at a time: by what they weigh, so that a page of very large objects is no burst of memory.

Used by `http`. A tenant can make a pod of a megabyte; five hundred of them in one answer, decoded, are more than the controller's
memory limit. So a list begins with a small page and goes on with as many objects as are likely to fit `PAGE_BYTES`. Pure.
"""

from dataclasses import dataclass
from typing import Final

FIRST: Final = 25
MOST: Final = 500
"""As kubectl and client-go ask for."""
PAGE_BYTES: Final = 2 << 20


@dataclass(slots=True)
class PageSize:
    """The size of the next page; `learn` is told of each that came."""

    limit: int = FIRST

    def learn(self, count: int, size: int) -> None:
        """`count` objects came in a body of `size` bytes. The next page is at most twice as long as this one was to be.

        >>> pages = PageSize()
        >>> pages.learn(25, 100_000)
        >>> pages.limit
        50
        >>> pages.learn(50, 12_500_000)
        >>> pages.limit
        8
        """
        if count:
            self.limit = max(1, min(MOST, 2 * self.limit, PAGE_BYTES * count // max(size, 1)))

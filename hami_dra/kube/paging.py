"""Page sizes of lists, by the weight of the objects, so that large objects cause no burst of
memory.

Used by `http`. A tenant can create a pod of a megabyte; five hundred of them in one answer,
decoded, exceed the controller's memory limit. A list therefore starts with a small page and
continues with as many objects as are likely to fit `PAGE_BYTES`. Pure.
"""

from typing import Final

from msgspec import Struct

FIRST: Final = 25
MOST: Final = 500
"""The page size of kubectl and client-go."""
PAGE_BYTES: Final = 2 << 20


class PageSize(Struct):
    """The size of the next page; call `learn` after each page."""

    limit: int = FIRST

    def learn(self, count: int, size: int) -> None:
        """`count` objects came in a body of `size` bytes. The next page is at most twice as long as
        this one was to be.

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

"""Pagination of long lists. Pure."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class PageSlice(Struct, Generic[T], frozen=True):
    items: Sequence[T]
    number: int
    """From 1."""
    of: int
    """Number of pages, at least 1."""
    first: int
    """Number of the page's first item among all, from 1; 0 if there is none."""
    total: int

    @property
    def last(self) -> int:
        return self.first + len(self.items) - 1 if self.items else 0


def page_slice(items: Sequence[T], asked: str, size: int) -> PageSlice[T]:
    """Return one page of the items.

    `asked`: the page number from the query; anything else selects the nearest page. The last page
    may have a fifth more, so that no page is made for a few items:

    >>> [page_slice(range(number), "", 50).of for number in (50, 60, 61, 110, 111)]
    [1, 1, 2, 2, 3]
    """
    leaves = max(1, -(-(len(items) - size // 5) // size))
    number = int(asked) if asked.isdecimal() and len(asked) < 9 else 1
    number = min(max(number, 1), leaves)
    start = (number - 1) * size
    end = start + size if number < leaves else len(items)
    return PageSlice(items[start:end], number, leaves, start + 1 if items else 0, len(items))

"""Pagination of long lists. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageSlice(Generic[T]):
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

    `asked`: the page number from the query; anything else selects the nearest page.
    """
    leaves = max(1, -(-len(items) // size))
    number = int(asked) if asked.isdecimal() and len(asked) < 9 else 1
    number = min(max(number, 1), leaves)
    start = (number - 1) * size
    return PageSlice(items[start : start + size], number, leaves, start + 1 if items else 0, len(items))

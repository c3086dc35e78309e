"""Tables of pages: filtered and sorted by the query of a link, leaf by leaf, and whole as CSV and JSON.

A table is a `PageTable` with its columns (`controller.views.columns`); `sort` and `order` of the
query choose one of them. All of it is done in pieces (`pacing`).
"""

import asyncio  # noqa: F401 (doctests use it)
import csv
import io
import json
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from controller.dashboard.pacing import breath, paced
from controller.dashboard.source import Source
from controller.views.columns import Column, Columns, Row, values

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


Query = Mapping[str, str]
Context = dict[str, Any]
"""Values for a template."""
DESCENDING: Final = "desc"
FORMATS: Final[Mapping[str, str]] = {"csv": "text/csv", "json": "application/json"}
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class PageTable(Generic[Row]):
    """A table, for a page and for export. Subclasses say what it consists of."""

    columns: Columns[Row]
    """The first one that sorts is the order where the query names none."""
    asks: tuple[str, ...] = ("q",)
    """What of the query filters."""
    on_leaf: int = 50

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def cells(self) -> Mapping[str, Column[Row]]:
        return {column.name: column for column in self.columns}

    async def find(self, query: Query) -> Iterable[Row]:
        raise NotImplementedError

    async def rows(self, found: Sequence[Any]) -> AsyncIterator[Row]:
        """Yield the rows, some of what `ordered` returns: a table may make them only now."""
        async for row in paced(found):
            yield row

    def shown(self, row: Row) -> object:
        """Return the row as the template reads it."""
        return row

    async def ordered(self, query: Query) -> tuple[list[Any], dict[str, str]]:
        """Return what the query asks for, in its order and ready for `rows`, and what it asks for."""
        found, sort = await ordered(await self.find(query), self.columns, query)
        return found, {key: query.get(key, "").strip() for key in self.asks} | sort

    async def context(self, query: Query) -> Context:
        """Return one leaf, for the template of a page."""
        items, asked = await self.ordered(query)
        leaf = page_slice(items, query.get("leaf", ""), self.on_leaf)
        return {
            "leaf": leaf,
            "rows": [self.shown(row) async for row in self.rows(leaf.items)],
            "columns": self.columns,
            "cells": self.cells,
            "asked": asked,
        }

    async def exported(self, query: Query) -> AsyncIterator[Mapping[str, object]]:
        async for row in self.rows((await self.ordered(query))[0]):
            yield values(self.columns, row)


async def ordered(rows: Iterable[Row], columns: Columns[Row], query: Query) -> tuple[list[Row], dict[str, str]]:
    """Return the rows sorted by the query, and the part of the query that says so.

    Without `sort`, or with one that is no column, rows have the order of the first column that
    sorts. Equal rows keep the order in which they came.

    >>> columns = (Column("name", sort=str), Column("size", sort=len))
    >>> asyncio.run(ordered(["b", "ccc", "a"], columns, {"sort": "size", "order": "desc"}))
    (['ccc', 'b', 'a'], {'sort': 'size', 'order': 'desc'})
    """
    keys = {column.name: column.sort for column in columns if column.sort is not None}
    key, order = query.get("sort", ""), query.get("order", "")
    is_column = key in keys
    value_of = keys[key] if is_column else next(iter(keys.values()), lambda _: 0)
    descending = is_column and order == DESCENDING
    keyed = [(value_of(row), row) async for row in paced(rows)]
    await breath()
    keyed.sort(key=itemgetter(0), reverse=descending)
    asked = ({"sort": key} if is_column else {}) | ({"order": DESCENDING} if descending else {})
    return [row for _, row in keyed], asked


async def exported(rows: AsyncIterable[Mapping[str, object]], form: str) -> AsyncIterator[str]:
    r"""Yield the rows as text, one after the other. `form`: one of FORMATS; all rows have the same keys.

    >>> async def rows():
    ...     yield {"pod": "=1+1", "cores": 30}
    >>> async def text(form):
    ...     return "".join([each async for each in exported(rows(), form)])
    >>> asyncio.run(text("csv")), asyncio.run(text("json"))
    ("pod,cores\r\n'=1+1,30\r\n", '[\n{"pod": "=1+1", "cores": 30}\n]\n')
    """
    number = 0
    async for row in rows:
        number += 1
        if form == "json":
            yield (",\n" if number > 1 else "[\n") + json.dumps(row, ensure_ascii=False)
        else:
            yield (_line(row) if number == 1 else "") + _line([_cell(value) for value in row.values()])
    if form == "json":
        yield "\n]\n" if number else "[]\n"


def _line(cells: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()


def _cell(value: object) -> object:
    """Return a value that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else value

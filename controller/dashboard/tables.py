"""Sorting of tables by links, and the same tables as CSV and JSON, in pieces (`pacing`).

A table has its columns by key; `sort` and `order` of the query choose one. `exported` writes the
rows of a table without pagination.
"""

import asyncio  # noqa: F401 (doctests use it)
import csv
import io
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, Final, TypeVar

from controller.dashboard.pacing import breath, paced

T = TypeVar("T")
DESCENDING: Final = "desc"
FORMATS: Final[Mapping[str, str]] = {"csv": "text/csv", "json": "application/json"}
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


async def ordered(
    rows: Iterable[T], columns: Mapping[str, Callable[[T], Any]], query: Mapping[str, str]
) -> tuple[list[T], dict[str, str]]:
    """Return the rows sorted by the query, and the part of the query that says so.

    Without `sort`, or with one that is no column, rows keep the order of the first column. Equal
    rows keep the order in which they came.

    >>> rows = ordered(["b", "ccc", "a"], {"name": str, "size": len}, {"sort": "size", "order": "desc"})
    >>> asyncio.run(rows)
    (['ccc', 'b', 'a'], {'sort': 'size', 'order': 'desc'})
    """
    key, order = query.get("sort", ""), query.get("order", "")
    is_column = key in columns
    value_of = columns[key] if is_column else next(iter(columns.values()))
    descending = is_column and order == DESCENDING
    keyed = [(value_of(row), row) async for row in paced(rows)]
    await breath()
    keyed.sort(key=itemgetter(0), reverse=descending)
    asked = ({"sort": key} if is_column else {}) | ({"order": DESCENDING} if descending else {})
    return [row for _, row in keyed], asked


async def exported(rows: AsyncIterable[Mapping[str, object]], form: str) -> AsyncIterator[str]:
    r"""Yield the rows as text, one after the other. `form`: one of FORMATS; all rows have the same
    keys.

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

"""Sorting of tables by links, and the same tables as CSV and JSON. Pure.

A table has its columns by key; `sort` and `order` of the query choose one. `exported` writes the
rows of a table without pagination.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")
DESCENDING: Final = "desc"
FORMATS: Final[Mapping[str, str]] = {"csv": "text/csv", "json": "application/json"}
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def ordered(
    rows: Iterable[T], columns: Mapping[str, Callable[[T], Any]], query: Mapping[str, str]
) -> tuple[list[T], dict[str, str]]:
    """Return the rows sorted by the query, and the part of the query that says so.

    Without `sort`, or with one that is no column, rows keep the order of the first column. Equal
    rows keep the order in which they came.

    >>> ordered(["b", "ccc", "a"], {"name": str, "size": len}, {"sort": "size", "order": "desc"})
    (['ccc', 'b', 'a'], {'sort': 'size', 'order': 'desc'})
    """
    key, order = query.get("sort", ""), query.get("order", "")
    if key not in columns:
        return sorted(rows, key=next(iter(columns.values()))), {}
    descending = order == DESCENDING
    asked = {"sort": key, "order": DESCENDING} if descending else {"sort": key}
    return sorted(rows, key=columns[key], reverse=descending), asked


def exported(rows: Sequence[Mapping[str, object]], form: str) -> str:
    r"""Return the rows as text. `form`: one of FORMATS; all rows have the same keys.

    >>> exported([{"pod": "=1+1", "cores": 30}], "csv")
    "pod,cores\r\n'=1+1,30\r\n"
    """
    if form == "json":
        return json.dumps(rows, ensure_ascii=False, indent=1) + "\n"
    text = io.StringIO()
    writer = csv.writer(text)
    if rows:
        writer.writerow(rows[0])
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    """Return a value that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else value

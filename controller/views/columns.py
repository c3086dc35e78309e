"""Columns of tables: declared once for text tables, pages of the dashboard, and exports as CSV and JSON.

A table is a tuple of `Column`s, in the order in which they are shown and exported. Read by
`controller.cli.tables` and `controller.dashboard.tables`. Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

Row = TypeVar("Row")
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Column(Struct, Generic[Row], frozen=True):
    """One column, with what it is in each place; where it lacks that, the place does not show it."""

    name: str
    """Unique in its table. In the query of a page it says by which column to sort."""
    title: str = ""
    """Its head on a page, a key of the message catalogue."""
    sort: Callable[[Row], Any] | None = None
    """The key by which a page sorts."""
    exported: Mapping[str, Callable[[Row], object]] = _NOTHING
    """Name in CSV and JSON → value. A cell may be made of several."""
    text: Callable[[Row], str | Iterable[str]] | None = None
    """Its cell in a text table; several lines are texts."""
    head: str = ""
    """Its head in a text table; empty: the name in capitals."""
    number: bool = False
    """Aligned right."""
    wide: bool = False
    """In text tables with `-o wide` only."""
    classes: str = "short"
    """CSS classes of its cells on a page: `short` stands side by side on a phone, `wide-only` is not there."""

    @property
    def css(self) -> str:
        """Return all classes of its cells on a page."""
        return f"num {self.classes}".rstrip() if self.number else self.classes


Columns = tuple[Column[Row], ...]


def plain(
    name: str,
    value: Callable[[Row], object],
    title: str = "",
    *,
    sort: Callable[[Row], Any] | bool = False,
    exported: str = "",
    head: str = "",
    number: bool = False,
    classes: str = "short",
) -> Column[Row]:
    """Return a column of one value in all places.

    `sort`: the key on a page; True: the value. `exported`: its name there, by default `name`.

    >>> column = plain("whole", len, exported="wholeDevices", sort=True)
    >>> values((column,), "abc"), column.text("abc"), column.sort("abc")
    ({'wholeDevices': 3}, '3', 3)
    """
    key: Any = value if sort is True else sort or None
    return Column(
        name, title, key, {exported or name: value}, lambda row: str(value(row)), head, number, classes=classes
    )


def text_column(
    name: str, text: Callable[[Row], str | Iterable[str]], *, number: bool = False, wide: bool = False
) -> Column[Row]:
    """Return a column of a table that is text only."""
    return Column(name, text=text, number=number, wide=wide)


def values(columns: Columns[Row], row: Row) -> dict[str, object]:
    """Return the row as it is exported."""
    return {name: value(row) for column in columns for name, value in column.exported.items()}

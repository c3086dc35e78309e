"""Tables and lines as kubectl prints them: columns as wide as needed, nothing after the last cell.

Text from the cluster is printed as it is, with escapes for characters that are not printable:
published text may contain terminal commands. Plain text instead of rich's tables, which take half a minute
for 16,000 cards and half the time of a short command.
"""

import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple, Self

import typer
from msgspec import Struct

from controller.views.columns import Column, Columns, Row
from hami_dra.api import printable as printable_texts
from hami_dra.api.printable import escaped

NONE: Final = "-"
"""A cell that has nothing to say."""
_NARROWEST: Final = 24
"""Columns that the last cell needs on a terminal to be wrapped in its column."""
_FONTS: Final = frozenset({"bold", "dim"})


class Line(NamedTuple):
    text: str
    colour: str = ""
    """Name in click and rich, `bold` or `dim`; empty: the terminal's default."""


class TextLayout(Struct, frozen=True):
    """How tables are drawn."""

    wide: bool = False
    headers: bool = True
    width: int | None = None
    """Columns of the terminal; None: lines may have any length."""


class TextTable:
    """A table with columns as wide as needed. `>` before a name: numbers, aligned right."""

    def __init__(self, *columns: str) -> None:
        self._right = [name.startswith(">") for name in columns]
        self._header = tuple(name.removeprefix(">") for name in columns)
        self._rows: list[tuple[tuple[str, ...], str]] = []

    @classmethod
    def of(
        cls,
        columns: Iterable[Column[Row]],
        rows: Iterable[Row],
        *,
        wide: bool = False,
        colour: Callable[[Row], str] = lambda _: "",
    ) -> Self:
        """Return the table of these rows, with those columns that have a text."""
        shown = [(column, column.text) for column in columns if column.text is not None and (wide or not column.wide)]
        table = cls(*(f"{'>' if column.number else ''}{column.head or column.name.upper()}" for column, _ in shown))
        for row in rows:
            table.add(*(text(row) for _, text in shown), colour=colour(row))
        return table

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, *cells: str | Iterable[str], colour: str = "") -> None:
        """Add a row. A cell may have several lines: then it is no text, but texts."""
        for row in zip_longest(*([cell] if isinstance(cell, str) else cell for cell in cells), fillvalue=""):
            self._rows.append((tuple(map(escaped, row)), colour))

    def lines(self, layout: TextLayout = TextLayout()) -> list[Line]:
        shown = [(self._header, "")] * layout.headers + self._rows
        if not shown:
            return []
        from rich.cells import cell_len

        widths = [max(map(cell_len, column)) for column in zip(*(row for row, _ in shown), strict=True)]
        before = sum(widths[:-1]) + 2 * (len(widths) - 1)
        is_text = not self._right[-1]
        room = layout.width - before if layout.width is not None and is_text else 0
        return [
            Line(text, colour)
            for row, colour in shown
            for text in self._row(row, widths, room if room >= _NARROWEST else None)
        ]

    def _row(self, row: tuple[str, ...], widths: list[int], room: int | None) -> Iterator[str]:
        """Yield the lines of a row; on a terminal a long last cell goes on below itself."""
        *others, last = row
        for piece in _wrapped(last, room) if room is not None and len(last) > room else [last]:
            yield "  ".join(self._padded((*others, piece), widths)).rstrip()
            others = [""] * len(others)

    def _padded(self, row: tuple[str, ...], widths: list[int]) -> Iterator[str]:
        from rich.cells import cell_len

        for cell, width, right in zip(row, widths, self._right, strict=True):
            padding = " " * (width - cell_len(cell))
            yield padding + cell if right else cell + padding


def tables(
    parts: Iterable[tuple[Columns[Any], Sequence[Any]]], layout: TextLayout, *, most: int | None = None
) -> Iterator[Line]:
    """Yield those of the tables that have rows, each after an empty line. `most`: rows of each."""
    for columns, rows in parts:
        if rows:
            yield Line("")
            yield from TextTable.of(columns, rows[:most], wide=layout.wide).lines(layout)
        if most is not None and len(rows) > most:
            yield Line(f"and {len(rows) - most} more: -o json has all of them")


def device_names(devices: Iterable[str]) -> str:
    """Return the names of devices `driver/pool/device`."""
    return ", ".join(device.rpartition("/")[2] for device in devices)


def paragraph(text: str, layout: TextLayout, *, indent: str = "", colour: str = "") -> list[Line]:
    """Return a sentence as lines, wrapped on a terminal."""
    clean = escaped(text)
    if layout.width is None or len(indent) + len(clean) <= layout.width:
        return [Line(indent + clean, colour)]
    return [Line(indent + piece, colour) for piece in _wrapped(clean, max(layout.width - len(indent), _NARROWEST))]


def _wrapped(text: str, width: int) -> list[str]:
    """Break between words only: names are copied from here."""
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


def print_lines(lines: Iterable[Line | str]) -> None:
    """Print lines, with colours only on a terminal that wants them."""
    plain = bool(os.environ.get("NO_COLOR"))
    texts = []
    for line in lines:
        text, colour = (line, "") if isinstance(line, str) else line
        style: dict[str, Any] = {colour: True} if colour in _FONTS else {"fg": colour}
        texts.append(typer.style(escaped(text), **style) if colour and not plain else escaped(text))
    if texts:
        typer.echo("\n".join(texts))


def note(text: str) -> None:
    typer.echo(f"note: {escaped(text)}", err=True)


def codes(reasons: Mapping[str, int]) -> str:
    """Return `2 CardNotHealth, 1 NodeTainted`; NONE if there are none."""
    return ", ".join(f"{count} {code}" for code, count in sorted(reasons.items())) or NONE


def without_pod(sentence: str, pod: str) -> str:
    """Return a sentence about a pod for a row that names the pod already. `pod`: `namespace/name`."""
    return sentence.removeprefix(f"Pod {pod}: ")


def counted(number: int, what: str) -> str:
    """Return `1 node`, `2 nodes`, `no nodes`."""
    return printable_texts.counted(number, what) if number else f"no {what}s"

"""The indented `key : value` listings of `xpu-smi -q`, `efsmi -q` and `npu-smi info -t`, as entries with their sections. Pure."""

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from hami_dra.discovery.reading import said

_ENTRY: Final = re.compile(r"(.*?\S)\s+:(?:\s+(.*))?")
_TAB: Final = 4


class Entry(Struct, frozen=True):
    """One line."""

    number: int
    """Number of the line, from 1."""
    path: tuple[str, ...]
    """Headings above it, outermost first, and its own name last."""
    value: str | None
    """None: a heading."""


def values_of(text: str) -> dict[str, str]:
    """Return name → what is said of it, whatever its section; the last entry of a name counts."""
    return {entry.path[-1]: said(entry.value) for entry in entries(text) if entry.value is not None}


def entries(text: str) -> Iterator[Entry]:
    """Yield the entries. A heading holds the lines indented deeper than itself. Empty lines are
    skipped, and so is a last line without its end: an output that breaks off in the middle of a uuid
    would name a card that does not exist.
    """
    open_headings: list[tuple[int, str]] = []
    for number, raw in enumerate(text[: text.rfind("\n") + 1].splitlines(), start=1):
        line = raw.expandtabs(_TAB).rstrip()
        bare = line.lstrip()
        if not bare:
            continue
        depth = len(line) - len(bare)
        while open_headings and open_headings[-1][0] >= depth:
            open_headings.pop()
        above = tuple(heading for _, heading in open_headings)
        if found := _ENTRY.fullmatch(bare):
            yield Entry(number, (*above, found[1]), found[2] or "")
        else:
            yield Entry(number, (*above, bare), None)
            open_headings.append((depth, bare))

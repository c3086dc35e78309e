"""What the checks share: the shape of a finding, and checks of lists, names and counters."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from tests.support.slice_limits import formats
from tests.support.slice_limits.capacity import check_quantity

MAX_COUNTERS: Final = 32

Found = Iterator[tuple[str, str]]
"""Field and problem."""


def counters(field: str, counters: Mapping[str, Any]) -> Found:
    if not counters:
        yield field, "is empty: name at least one counter"
    yield from at_most(field, counters, MAX_COUNTERS)
    for name, counter in counters.items():
        yield from formatted(field, name, formats.label)
        yield from check_quantity(f"{field}[{name}].value", counter.value)


def formatted(field: str, text: str, check: Callable[[str], str]) -> Found:
    if problem := check(text):
        yield field, problem


def at_most(field: str, items: Collection[Any], limit: int) -> Found:
    if len(items) > limit:
        yield field, f"has {len(items)} entries: leave out all but {limit}"


def unique(field: str, key: str, items: Iterable[str]) -> Found:
    seen: set[str] = set()
    for number, item in enumerate(items):
        if item in seen:
            yield f"{field}[{number}]{'.' if key else ''}{key}", f"{item!r} occurs twice: rename one"
        seen.add(item)

"""Lacks of a node: what its containers would miss, as its driver publishes it in an annotation on
the first slice of its pool.

Written by the node driver, read by `hami-dra doctor`. JSON: a list of `Lack`. No decision depends
on it.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec

MOST: Final = 8 << 10
"""Bytes of the annotation. Lacks that do not fit are left out; the driver's log has them all."""
_MOST_LACKS: Final = 32
_MOST_MESSAGE: Final = 1_000


class LackKind(StrEnum):
    LIBRARIES = "libraries"
    """The vendor's libraries: programs do not find the device."""
    LIMITS = "limits"
    """Containers are not limited to their share."""
    PARTITIONS = "partitions"
    """Partitions (MIG) cannot be created or opened."""
    USAGE = "usage"
    """It is unknown what containers use of the cards that they share."""


class Lack(msgspec.Struct, frozen=True):
    kind: LackKind
    message: Annotated[str, msgspec.Meta(max_length=_MOST_MESSAGE)]
    """A sentence for people."""


class InvalidLacks(ValueError):
    """The annotation is not what a driver writes."""


def encode(lacks: Sequence[Lack]) -> str:
    """Return the annotation; empty if nothing is lacking."""
    kept: list[Lack] = []
    for lack in lacks[:_MOST_LACKS]:
        kept.append(Lack(lack.kind, lack.message[:_MOST_MESSAGE]))
        if len(msgspec.json.encode(kept)) > MOST:
            kept.pop()
            break
    return msgspec.json.encode(kept).decode() if kept else ""


def decode(text: str) -> tuple[Lack, ...]:
    """Return the lacks in an annotation. Raises InvalidLacks."""
    try:
        found = msgspec.json.decode(text, type=tuple[Lack, ...])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidLacks(str(error)) from error
    return tuple(Lack(lack.kind, "".join(each for each in lack.message if each.isprintable())) for lack in found)

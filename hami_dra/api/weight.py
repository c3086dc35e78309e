"""The weight of an object: how much memory and work it costs to keep it. Pure.

A tenant chooses how many entries an object has and how long they are: the API server has no limit
but the 1.5 MB of the whole. So whatever a tenant writes is weighed where it is decoded
(`Kind.settled`). An object above the limit of its kind is reduced to a stub by
`hami_dra.api.oversized`, and costs nothing any more. Code behind that needs no limits of its own.

The walk goes by the Structs, so a field that is added to one of them is weighed, too.

    weight of                           is
    a text                              1, and 1 for each 32 bytes that it occupies
    a list                              1, and 1 for each entry, and that of the entries
    a map                               2, and 3 for each entry, and that of keys and values
    an object (Struct)                  1 for each 32 bytes that it occupies, and that of its fields
    a term, a constraint, a volume      more, because of the work: `WORK`
"""

from functools import cache
from sys import getsizeof
from typing import Final

import msgspec

from hami_dra.api.core import PodAffinityTerm, TopologySpreadConstraint
from hami_dra.api.meta import Condition, ObjectMeta
from hami_dra.api.podvolumes import Volume
from hami_dra.api.resource import CELDeviceSelector, DeviceDerivedAttribute

GRAIN: Final = 32
"""Bytes of memory for a weight of 1."""
MOST_WEIGHT: Final = 4_096
"""128 KiB. A real pod weighs 100 to 200."""
MOST_SMALL_WEIGHT: Final = 1_024
"""Of kinds whose objects are small, and of which one decision reads many."""
MOST_VOLUME_CLAIM_WEIGHT: Final = 512
"""A pod may have hundreds of volume claims, and each selector is held against all volumes."""
MOST_TEXT: Final = 1_024
"""Characters of one text; names have 317 at most. Tables of the process are keyed by such texts."""
MOST_LONG_TEXT: Final = 2**14
"""Characters of a text of `LONG_TEXTS`, and of opaque parameters: Kubernetes takes 10 KiB of them."""
LONG_TEXTS: Final = frozenset({CELDeviceSelector, DeviceDerivedAttribute, Condition})
"""Structs whose texts may be long. No table is keyed by them; annotations have limits of their own
(`hami_dra.vendors.annotations`).
"""
LIGHT: Final = 2
"""Bytes for each unit of the limit. An object of which no more JSON is read (8 KiB of a pod) is
never too large, because nothing in it can be many, and need not be weighed. Nor need one that was
sent in no more.
"""
WORK: Final[dict[type, int]] = {PodAffinityTerm: 32, TopologySpreadConstraint: 32, Volume: 4}
"""What is evaluated for all nodes, or all label sets of the cluster, or all volumes."""

_encode: Final = msgspec.json.Encoder().encode


class TextTooLongError(ValueError):
    """One text is too long; the message has the figures."""


def excess(item: msgspec.Struct, most: int) -> str:
    """Return why an object is too large, or ""."""
    if len(_encode(item)) <= LIGHT * most:
        return ""
    try:
        if weight(item, most) <= most:
            return ""
    except TextTooLongError as error:
        return f"too large: {_largest(item)}, and {error}"
    return f"too large: {_largest(item)}; its weight is more than {most}, and hami-dra reads no more"


def weight(item: object, most: int = MOST_WEIGHT) -> int:
    """Return the weight, or one that is more than `most`: then the walk ends.

    >>> weight("app"), weight(["app"] * 3), weight({"app": "web"})
    (2, 10, 9)
    """
    total, left = 0, [item]
    while left and total <= most:
        value = left.pop()
        if isinstance(value, str):
            total += _of_text(value, MOST_TEXT)
        elif isinstance(value, (tuple, list)):
            total += 1 + len(value)
            left += value[: most + 1]
        elif isinstance(value, dict):
            total += 2 + 3 * len(value)
            if total <= most:
                left += value.keys()
                left += value.values()
        elif isinstance(value, msgspec.Struct):
            own, fields = _of_type(type(value))
            total += own
            parts = [part for name in fields if (part := getattr(value, name))]
            if type(value) in LONG_TEXTS:
                total += sum([_of_text(part, MOST_LONG_TEXT) for part in parts if isinstance(part, str)])
            else:
                left += parts
        elif isinstance(value, (bytes, msgspec.Raw)):
            total += _of_text(bytes(value), MOST_LONG_TEXT)
        elif isinstance(value, int):
            total += 1
    return total


def _of_text(text: str | bytes, most: int) -> int:
    if len(text) > most:
        raise TextTooLongError(f"one text has {len(text)} characters, more than {most}")
    return 1 + getsizeof(text) // GRAIN


@cache
def _of_type(kind: type[msgspec.Struct]) -> tuple[int, tuple[str, ...]]:
    """Return the weight of an object without its fields, and their names; annotations have a limit
    of their own (`hami_dra.vendors.annotations`).
    """
    fields = [name for name in kind.__struct_fields__ if kind is not ObjectMeta or name != "annotations"]
    return 1 + kind.__basicsize__ // GRAIN + WORK.get(kind, 0), tuple(fields)


def _largest(item: msgspec.Struct) -> str:
    """Return the largest field of an object's parts, with its size, for people."""
    sizes: dict[str, int] = {}
    for part in item.__struct_fields__:
        value = getattr(item, part)
        for name in value.__struct_fields__ if isinstance(value, msgspec.Struct) else ():
            sizes[f"{part}.{camel(name)}"] = len(_encode(getattr(value, name)))
    path = max(sizes, key=lambda each: sizes[each])
    return f"{path} has {sizes[path]} bytes of JSON"


def camel(name: str) -> str:
    """Return a field's name on the wire.

    >>> camel("node_selector")
    'nodeSelector'
    """
    first, *rest = name.rstrip("_").split("_")
    return first + "".join([word.title() for word in rest])

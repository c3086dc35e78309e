"""What the program holds on to: how many entries the containers of its objects have, and how many objects of the API there are.

For tests that let many objects come and go and then ask what is left of them. Nothing is named, so what is added later is
looked at too. Containers inside containers count with their entries.
"""

import asyncio
import gc
from collections import Counter, deque
from typing import Any

from hami_dra.api.core import Pod
from hami_dra.api.resource import ResourceClaim

_CONTAINERS = (dict, set, frozenset, list, tuple, deque)
_DEEP = 3


def census(*packages: str) -> Counter[str]:
    """`Class.attribute` → entries, over all living objects of classes of these packages; `Pod`, `ResourceClaim` → objects."""
    gc.collect()
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        if isinstance(each, Pod | ResourceClaim):
            found[kind.__name__] += 1
        if str(getattr(kind, "__module__", "")).startswith(packages):
            for name, value in _attributes(each):
                if size := _size(value, _DEEP):
                    found[f"{kind.__name__}.{name}"] += size
    return found


def grown(before: Counter[str], after: Counter[str]) -> dict[str, int]:
    """What there is more of."""
    return {name: more for name, count in sorted(after.items()) if (more := count - before[name]) > 0}


def _attributes(each: object) -> list[tuple[str, Any]]:
    slots = (name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ()))
    found = [(name, getattr(each, name, None)) for name in slots if name not in ("__dict__", "__weakref__")]
    return [*found, *getattr(each, "__dict__", {}).items()]


def _size(value: Any, depth: int) -> int:
    if isinstance(value, asyncio.Queue):
        return value.qsize()
    if not isinstance(value, _CONTAINERS):
        return 0
    size = len(value)
    if depth > 1:
        size += sum(_size(inner, depth - 1) for inner in (value.values() if isinstance(value, dict) else value))
    return size

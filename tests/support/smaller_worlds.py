"""Makes a world that fails smaller: objects, then their fields, are left out one by one while it still fails."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

Json = dict[str, Any]
_KEPT: Final = frozenset(
    {
        *("nodes", "objects", "assumed", "before", "pod", "node"),
        *("apiVersion", "kind", "metadata", "name", "namespace", "uid", "spec", "status"),
        *("containers", "topologyKey", "maxSkew", "whenUnsatisfiable", "key", "operator", "values", "weight"),
        *("labelSelector", "preference", "podAffinityTerm", "nodeSelectorTerms", "allocatable"),
        *("pods", "containerPort", "claimName", "storageClassName", "accessModes", "capacity", "provisioner"),
    }
)
"""Fields without which an object would be one that no API server stores, or another world altogether."""


def shrunk(world: Json, fails: Callable[[Json], bool]) -> Json:
    """Return the smallest world found. `fails`: whether a world still shows the same failure."""
    smallest = copy.deepcopy(world)
    size = -1
    while size != (size := len(str(smallest))):
        for part in ("before", "objects", "assumed", "nodes"):
            _without_entries(smallest.get(part, []), smallest, fails)
        _without_fields(smallest, smallest, fails)
    return smallest


def _without_entries(entries: list[Any], world: Json, fails: Callable[[Json], bool]) -> None:
    for index in reversed(range(len(entries))):
        removed = entries.pop(index)
        if not fails(world):
            entries.insert(index, removed)


def _without_fields(holder: Any, world: Json, fails: Callable[[Json], bool]) -> None:
    if isinstance(holder, list):
        _without_entries(holder, world, fails)
        for entry in holder:
            _without_fields(entry, world, fails)
    elif isinstance(holder, dict):
        for key in list(holder):
            if key in _KEPT:
                _without_fields(holder[key], world, fails)
                continue
            removed = holder.pop(key)
            if not fails(world):
                holder[key] = removed
                _without_fields(removed, world, fails)

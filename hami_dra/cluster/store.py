"""Objects of one kind by key, with indices: what a reflector keeps and everybody may read.

Written by `reflector.Reflector` only. Iteration is in order of arrival, so that what is built on it is repeatable.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Generic, TypeVar

from hami_dra.api.meta import Object

T = TypeVar("T", bound=Object)
IndexFunction = Callable[[T], Iterable[str]]


class Store(Generic[T]):
    """`indices`: name -> the values under which an object is to be found."""

    def __init__(self, **indices: IndexFunction[T]) -> None:
        self._objects: dict[str, T] = {}
        self._functions = indices
        self._indices: dict[str, dict[str, dict[str, None]]] = {name: {} for name in indices}

    def get(self, key: str) -> T | None:
        """By `Object.key`: `namespace/name`, or `name` for cluster-scoped objects."""
        return self._objects.get(key)

    def values(self) -> Collection[T]:
        return self._objects.values()

    def keys(self) -> Collection[str]:
        return self._objects.keys()

    def find(self, index: str, value: str) -> list[T]:
        """The objects that the index function put under `value`."""
        return [self._objects[key] for key in self._indices[index].get(value, ())]

    def has(self, index: str, value: str) -> bool:
        """Whether `find` would find anything."""
        return value in self._indices[index]

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def put(self, new: T) -> None:
        key = new.key
        self._unindex(key)
        self._objects[key] = new
        for name, function in self._functions.items():
            for value in function(new):
                self._indices[name].setdefault(value, {})[key] = None

    def remove(self, key: str) -> None:
        self._unindex(key)
        self._objects.pop(key, None)

    def _unindex(self, key: str) -> None:
        old = self._objects.get(key)
        if old is None:
            return
        for name, function in self._functions.items():
            for value in function(old):
                keys = self._indices[name].get(value, {})
                keys.pop(key, None)
                if not keys:
                    self._indices[name].pop(value, None)

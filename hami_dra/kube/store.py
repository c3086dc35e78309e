"""Objects of one kind by key, with indices: the copy that a reflector keeps and all readers share.

Written by `reflector.Reflector` only. Iteration is in order of arrival, so that results are
repeatable.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from hami_dra.api.meta import Object

T = TypeVar("T", bound=Object)
IndexFunction = Callable[[T], Iterable[str]]


class Index:
    """The keys of the objects that have a value; a single key, as of most values, without a dict of its own.

    >>> index = Index()
    >>> index.add("node-1", "default/a")
    >>> index.add("node-1", "default/b")
    >>> index.discard("node-1", "default/a")
    >>> list(index.keys("node-1"))
    ['default/b']
    """

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[Hashable, str | dict[str, None]] = {}

    def __contains__(self, value: object) -> bool:
        return value in self._keys

    def keys(self, value: Hashable) -> Collection[str]:
        """Return the keys in order of arrival."""
        keys = self._keys.get(value, ())
        return (keys,) if isinstance(keys, str) else keys

    def add(self, value: Hashable, key: str) -> None:
        keys = self._keys.setdefault(value, key)
        if not isinstance(keys, str):
            keys[key] = None
        elif keys != key:
            self._keys[value] = {keys: None, key: None}

    def discard(self, value: Hashable, key: str) -> None:
        keys = self._keys.get(value)
        if isinstance(keys, dict):
            keys.pop(key, None)
        if not keys or keys == key:
            self._keys.pop(value, None)


class Store(Generic[T]):
    """Objects by key. `indices`: name → function that returns the index values of an object."""

    def __init__(self, **indices: IndexFunction[T]) -> None:
        self._objects: dict[str, T] = {}
        self._functions = indices
        self._indices = {name: Index() for name in indices}

    def get(self, key: str) -> T | None:
        """Return the object by `Object.key`: `namespace/name`, or `name` if cluster-scoped."""
        return self._objects.get(key)

    def values(self) -> Collection[T]:
        return self._objects.values()

    def keys(self) -> Collection[str]:
        return self._objects.keys()

    def find(self, index: str, value: str) -> list[T]:
        """Return the objects that the index function filed under `value`."""
        return [self._objects[key] for key in self._indices[index].keys(value)]

    def has(self, index: str, value: str) -> bool:
        """Return whether `find` would find anything."""
        return value in self._indices[index]

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def put(self, new: T, key: str = "") -> None:
        """Add or replace an object. `key`: its `Object.key`, where it is at hand."""
        key = key or new.key
        old = self._objects.get(key)
        self._objects[key] = new
        for name, function in self._functions.items():
            values = function(new)
            if old is not None:
                if (former := function(old)) == values:
                    continue
                self._discard(name, key, former)
            for value in values:
                self._indices[name].add(value, key)

    def remove(self, key: str) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            for name, function in self._functions.items():
                self._discard(name, key, function(old))

    def _discard(self, name: str, key: str, values: Iterable[str]) -> None:
        for value in values:
            self._indices[name].discard(value, key)

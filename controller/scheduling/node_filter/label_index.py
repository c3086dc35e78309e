"""Selectors and labels found by one label: those that may match, without a look at all others.
Pure.

A selector that can only match labels with `app=web` is found under `app=web`; one that requires no
label is found always. The other way round, labels are found by the one label that a selector
requires.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Final, Generic, TypeVar

from hami_dra.api.meta import LabelSelector

T = TypeVar("T", bound=Hashable)
Label = tuple[str, str]
_MOST_ALTERNATIVES: Final = 32
"""Values of one label; a requirement with more counts as none."""
_ANY: Final = None
"""Stands for a required label where there is none."""


def required_labels(selector: LabelSelector) -> tuple[Label, ...] | None:
    """Return labels of which everything that the selector matches has exactly one; None: it need
    not have any.

    >>> required_labels(LabelSelector(match_labels={"app": "web", "tier": "front"}))
    (('app', 'web'),)
    >>> required_labels(LabelSelector()) is None
    True
    """
    for item in selector.match_labels.items():
        return (item,)
    for each in selector.match_expressions:
        if each.operator == "In" and len(each.values) <= _MOST_ALTERNATIVES:
            return tuple([(each.key, value) for value in dict.fromkeys(each.values)])
    return None


class SelectorIndex(Generic[T]):
    """What has a selector, found by labels that it may match.

    >>> index = SelectorIndex()
    >>> web, all_pods = LabelSelector(match_labels={"app": "web"}), LabelSelector()
    >>> index.add("web's", web), index.add("everybody's", all_pods)
    (None, None)
    >>> [*index.candidates({"app": "web"})], [*index.candidates({"app": "db"})]
    (["web's", "everybody's"], ["everybody's"])
    """

    def __init__(self) -> None:
        self._by_label: dict[Label | None, dict[T, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_label)

    def add(self, value: T, selector: LabelSelector) -> None:
        for label in _keys(selector):
            self._by_label.setdefault(label, {})[value] = None

    def remove(self, value: T, selector: LabelSelector) -> None:
        for label in _keys(selector):
            _discard(self._by_label, label, value)

    def candidates(self, labels: Mapping[str, str]) -> Iterator[T]:
        """Yield whatever may match the labels, each once."""
        for label in (*labels.items(), _ANY):
            if (found := self._by_label.get(label)) is not None:
                yield from found


class LabelsIndex(Generic[T]):
    """What has labels, found by a selector that may match them."""

    def __init__(self) -> None:
        self._by_label: dict[Label | None, dict[T, None]] = {}

    def add(self, value: T, labels: Mapping[str, str]) -> None:
        for label in (*labels.items(), _ANY):
            self._by_label.setdefault(label, {})[value] = None

    def remove(self, value: T, labels: Mapping[str, str]) -> None:
        for label in (*labels.items(), _ANY):
            _discard(self._by_label, label, value)

    def candidates(self, selector: LabelSelector) -> Iterator[T]:
        """Yield whatever the selector may match, each once."""
        for label in _keys(selector):
            if (found := self._by_label.get(label)) is not None:
                yield from found


def _keys(selector: LabelSelector) -> tuple[Label | None, ...]:
    found = required_labels(selector)
    return (_ANY,) if found is None else found


def _discard(where: dict[Label | None, dict[T, None]], label: Label | None, value: T) -> None:
    there = where[label]
    del there[value]
    if not there:
        del where[label]

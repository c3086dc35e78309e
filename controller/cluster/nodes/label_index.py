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
_ANY: Final = None
"""Stands for a required label where there is none."""


def required_labels(selector: LabelSelector) -> tuple[Label, ...] | None:
    """Return labels, all of one key, of which everything that the selector matches has exactly one;
    None: it need not have any.

    >>> required_labels(LabelSelector(match_labels={"app": "web", "tier": "front"}))
    (('app', 'web'),)
    >>> required_labels(LabelSelector()) is None
    True
    """
    for item in selector.match_labels.items():
        return (item,)
    lists = [each for each in selector.match_expressions if each.operator == "In"]
    if not lists:
        return None
    fewest = min(lists, key=lambda each: len(each.values))
    return tuple([(fewest.key, value) for value in dict.fromkeys(fewest.values)])


class SelectorIndex(Generic[T]):
    """What has a selector, found by labels that it may match. A selector may give any number of
    values: each takes one entry of a dict, and no object of its own unless others share it.

    >>> index = SelectorIndex()
    >>> web, all_pods = LabelSelector(match_labels={"app": "web"}), LabelSelector()
    >>> index.add("web's", web), index.add("everybody's", all_pods)
    (None, None)
    >>> [*index.candidates({"app": "web"})], [*index.candidates({"app": "db"})]
    (["web's", "everybody's"], ["everybody's"])
    """

    def __init__(self) -> None:
        self._by_value: dict[str, dict[str, T | _Several[T]]] = {}
        self._any: dict[T, None] = {}

    def __bool__(self) -> bool:
        return bool(self._by_value or self._any)

    def add(self, value: T, selector: LabelSelector) -> None:
        labels = required_labels(selector)
        if labels is None:
            self._any[value] = None
            return
        for key, text in labels:
            there = self._by_value.setdefault(key, {})
            found = there.get(text)
            if found is None:
                there[text] = value
            elif isinstance(found, _Several):
                found[value] = None
            else:
                there[text] = _Several({found: None, value: None})

    def remove(self, value: T, selector: LabelSelector) -> None:
        labels = required_labels(selector)
        if labels is None:
            del self._any[value]
            return
        for key, text in labels:
            there = self._by_value[key]
            found = there[text]
            if isinstance(found, _Several):
                del found[value]
            if not isinstance(found, _Several) or not found:
                del there[text]
                if not there:
                    del self._by_value[key]

    def candidates(self, labels: Mapping[str, str]) -> Iterator[T]:
        """Yield whatever may match the labels, each once."""
        for key, text in labels.items():
            if (there := self._by_value.get(key)) is not None and (found := there.get(text)) is not None:
                if isinstance(found, _Several):
                    yield from found
                else:
                    yield found
        yield from self._any


class _Several(dict[T, None], Generic[T]):
    """Values that share a required label."""


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
        found = required_labels(selector)
        for label in (_ANY,) if found is None else found:
            yield from self._by_label.get(label, ())


def _discard(where: dict[Label | None, dict[T, None]], label: Label | None, value: T) -> None:
    there = where[label]
    del there[value]
    if not there:
        del where[label]

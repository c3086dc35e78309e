"""What users want of a vendor beyond amounts, as annotations say it: the common part, and the errors.

Called by the vendors' `wish`. In: annotations by name. Out: frozen, hashable objects, so that columns can be kept per wish.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class InvalidWish(ValueError):
    """An annotation has a value that means nothing; `annotation` is its name, the message what is wrong and the fix."""

    def __init__(self, annotation: str, message: str) -> None:
        super().__init__(message)
        self.annotation = annotation


@dataclass(frozen=True, slots=True)
class CardLists:
    """Which cards may be taken: names are hardware uuids or HAMi's ids. Both lists hold where both are given."""

    use: frozenset[str] | None = None
    """None: any."""
    nouse: frozenset[str] = frozenset()

    def admit(self, names: Iterable[str]) -> bool:
        """Whether a card with these names may be taken."""
        known = frozenset(names)
        return (self.use is None or not self.use.isdisjoint(known)) and self.nouse.isdisjoint(known)

    def __bool__(self) -> bool:
        return self.use is not None or bool(self.nouse)


@dataclass(frozen=True, slots=True)
class Wish:
    """Vendors with more to want extend it."""

    lists: CardLists = CardLists()


def card_lists(annotations: Mapping[str, str], use: Iterable[str], nouse: Iterable[str]) -> CardLists:
    """From comma lists; items are trimmed, empty ones ignored (HAMi D/devices.go, CheckUUID). Raises InvalidWish.

    `use`, `nouse`: names of the annotations that hold such a list. A use list that names nothing would rule out every card.
    """
    wanted: frozenset[str] | None = None
    for name in use:
        if name in annotations:
            items = _items(annotations[name])
            if not items:
                raise InvalidWish(name, "is an empty list: no card could be chosen by it; name some or remove it")
            wanted = items if wanted is None else wanted & items
    unwanted = frozenset[str]().union(*(_items(annotations[name]) for name in nouse if name in annotations))
    return CardLists(wanted, unwanted)


def choice(annotations: Mapping[str, str], name: str, choices: Iterable[str], default: str) -> str:
    """One of some words. Raises InvalidWish."""
    value = annotations.get(name, default).strip()
    known = tuple(choices)
    if value not in known:
        raise InvalidWish(name, f"{value!r} is not known; use one of {', '.join(known)}")
    return value


def switch(annotations: Mapping[str, str], name: str, *, default: bool) -> bool:
    """`true` or `false`. Raises InvalidWish."""
    return choice(annotations, name, ("true", "false"), "true" if default else "false") == "true"


def _items(text: str) -> frozenset[str]:
    return frozenset(item.strip() for item in text.split(",")) - {""}

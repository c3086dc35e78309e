"""User preferences for a vendor beyond amounts, from annotations: the common part, and the errors.

Called by the vendors' `preferences`. In: annotations by name. Out: frozen, hashable objects, so
that columns can be cached for each.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Self

from msgspec import Struct

from hami_dra.api.booleans import parse_bool
from hami_dra.api.similar_names import did_you_mean
from hami_dra.vendors import device_codes


class InvalidPreference(ValueError):
    """An annotation has an invalid value; `annotation` is its name, the message has the problem and the fix."""

    def __init__(self, annotation: str, message: str) -> None:
        super().__init__(message)
        self.annotation = annotation


class CardLists(Struct, frozen=True):
    """The cards that may be taken. All given lists apply together."""

    use: frozenset[str] | None = None
    """Hardware uuids or HAMi's ids. None: any."""
    nouse: frozenset[str] = frozenset()
    use_types: frozenset[str] | None = None
    """Texts, in lower case, one of which the card's type contains. None: any."""
    nouse_types: frozenset[str] = frozenset()
    parts: bool | None = None
    """Only partitions (True), only whole cards (False), or either (None)."""

    def refusal(self, ids: Iterable[str], type_name: str, *, part: bool) -> str:
        """Return the reason code why a card may not be taken, or "". In HAMi's order: type, mode, uuid.

        `ids`: its uuid and other names. `part`: it is a partition.
        """
        text = type_name.lower()
        if self.use_types is not None and not any(item in text for item in self.use_types):
            return device_codes.CARD_TYPE_MISMATCH
        if any(item in text for item in self.nouse_types):
            return device_codes.CARD_TYPE_MISMATCH
        if self.parts is not None and self.parts is not part:
            return device_codes.MODE_NOT_FIT
        return "" if self.admit(ids) else device_codes.CARD_UUID_MISMATCH

    def admit(self, ids: Iterable[str]) -> bool:
        """Return whether a card with these names may be taken."""
        known = frozenset(ids)
        return (self.use is None or not self.use.isdisjoint(known)) and self.nouse.isdisjoint(known)

    def __bool__(self) -> bool:
        return self != _ALL_CARDS


_ALL_CARDS: Final = CardLists()


class Preferences(Struct, frozen=True):
    """Preferences; vendors with more of them extend it."""

    lists: CardLists = CardLists()

    @classmethod
    def own(cls, preferences: "Preferences") -> Self:
        """Return the preferences of a request for this vendor's cards: its defaults if they are another vendor's."""
        return preferences if isinstance(preferences, cls) else cls()


def card_lists(
    annotations: Mapping[str, str],
    use: Iterable[str],
    nouse: Iterable[str],
    *,
    use_types: Iterable[str] = (),
    nouse_types: Iterable[str] = (),
) -> CardLists:
    """Read comma lists; items are trimmed, empty ones ignored (HAMi D/devices.go, CheckUUID, CheckType).

    All but `annotations`: names of the annotations that hold such a list. A list without an item is
    no constraint: templates render empty values.
    """
    types = {name: text.lower() for name, text in annotations.items()}
    return CardLists(
        _wanted(annotations, use),
        _unwanted(annotations, nouse),
        _wanted(types, use_types),
        _unwanted(types, nouse_types),
    )


def choice(annotations: Mapping[str, str], name: str, choices: Iterable[str], default: str) -> str:
    """Return one of some words. Raises InvalidPreference."""
    value = annotations.get(name, default).strip()
    known = tuple(choices)
    if value not in known:
        raise InvalidPreference(name, f"{value!r} is not one of {', '.join(known)}{did_you_mean(value, known)}")
    return value


def switch(annotations: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return a value that Go's ParseBool takes, `default` for an empty one. Raises InvalidPreference."""
    text = annotations.get(name, "").strip()
    value = parse_bool(text) if text else default
    if value is None:
        raise InvalidPreference(name, f"{text!r} is neither true nor false")
    return value


def _wanted(annotations: Mapping[str, str], names_of_lists: Iterable[str]) -> frozenset[str] | None:
    wanted: frozenset[str] | None = None
    for name in names_of_lists:
        if name in annotations:
            items = _items(annotations[name])
            if items:
                wanted = items if wanted is None else wanted & items
    return wanted


def _unwanted(annotations: Mapping[str, str], names_of_lists: Iterable[str]) -> frozenset[str]:
    return frozenset[str]().union(*(_items(annotations[name]) for name in names_of_lists if name in annotations))


def _items(text: str) -> frozenset[str]:
    return frozenset(item.strip() for item in text.split(",")) - {""}

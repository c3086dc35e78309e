"""What hami-dra reads of a device's attributes through the profile of its driver: once for all
devices that share these attributes.

Used by `model.Device`. Cards of one model in the same place of their machines have the same
attribute objects (`hami_dra.api.sharing`), but for their UUIDs, which are not read here. Pure.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from hami_dra.api.resource import DeviceAttribute
from hami_dra.api.short_texts import cached_if_short
from hami_dra.vendors.protocol import DriverProfile


class CardWiring(NamedTuple):
    """What the layout of a node knows of a card, but for its index."""

    link_group: int
    numa: int
    product: str
    links: str
    distance: str


class CardTraits(NamedTuple):
    """`number`: the published index, or None."""

    number: int | None
    is_part: bool
    """Whether it is cut from a card, which is published too."""
    card_memory: int
    """Of a part: bytes of the card that it is cut from; 0 if that is not published."""
    wiring: CardWiring


_Attributes = Mapping[str, DeviceAttribute]
_KEPT: Final = 1 << 12
_kept: Final[dict[tuple[object, ...], tuple[object, CardTraits]]] = {}
"""By identity of profile and attributes, which therefore stay here, too."""


def traits_of(profile: DriverProfile, driver: str, attributes: _Attributes) -> CardTraits:
    values = tuple(map(attributes.get, _names_read((profile, driver))))
    key = (id(profile), driver, *map(id, values))
    found = _kept.get(key)
    if found is None:
        if len(_kept) >= _KEPT:
            _kept.clear()
        found = _kept[key] = (profile, values), _read(profile, driver, attributes)
    return found[1]


def attribute_of(attributes: _Attributes, driver: str, name: str | None) -> DeviceAttribute | None:
    """Look up an attribute as the allocator does: the full name first, then the bare name if the
    domain is the driver's.
    """
    if name is None:
        return None
    found = attributes.get(name)
    if found is None:
        domain, _, bare = name.rpartition("/")
        if domain == driver:
            found = attributes.get(bare)
    return found


def int_of(attribute: DeviceAttribute | None) -> int | None:
    """Return an int64, as in the API; larger numbers, which files may contain, count as missing."""
    if attribute is None or attribute.int_ is None or not -(2**63) <= attribute.int_ < 2**63:
        return None
    return attribute.int_


def text_of(attribute: DeviceAttribute | None) -> str:
    return "" if attribute is None or attribute.string is None else attribute.string


def _read(profile: DriverProfile, driver: str, attributes: _Attributes) -> CardTraits:
    def found(name: str | None) -> DeviceAttribute | None:
        return attribute_of(attributes, driver, name)

    part = found(profile.partition)
    is_part = part is not None and profile.means_part(part.string)
    return CardTraits(
        number=int_of(found(profile.index)),
        is_part=is_part,
        card_memory=max(int_of(found(profile.card_memory)) or 0, 0) if is_part else 0,
        wiring=CardWiring(
            link_group=max(int_of(found(profile.link_group)) or 0, 0),
            numa=int_of(found(profile.numa)) or 0,
            product=text_of(found(profile.product)),
            links=text_of(found(profile.links)),
            distance=text_of(found(profile.distance)),
        ),
    )


@cached_if_short(64)
def _names_read(of: tuple[DriverProfile, str]) -> tuple[str, ...]:
    """Return all names under which `_read` looks for attributes of a driver's cards."""
    profile, driver = of
    roles = (profile.index, profile.partition, profile.card_memory, profile.link_group, profile.numa)
    names = [name for name in (*roles, profile.product, profile.links, profile.distance) if name is not None]
    bare = [name.rpartition("/")[2] for name in names if name.rpartition("/")[0] == driver]
    return (*names, *bare)

"""What is read of attributes is read once for all devices that share them, and never for others."""

import msgspec
import pytest

from controller.inventory import card_traits
from controller.inventory.card_traits import CardWiring, traits_of
from hami_dra.api import names
from hami_dra.api.resource import DeviceAttribute
from hami_dra.vendors.protocol import DriverProfile

DRIVER = "gpu.example.com"
PROFILE = DriverProfile(DRIVER, partition="profile", card_memory=f"{DRIVER}/cardMemory")


def attributes(**more):
    published = {
        names.ATTR_INDEX: DeviceAttribute(int_=3),
        names.ATTR_LINK_GROUP: DeviceAttribute(int_=1),
        names.ATTR_NUMA_NODE: DeviceAttribute(int_=0),
        names.ATTR_PRODUCT: DeviceAttribute(string="Card"),
        names.ATTR_LINKS: DeviceAttribute(string="-i"),
        names.ATTR_UUID: DeviceAttribute(string="one"),
    }
    return {**published, **more}


def test_the_traits_of_a_card():
    found = traits_of(PROFILE, DRIVER, attributes())
    assert found == (3, False, 0, CardWiring(link_group=1, numa=0, product="Card", links="-i", distance=""))


def test_cards_that_share_what_is_read_share_the_traits():
    one = attributes()
    other = {**one, names.ATTR_UUID: DeviceAttribute(string="another")}
    assert traits_of(PROFILE, DRIVER, one) is traits_of(PROFILE, DRIVER, other)


@pytest.mark.parametrize(
    ("name", "value", "field", "read"),
    [
        (names.ATTR_INDEX, DeviceAttribute(int_=4), "number", 4),
        (names.ATTR_INDEX, DeviceAttribute(int_=2**70), "number", None),
        (names.ATTR_INDEX, DeviceAttribute(string="4"), "number", None),
        ("profile", DeviceAttribute(string="1g.10gb"), "is_part", True),
        (names.ATTR_NUMA_NODE, DeviceAttribute(int_=1), "wiring", CardWiring(1, 1, "Card", "-i", "")),
        (names.ATTR_LINK_GROUP, DeviceAttribute(int_=-7), "wiring", CardWiring(0, 0, "Card", "-i", "")),
    ],
)
def test_another_value_gives_other_traits(name, value, field, read):
    shared = attributes()
    assert getattr(traits_of(PROFILE, DRIVER, shared), field) != read
    assert getattr(traits_of(PROFILE, DRIVER, {**shared, name: value}), field) == read


def test_names_without_a_domain_are_the_drivers():
    part = attributes(profile=DeviceAttribute(string="1g"), cardMemory=DeviceAttribute(int_=80))
    assert traits_of(PROFILE, DRIVER, part).card_memory == 80
    assert traits_of(PROFILE, "other.example.com", part).card_memory == 0


def test_profiles_are_told_apart():
    part = attributes(profile=DeviceAttribute(string="1g"))
    whole = msgspec.structs.replace(PROFILE, partition_values=frozenset({"2g"}))
    assert [traits_of(each, DRIVER, part).is_part for each in (PROFILE, whole, PROFILE)] == [True, False, True]


def test_what_is_kept_is_bounded():
    for number in range(card_traits._KEPT + 10):
        assert (
            traits_of(PROFILE, DRIVER, attributes(**{names.ATTR_INDEX: DeviceAttribute(int_=number)})).number == number
        )
    assert len(card_traits._kept) <= card_traits._KEPT

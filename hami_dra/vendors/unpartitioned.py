"""Cards without partitions as published devices: the common part of their vendors.

Called through the vendor registry; a vendor fills in its names and the capacities of its cards. In:
card records and how they may be shared. Out: JSON for ResourceSlices and DeviceClasses. Pure.
"""

from collections.abc import Mapping, Sequence

from hami_dra.api.hardware import Card
from hami_dra.api.options import VendorSettings
from hami_dra.vendors.publishing import Json, common_attributes, device_class, driver_version, of_driver, shared_device


class UnpartitionedVendor:
    """A vendor whose cards are published whole, without partitions: implements `PublishingVendor`.

    Two DeviceClasses select all of its cards: one for whole cards, one for shares of them. The
    vendor adds the capacities of its cards.
    """

    name: str
    driver: str
    device_name: str
    """With a `-` and the card's `name_number`: the device's name."""
    whole_class: str
    shared_class: str
    extended_resource: str

    def capacity(self, card: Card, settings: VendorSettings) -> dict[str, Json]:
        """Return the capacities by name. Raises Unpublishable."""
        raise NotImplementedError

    def groups(self, cards: Sequence[Card]) -> Mapping[int, int] | None:  # noqa: ARG002 (for vendors to override)
        """Return card index -> `linkGroup`; None: connected cards are one group."""
        return None

    def attributes(self, cards: Sequence[Card]) -> Mapping[int, dict[str, Json]]:  # noqa: ARG002 (overridden)
        """Return card index -> attributes beyond those of all vendors; a card may be absent."""
        return {}

    def devices(self, cards: Sequence[Card], settings: VendorSettings) -> list[Json]:
        common = common_attributes(cards, self.groups(cards))
        own = self.attributes(cards)
        return [
            shared_device(
                f"{self.device_name}-{card.name_number}",
                card,
                common[card.index] | own.get(card.index, {}) | driver_version(card),
                self.capacity(card, settings),
            )
            for card in sorted(cards, key=lambda card: card.index)
        ]

    def counter_sets(self, cards: Sequence[Card]) -> list[Json]:  # noqa: ARG002 (no partitions)
        return []

    def device_classes(self) -> list[Json]:
        selected = of_driver(self.driver)
        return [
            device_class(self.whole_class, selected, self.extended_resource),
            device_class(self.shared_class, selected),
        ]

"""NVIDIA: cards shared by memory, cores and slots through HAMi-core, taken whole, or cut by MIG."""

from collections.abc import Mapping, Sequence

from hami_dra.api import names
from hami_dra.api.arrays import Codes
from hami_dra.vendors.core_rules import refuse
from hami_dra.vendors.nvidia import islands
from hami_dra.vendors.nvidia.preferences import ANNOTATIONS, NvidiaPreferences, nvidia_preferences
from hami_dra.vendors.preferences import Preferences
from hami_dra.vendors.protocol import CandidateSets, CardRequest, Cards, DriverProfile, NodeView, Vendor

DRIVER = "nvidia.hami.io"
PROFILE = "profile"
"""Attribute that only partitions carry: `1g.10gb`."""
PARENT = "parentUUID"
"""The uuid of a partition's card, under the name that NVIDIA's own driver uses."""
PLACEMENT = "placement"
"""The first memory slice of a partition."""
CARD_MEMORY = "cardMemory"
"""Bytes of the card that a partition is cut from."""
TYPE_PREFIX = "nvidia-"
"""HAMi registers a card as NVIDIA-<product name>, and searches its type annotations in that."""


class Nvidia(Vendor):
    """The rules of `nvidia.hami.io`."""

    name = "nvidia"
    profile = DriverProfile(
        driver=DRIVER,
        default_shares=10,
        partition=PROFILE,
        card_memory=CARD_MEMORY,
        selects_parts=frozenset({PROFILE, PARENT, PLACEMENT, "type"}),
    )
    annotations = ANNOTATIONS

    def preferences(self, annotations: Mapping[str, str]) -> NvidiaPreferences:
        return nvidia_preferences(annotations)

    def type_name(self, product: str) -> str:
        return TYPE_PREFIX + product

    def smallest_part_first(self, preferences: Preferences) -> bool:
        return preferences.lists.parts is True

    def refuse(self, cards: Cards, ask: CardRequest, preferences: Preferences) -> Codes:  # noqa: ARG002 (amounts alone decide)
        return refuse(cards, ask)

    def arranges(self, preferences: Preferences, device_keys: Sequence[str]) -> bool:
        own = NvidiaPreferences.own(preferences)
        return own.linked or own.numa_bind or names.TOPOLOGY_AWARE in device_keys

    def arrange(self, node_view: NodeView) -> CandidateSets | None:
        preferences = NvidiaPreferences.own(node_view.preferences)
        return islands.arrange(node_view, preferences, topology_aware=names.TOPOLOGY_AWARE in node_view.device_keys)

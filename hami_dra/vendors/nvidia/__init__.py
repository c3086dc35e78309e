"""NVIDIA: cards shared by memory, cores and slots through HAMi-core, taken whole, or cut by MIG."""

from collections.abc import Mapping, Sequence

from hami_dra.api import names
from hami_dra.api.arrays import Codes
from hami_dra.vendors.core_rules import refuse
from hami_dra.vendors.nvidia import islands
from hami_dra.vendors.nvidia.preferences import ANNOTATIONS, NvidiaWish, nvidia_wish
from hami_dra.vendors.preferences import Wish
from hami_dra.vendors.protocol import Arrangement, Ask, Cards, DriverProfile, Scene, Vendor

DRIVER = "nvidia.hami.io"
TYPE_PREFIX = "nvidia-"
"""HAMi registers a card as NVIDIA-<product name>, and that is the text that its type annotations are looked for in."""


class Nvidia(Vendor):
    """The rules of `nvidia.hami.io`."""

    name = "nvidia"
    profile = DriverProfile(driver=DRIVER, default_shares=10, partition="profile")
    annotations = ANNOTATIONS

    def wish(self, annotations: Mapping[str, str]) -> NvidiaWish:
        return nvidia_wish(annotations)

    def type_name(self, product: str) -> str:
        return TYPE_PREFIX + product

    def smallest_part_first(self, wish: Wish) -> bool:
        return wish.lists.parts is True

    def refuse(self, cards: Cards, ask: Ask, wish: Wish) -> Codes:  # noqa: ARG002 (amounts alone decide)
        return refuse(cards, ask)

    def arranges(self, wish: Wish, device_keys: Sequence[str]) -> bool:
        own = wish if isinstance(wish, NvidiaWish) else NvidiaWish()
        return own.linked or own.numa_bind or names.TOPOLOGY_AWARE in device_keys

    def arrange(self, scene: Scene) -> Arrangement | None:
        wish = scene.wish if isinstance(scene.wish, NvidiaWish) else NvidiaWish()
        return islands.arrange(scene, wish, topology_aware=names.TOPOLOGY_AWARE in scene.device_keys)

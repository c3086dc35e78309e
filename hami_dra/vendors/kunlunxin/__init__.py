"""Kunlunxin: whole XPUs, or halves and quarters of them (vXPU), in two wings."""

from collections.abc import Mapping, Sequence

from hami_dra.api.arrays import Codes
from hami_dra.vendors.kunlunxin import rules
from hami_dra.vendors.preferences import Preferences, card_lists
from hami_dra.vendors.protocol import CandidateSets, CardRequest, Cards, DriverProfile, NodeView, Vendor

DRIVER = "kunlunxin.hami.io"
USE_UUIDS = ("hami.io/use-xpu-uuid", "baidu.com/use-gpuuuid")
NOUSE_UUIDS = ("hami.io/no-use-xpu-uuid", "baidu.com/nouse-gpuuuid")


class Kunlunxin(Vendor):
    """The rules of `kunlunxin.hami.io`."""

    name = "kunlunxin"
    profile = DriverProfile(driver=DRIVER)
    annotations = frozenset({*USE_UUIDS, *NOUSE_UUIDS})

    def preferences(self, annotations: Mapping[str, str]) -> Preferences:
        return Preferences(card_lists(annotations, USE_UUIDS, NOUSE_UUIDS))

    def ids(self, node: str, index: int) -> tuple[str, ...]:
        return (f"{node}-kunlun-{index}",)

    def refuse(self, cards: Cards, ask: CardRequest, preferences: Preferences) -> Codes:  # noqa: ARG002 (amounts alone decide)
        return rules.refuse(cards, ask)

    def arranges(self, preferences: Preferences, device_keys: Sequence[str]) -> bool:  # noqa: ARG002 (wings are for everybody)
        return True

    def states(self, cards: Cards, ask: CardRequest) -> Codes:
        return rules.states(cards, ask)

    def arrange(self, scene: NodeView) -> CandidateSets:
        return rules.arrange(scene)

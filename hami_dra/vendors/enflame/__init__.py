"""Enflame: whole GCUs, or slices of them (vGCU)."""

from collections.abc import Mapping, Sequence

import numpy as np

from hami_dra.api.arrays import Codes
from hami_dra.vendors.enflame.rules import closest
from hami_dra.vendors.preferences import Preferences, card_lists
from hami_dra.vendors.protocol import CandidateSets, CardRequest, Cards, CardState, DriverProfile, NodeView, Vendor

DRIVER = "enflame.hami.io"
USE_UUID = "enflame.com/use-gpuuuid"
NOUSE_UUID = "enflame.com/nouse-gpuuuid"


class Enflame(Vendor):
    """The rules of `enflame.hami.io`."""

    name = "enflame"
    profile = DriverProfile(driver=DRIVER, parts="slices")
    annotations = frozenset({USE_UUID, NOUSE_UUID})

    def preferences(self, annotations: Mapping[str, str]) -> Preferences:
        return Preferences(card_lists(annotations, [USE_UUID], [NOUSE_UUID]))

    def ids(self, node: str, index: int) -> tuple[str, ...]:
        return (f"{node}-enflame-{index}", f"{node}-GCU-{index}")

    def arranges(self, preferences: Preferences, device_keys: Sequence[str]) -> bool:  # noqa: ARG002 (closeness is good for everybody)
        return True

    def states(self, cards: Cards, ask: CardRequest) -> Codes:
        """1 where the request takes all of the card."""
        states: Codes = ((ask.memory >= cards.memory_total) & (ask.memory > 0)).astype(np.uint8)
        return states

    def arrange(self, scene: NodeView) -> CandidateSets | None:
        """Several GCUs are close to each other, a whole one does least damage. A slice goes by the device policy."""
        eligible = scene.mask(CardState.ELIGIBLE)
        if scene.count == 1 and not any(scene.states):
            return None
        return CandidateSets(closest(scene.layout, eligible, scene.count))

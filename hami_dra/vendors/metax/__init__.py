"""MetaX: whole cards, or parts of them (sGPU), joined by MetaXLink zones."""

from collections.abc import Mapping, Sequence
from typing import Any

from hami_dra.api import names
from hami_dra.api.arrays import Codes
from hami_dra.vendors import core_rules
from hami_dra.vendors.metax.preferences import ANNOTATIONS, BEST_EFFORT, QOS, QOS_POLICIES, MetaxWish, metax_wish
from hami_dra.vendors.metax.rules import arranged, mark_of, refuse, takes_all_cores
from hami_dra.vendors.preferences import Wish
from hami_dra.vendors.protocol import Arrangement, Ask, Cards, DriverProfile, Scene, Vendor

DRIVER = "metax.hami.io"


class Metax(Vendor):
    """The rules of `metax.hami.io`."""

    name = "metax"
    profile = DriverProfile(driver=DRIVER)
    annotations = ANNOTATIONS
    parameters: Mapping[str, str] = {"qos": QOS}

    def wish(self, annotations: Mapping[str, str]) -> MetaxWish:
        return metax_wish(annotations)

    def ids(self, node: str, index: int) -> tuple[str, ...]:
        return (f"{node}-metax-{index}",)

    def refuse(self, cards: Cards, ask: Ask, wish: Wish) -> Codes:
        return refuse(cards, ask, _own(wish).qos)

    def arranges(self, wish: Wish, device_keys: Sequence[str]) -> bool:  # noqa: ARG002 (zones are minded for everybody)
        return True

    def states(self, cards: Cards, ask: Ask) -> Codes:
        return takes_all_cores(cards, ask)

    def arrange(self, scene: Scene) -> Arrangement | None:
        tiers = arranged(scene, _own(scene.wish))
        return None if tiers is None else Arrangement(tiers, names.ALLOCATED_CARDS_INSUFFICIENT)

    def promise(self, wish: Wish) -> Mapping[str, Any]:
        return {"qos": _own(wish).qos}

    def mark(self, parameters: Mapping[str, Any], consumed: Mapping[str, int]) -> int:
        """The QoS of a tenant, 0 where it has the card to itself. One that says nothing is best-effort, as HAMi's webhook says."""
        if not consumed or consumed.get(names.CAP_CORES, 0) >= core_rules.WHOLE:
            return 0
        qos = parameters.get("qos", BEST_EFFORT)
        return mark_of(qos) if isinstance(qos, str) and qos in QOS_POLICIES else 0


def _own(wish: Wish) -> MetaxWish:
    return wish if isinstance(wish, MetaxWish) else MetaxWish()

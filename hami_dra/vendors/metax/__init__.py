"""MetaX: whole cards, or parts of them (sGPU), joined by MetaXLink zones."""

from collections.abc import Mapping, Sequence
from typing import Any

from hami_dra.api import names
from hami_dra.api.arrays import Codes
from hami_dra.vendors import core_rules
from hami_dra.vendors.metax.preferences import (
    ANNOTATIONS,
    BEST_EFFORT,
    QOS,
    QOS_POLICIES,
    MetaxPreferences,
    metax_preferences,
)
from hami_dra.vendors.metax.rules import arranged, mark_of, refuse, takes_all_cores
from hami_dra.vendors.preferences import Preferences
from hami_dra.vendors.protocol import CandidateSets, CardRequest, Cards, DriverProfile, NodeView, Vendor

DRIVER = "metax.hami.io"


class Metax(Vendor):
    """The rules of `metax.hami.io`."""

    name = "metax"
    profile = DriverProfile(driver=DRIVER)
    annotations = ANNOTATIONS
    parameters: Mapping[str, str] = {"qos": QOS}

    def preferences(self, annotations: Mapping[str, str]) -> MetaxPreferences:
        return metax_preferences(annotations)

    def ids(self, node: str, index: int) -> tuple[str, ...]:
        return (f"{node}-metax-{index}",)

    def refuse(self, cards: Cards, ask: CardRequest, preferences: Preferences) -> Codes:
        return refuse(cards, ask, _own(preferences).qos)

    def arranges(self, preferences: Preferences, device_keys: Sequence[str]) -> bool:  # noqa: ARG002 (zones are minded for everybody)
        return True

    def states(self, cards: Cards, ask: CardRequest) -> Codes:
        return takes_all_cores(cards, ask)

    def arrange(self, scene: NodeView) -> CandidateSets | None:
        tiers = arranged(scene, _own(scene.preferences))
        return None if tiers is None else CandidateSets(tiers, names.ALLOCATED_CARDS_INSUFFICIENT)

    def allocation_parameters(self, preferences: Preferences) -> Mapping[str, Any]:
        return {"qos": _own(preferences).qos}

    def mark(self, parameters: Mapping[str, Any], consumed: Mapping[str, int]) -> int:
        """The QoS of a tenant, 0 where it has the card to itself. One that says nothing is best-effort, as HAMi's webhook says."""
        if not consumed or consumed.get(names.CAP_CORES, 0) >= core_rules.WHOLE:
            return 0
        qos = parameters.get("qos", BEST_EFFORT)
        return mark_of(qos) if isinstance(qos, str) and qos in QOS_POLICIES else 0


def _own(preferences: Preferences) -> MetaxPreferences:
    return preferences if isinstance(preferences, MetaxPreferences) else MetaxPreferences()

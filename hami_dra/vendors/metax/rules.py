"""Refusals of MetaX cards, and the order of their sets on a node and between nodes.

Called by the vendor. In: columns of cards, or one request and the cards of one node. Out: reasons,
or tiers. Pure.

Sources: HAMi D/metax/sdevice.go (checkDeviceQos, Fit, prioritizeExclusiveDevices,
scoreExclusiveDevices), D/metax/device.go (ScoreNode) and HAMi's v2.7.0 release notes. Where they
disagree docs/design/metax.md says which rule is used here.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import Any, Final

import numpy as np
from msgspec import Struct

from hami_dra.api import names
from hami_dra.api.arrays import Codes
from hami_dra.topology.subsets import MOST_SETS, bits, mask_of
from hami_dra.topology.zones import Pick, Zones, decision_tree, some_of, zones_of
from hami_dra.vendors import core_rules, device_codes, protocol
from hami_dra.vendors.device_codes import NUMBER
from hami_dra.vendors.metax.preferences import (
    ANNOTATIONS,
    APP_CLASS,
    APP_CLASSES,
    BEST_EFFORT,
    OFFLINE,
    ONLINE,
    QOS,
    QOS_POLICIES,
    MetaxPreferences,
    metax_preferences,
)
from hami_dra.vendors.preferences import Preferences

DRIVER = "metax.hami.io"

_ONLINE_MARK: Final = len(QOS_POLICIES) + 1
"""`Cards.mark` of a card with an online task; offline ones have higher marks, ordinary ones lower."""
_ALONE: Final = 1
_ONLINE: Final = 2
_TENANT: Final = 4
_MOST_TENANTS: Final = 63
_SMALL: Final = 1e-6
"""Weight of the second key: it decides only between sets that the first finds equal."""
_ALLOCATED: Final = 10
"""`Final Score = (10 * allocatedScore) - lossScore`"""


def mark_of(qos: str, app: str = "") -> int:
    """Return a QoS and a class of tasks as `Cards.mark`. The ledger keeps the lowest mark of a
    card's tenants, so online comes before offline.
    """
    number = QOS_POLICIES.index(qos) + 1
    return {ONLINE: _ONLINE_MARK, OFFLINE: _ONLINE_MARK + number}.get(app, number)


def online_tiers(node_view: protocol.NodeView) -> Iterator[protocol.CandidateTier]:
    """Yield the cards for an online task: fewest tasks first, cards with nothing but offline tasks
    last. HAMi's scores between nodes: -20 for each task of a card with an online one, -100 for each
    of a card without.
    """
    found: dict[tuple[bool, int], list[int]] = {}
    for card in bits(node_view.mask(protocol.CardState.ELIGIBLE)):
        state = node_view.states[card]
        tenants = state // _TENANT
        found.setdefault((tenants > 0 and not state & _ONLINE, tenants), []).append(card)
    for (offline, tenants), cards in sorted(found.items()):
        yield protocol.CandidateTier(-tenants * (100.0 if offline else 20.0), tuple(1 << card for card in cards))


class _Kind(Enum):
    """The purpose of a request: each is compared between nodes in its own way."""

    WHOLE = "whole card"
    EXCLUSIVE = "exclusive sGPU"
    SHARED = "shared sGPU"


def arranged(node_view: protocol.NodeView, preferences: MetaxPreferences) -> Iterator[protocol.CandidateTier] | None:
    """Yield tiers for a request; None if topology does not apply: one part of one card."""
    if preferences.app_class and node_view.count == 1:
        return online_tiers(node_view) if preferences.app_class == ONLINE else None
    kind = _kind(node_view)
    if kind is _Kind.SHARED and node_view.count == 1:
        return None
    eligible = node_view.mask(protocol.CardState.ELIGIBLE)
    if kind is not _Kind.SHARED:
        eligible &= node_view.mask(protocol.CardState.IDLE)
    if eligible.bit_count() < node_view.count:
        return iter(())
    return _tiers(node_view, eligible, _Measure(_zones(node_view.layout), node_view, preferences, kind))


@lru_cache(maxsize=1_024)
def _zones(layout: protocol.Layout) -> Zones:
    return zones_of(layout.group, layout.lanes, layout.distance)


def _kind(node_view: protocol.NodeView) -> _Kind:
    """Return the kind: amounts mean an sGPU, exclusive if it takes all cores; without them whole cards."""
    may = [
        state & _ALONE
        for card_state, state in zip(node_view.card_states, node_view.states, strict=True)
        if card_state & protocol.CardState.ELIGIBLE
    ]
    if not all(may):
        return _Kind.SHARED
    return _Kind.WHOLE if node_view.plain else _Kind.EXCLUSIVE


def _tiers(node_view: protocol.NodeView, eligible: int, measure: "_Measure") -> Iterator[protocol.CandidateTier]:
    """Yield the sets named by the decision tree, then every other set, the best connected first."""
    named = list(decision_tree(measure.zones, eligible, node_view.count))
    for pick in named:
        score, tie = measure.of(some_of(pick))
        yield _tier(pick, score, tie)
    if comb(eligible.bit_count(), node_view.count) > MOST_SETS:
        yield protocol.CandidateTier(measure.least, pools=(eligible,))
        return
    rest: dict[tuple[int, float, float], list[int]] = {}
    for cards in combinations(bits(eligible), node_view.count):
        chosen = mask_of(cards)
        if not any(_is_of(pick, chosen) for pick in named):
            rest.setdefault((measure.zones.connection(chosen), *measure.of(chosen)), []).append(chosen)
    for (_, score, tie), sets in sorted(rest.items(), reverse=True):
        yield protocol.CandidateTier(score, tuple(sets), tie=tie)


def _tier(pick: Pick, score: float, tie: float) -> protocol.CandidateTier:
    if not pick.fixed:
        return protocol.CandidateTier(score, pools=(pick.pool,), tie=tie)
    several = combinations(bits(pick.pool), pick.more)
    if comb(pick.pool.bit_count(), pick.more) > MOST_SETS:
        return protocol.CandidateTier(score, (some_of(pick),), tie=tie)
    return protocol.CandidateTier(score, tuple(pick.fixed | mask_of(each) for each in several), tie=tie)


def _is_of(pick: Pick, chosen: int) -> bool:
    return chosen & pick.fixed == pick.fixed and not chosen & ~(pick.fixed | pick.pool)


class _Measure(Struct, frozen=True):
    """The scores of sets of cards for their node. S is `Zones.connection`:

        allocated = S(set), loss = S(free cards before) - S(set) - S(free cards after), Final = 10 * allocated - loss.

    Whole and exclusive cards of the pod's earlier requests count with the set, so that requests add
    up to HAMi's result for all cards of the pod together.
    """

    zones: Zones
    node_view: protocol.NodeView
    preferences: MetaxPreferences
    kind: _Kind

    def of(self, cards: int) -> tuple[float, float]:
        """Return (`CandidateTier.score`, `CandidateTier.tie`)."""
        if self.kind is not _Kind.WHOLE and not self.preferences.topology_aware:
            return 0.0, 0.0
        allocated, loss = self._allocated(cards), self._loss(cards)
        final = float(_ALLOCATED * allocated - loss)
        if self.node_view.node_policy != names.SPREAD:
            if self.kind is _Kind.WHOLE:
                return -loss + _SMALL * allocated, 0.0
            return (final if self.kind is _Kind.EXCLUSIVE else float(allocated)), 0.0
        score = final if self.kind is _Kind.EXCLUSIVE else float(allocated)
        return (0.0, -score) if self.preferences.penalty else (score, 0.0)

    @property
    def least(self) -> float:
        """Return a lower bound of the score of all sets."""
        ties = self.preferences.penalty and self.node_view.node_policy == names.SPREAD
        return 0.0 if ties or self.kind is _Kind.SHARED else -float(self.zones.connection(self._free))

    @property
    def _free(self) -> int:
        return self.node_view.mask(protocol.CardState.IDLE)

    def _allocated(self, cards: int) -> int:
        if self.kind is _Kind.SHARED:
            return self.zones.connection(cards)
        own = self.node_view.mask(protocol.CardState.OWN) & ~cards
        return self.zones.connection(own | cards) - self.zones.connection(own)

    def _loss(self, cards: int) -> int:
        free = self._free
        return self.zones.connection(free) - self._allocated(cards) - self.zones.connection(free & ~cards)


class Metax(protocol.Vendor):
    """The rules of `metax.hami.io`."""

    name = "metax"
    profile = protocol.DriverProfile(driver=DRIVER)
    always_arranges = True  # zones are minded for everybody
    annotations = ANNOTATIONS
    parameters: Mapping[str, str] = {"qos": QOS, "appClass": APP_CLASS}

    def preferences(self, annotations: Mapping[str, str]) -> MetaxPreferences:
        return metax_preferences(annotations)

    def ids(self, node: str, index: int) -> tuple[str, ...]:
        return (f"{node}-metax-{index}",)

    def refuse(self, cards: protocol.Cards, ask: protocol.CardRequest, preferences: Preferences) -> Codes:
        """Return per card 0 or the number of the reason: tasks of another class or another QoS than its
        tenants' (HAMi's first checks), then the general rules for cores.

        A card without holders, or whose tenants were promised nothing (`Cards.mark` 0), takes any QoS.
        A request for all cores is exempt; it is refused by any tenant all the same. An online task
        takes no cores and has no QoS.
        """
        own = MetaxPreferences.own(preferences)
        qos, app = own.qos, own.app_class
        used = cards.slots_used > 0
        if app == ONLINE:
            codes = np.zeros(cards.index.shape, dtype=np.uint8)
        else:
            codes = core_rules.refuse(cards, ask)
            another = used & (cards.mark != 0) & (cards.mark != mark_of(qos, app))
            codes[another & (ask.cores != core_rules.WHOLE)] = NUMBER[device_codes.CARD_QOS_MISMATCH]
        wrong = (cards.mark >= _ONLINE_MARK) != bool(app)
        if app == OFFLINE:
            wrong |= cards.mark == _ONLINE_MARK
        codes[used & wrong] = NUMBER[device_codes.CARD_APP_CLASS_MISMATCH]
        return codes

    def states(self, cards: protocol.Cards, ask: protocol.CardRequest) -> Codes:
        """Return per card whether the request leaves no cores to others (`_ALONE`; if cores are not
        published, no memory), and for cards of online and offline tasks also which (`_ONLINE`) and
        how many (from `_TENANT` on, at most 63).
        """
        alone = np.where(cards.cores_total > 0, ask.cores >= cards.cores_total, ask.memory >= cards.memory_total)
        online = np.where(cards.mark == _ONLINE_MARK, _ONLINE, 0)
        tenants = np.minimum(cards.slots_used, _MOST_TENANTS) * _TENANT + online
        classed = (cards.mark >= _ONLINE_MARK) & (cards.slots_used > 0)
        states: Codes = alone.astype(np.uint8) + np.where(classed, tenants, 0).astype(np.uint8)
        return states

    def arrange(self, node_view: protocol.NodeView) -> protocol.CandidateSets | None:
        tiers = arranged(node_view, MetaxPreferences.own(node_view.preferences))
        return None if tiers is None else protocol.CandidateSets(tiers, device_codes.ALLOCATED_CARDS_INSUFFICIENT)

    def allocation_parameters(self, preferences: Preferences) -> Mapping[str, Any]:
        own = MetaxPreferences.own(preferences)
        return {"qos": own.qos} | ({"appClass": own.app_class} if own.app_class else {})

    def mark(self, parameters: Mapping[str, Any], consumed: Mapping[str, int]) -> int:
        """Return the QoS and the class of a tenant, 0 if it has the card to itself.

        The default is best-effort, as in HAMi's webhook.
        """
        app = parameters.get("appClass", "")
        if app in APP_CLASSES:
            qos = parameters.get("qos", BEST_EFFORT)
            return mark_of(qos if qos in QOS_POLICIES else BEST_EFFORT, app)
        if not consumed or consumed.get(names.CAP_CORES, 0) >= core_rules.WHOLE:
            return 0
        qos = parameters.get("qos", BEST_EFFORT)
        return mark_of(qos) if isinstance(qos, str) and qos in QOS_POLICIES else 0

"""The device axis: the order in which the search tries the cards of a node, by HAMi's policies and
the vendors' rules.

Created by `decide` for one decision; called by `allocation.search`. In: the cards that Kubernetes'
own rules allow. Out: those that the vendor's rules allow too, best first; or, if the vendor
arranges cards in sets, whole sets. Works on the few cards of one node, including what the search
has already chosen for earlier requests of the pod, so that the second container sees the first.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from heapq import merge
from itertools import chain, combinations
from typing import Final

import numpy as np

from controller.allocation.chooser import ResolvedRequest, TentativeUsage
from controller.allocation.result import Solution
from controller.allocation.use_lists import refused_by_lists
from controller.cluster.incremental.changes import LruCache
from controller.inventory.columns import rows_of
from controller.inventory.inventory import Inventory
from controller.inventory.model import Device, DeviceId
from controller.inventory.roles import ask_of, asked_shares, free_shares, used_of
from controller.scoring.formulas import device_keys, device_order, device_scores, group_order
from controller.scoring.free_capacity import node_devices_of
from controller.scoring.node_views import card_states_of, node_view_of
from controller.scoring.partitions import PartitionsView, Surroundings, partitions_view
from controller.scoring.policies import DevicePolicy, Policies
from controller.scoring.ranking import Ranking
from hami_dra.api import names
from hami_dra.api.arrays import Codes, Floats, Ints, Positions
from hami_dra.api.resource import DeviceRequest
from hami_dra.vendors.preference_keys import NO_PREFERENCES, RequestPreferences
from hami_dra.vendors.protocol import CandidateSets, CardRequest, Cards, PartitionUse
from hami_dra.vendors.registry import VENDORS, vendor_of

_Chosen = tuple[str, str, frozenset[DeviceId]]
"""(claim key, request, devices)"""


CardOfRequest = tuple[str, str, DeviceId]
"""(claim key, request, device)"""
_ORDERS_KEPT: Final = 1 << 12


class _Orders(LruCache[tuple[list[int], list[float]]]):
    """The order of cards in some states, and their scores. A cache only.

    Saves 0.05 of 0.24 ms of a decision (a shared card; `hack/bench/decide.py` at 1,000 nodes,
    CPython 3.11).
    """

    def __init__(self, _: Inventory) -> None:
        super().__init__(_ORDERS_KEPT)


def _order_and_scores(cards: Cards, ask: CardRequest, policy: DevicePolicy) -> tuple[list[int], list[float]]:
    scores = device_scores(cards, ask, policy.weights)
    return device_order(cards, scores, policy).tolist(), scores.tolist()


class PolicyChooser:
    """Implements `controller.allocation.chooser.Chooser`."""

    def __init__(self, inventory: Inventory, policies: Policies) -> None:
        self._inventory = inventory
        self._columns = inventory.devices
        self._policies = policies
        self.scores: dict[CardOfRequest, float] = {}
        """All scores, as last computed: the cards of the nodes that were searched."""
        self._topology: dict[_Chosen, float] = {}
        self.ranking: Ranking | None = None
        """The ranking of nodes, if the node policy also chooses the cards."""

    @cached_property
    def _arranging(self) -> frozenset[str]:
        return arranging_drivers(self._policies)

    def order(self, request: ResolvedRequest, devices: Sequence[Device], tentative: TentativeUsage) -> Sequence[Device]:
        if not devices:
            return devices
        rows = rows_of(devices)
        cards = self._columns.cards(rows)
        if tentative.added:
            self._add(cards, devices, tentative)
        ask = ask_of(request.consumed, devices)
        positions = np.flatnonzero(self._refusals(request, devices, rows, cards, ask) == 0)
        allowed = [devices[position] for position in positions.tolist()]
        if request.all_devices:
            return allowed
        if len(allowed) < len(devices):
            cards, ask = cards.take(positions), ask.take(positions)
        view = self._parts(request, allowed, cards, ask, tentative) if any(each.is_part for each in allowed) else None
        if view is not None:
            cards, ask = view.cards, view.ask
        return self._ordered(request, allowed, cards, ask, view=view)

    def best(
        self, request: ResolvedRequest, rows: Positions, ask: Callable[[Positions], CardRequest]
    ) -> Sequence[Device]:
        """Return the `order` of allowed whole cards of one node, if nothing was chosen before.

        `ask`: the amounts that the request takes of some rows. Cards in equal states share it.
        """
        devices = [self._columns.device(row) for row in rows.tolist()]
        policy = self._policies.for_claim(request.claim_key)
        if self.reads_more_than_states(request):
            return self._ordered(request, devices, self._columns.cards(rows), ask(rows))
        key = request.shape, policy.keys, policy.weights, self._columns.states(rows).tobytes()
        order, scores = self._inventory.derived(_Orders, _Orders).get(
            key, lambda: _order_and_scores(self._columns.cards(rows), ask(rows), policy)
        )
        self._note(request, devices, scores)
        return [devices[position] for position in order]

    def reads_more_than_states(self, request: ResolvedRequest) -> bool:
        """Return whether cards in equal states on different nodes may differ in their order."""
        return self._policies.for_claim(request.claim_key).follows_node or bool(request.match_attributes)

    def _ordered(
        self,
        request: ResolvedRequest,
        allowed: Sequence[Device],
        cards: Cards,
        ask: CardRequest,
        *,
        view: PartitionsView | None = None,
    ) -> Sequence[Device]:
        policy = self._policies.for_claim(request.claim_key)
        scores = device_scores(cards, ask, policy.weights)
        self._note(request, allowed, scores.tolist())
        packed = self._packed(request, allowed, cards, ask) if policy.follows_node else None
        keys: Sequence[Floats | Ints] = packed or device_keys(cards, scores, policy)
        order = device_order(
            cards, scores, policy, keys=keys, before=view.before if view else (), inside=view.inside if view else ()
        )
        if request.match_attributes and len(allowed) > 1:
            groups = [common_values(request, device) for device in allowed]
            order = group_order(order, groups, keys, matched_count(request), tight=names.BINPACK in policy.hami_keys)
        return [allowed[position] for position in order.tolist()]

    def _note(self, request: ResolvedRequest, devices: Sequence[Device], scores: Sequence[float]) -> None:
        for device, score in zip(devices, scores, strict=True):
            self.scores[request.claim_key, request.name, device.id] = score

    def sets(
        self, request: ResolvedRequest, devices: Sequence[Device], count: int, tentative: TentativeUsage
    ) -> Iterable[Sequence[Device]] | None:
        """Return the vendor's sets by tier, in the policy's order; None if it arranges none."""
        if request.all_devices or not devices:
            return None
        cards = [device for device in devices if not device.is_part]
        part = next((device for device in devices if device.is_part), None)
        arrangement = self._arrangement(request, cards, count, tentative, part=part)
        if arrangement is None:
            return None
        of_cards = self._in_order(request, cards, arrangement, count)
        if arrangement.parts is PartitionUse.NO or len(cards) == len(devices):
            return of_cards
        return chain(of_cards, _with_parts(devices, count, self._columns.numa, arrangement.parts))

    def kind(self, device: Device) -> Hashable:
        """Return the driver, as rules compare no more than driver and totals; the card for sets."""
        return device.id if device.id.driver in self._arranging else device.id.driver

    def reported(self, solution: Solution) -> tuple[tuple[str, float], ...]:
        """Return `driver/pool/device` and its score at the moment it was chosen, in order of the results."""
        return tuple(
            (str(pick.device.id), self.scores.get((pick.request.claim_key, pick.request.name, pick.device.id), 0.0))
            for picks in solution.picks
            for pick in picks
        )

    def topology(self, solution: Solution) -> float:
        """Return the vendors' score of the chosen sets, summed over the requests."""
        if not self._topology:  # no vendor arranged any
            return 0.0
        chosen: dict[tuple[str, str], set[DeviceId]] = {}
        for picks in solution.picks:
            for pick in picks:
                chosen.setdefault((pick.request.claim_key, pick.request.name), set()).add(pick.device.id)
        return sum(self._topology.get((*key, frozenset(devices)), 0.0) for key, devices in chosen.items())

    def note_set(self, request: ResolvedRequest, devices: Iterable[Device], score: float) -> None:
        """Note the vendor's score of a set."""
        self._topology[_set_of(request, devices)] = score

    def score_of_set(self, request: ResolvedRequest, devices: Iterable[Device]) -> float:
        """Return the vendor's score of a set; 0 if it arranged none."""
        return self._topology.get(_set_of(request, devices), 0.0)

    # -- one request, some devices -----------------------------------------------------------------

    def _parts(
        self,
        request: ResolvedRequest,
        devices: Sequence[Device],
        cards: Cards,
        ask: CardRequest,
        tentative: TentativeUsage,
    ) -> PartitionsView | None:
        """Return the columns of parts of cards, if there are any among the devices of a node."""
        node = int(self._columns.node[devices[0].row])
        if node < 0:
            return None
        drivers = {device.id.driver for device in devices if device.is_part}
        pools = [pool for pool in self._inventory.pools_on(self._inventory.nodes.names[node]) if pool.driver in drivers]
        published = [device for pool in pools for device in pool.devices if device.row >= 0]
        node_cards = self._columns.cards(rows_of(published))
        self._add(node_cards, published, tentative)
        request_preferences = self._policies.preferences_of(request.claim_key, request.name)
        vendors = [vendor for driver in drivers if (vendor := vendor_of(driver)) is not None]
        tight = any(vendor.smallest_part_first(request_preferences.of(vendor)) for vendor in vendors)
        around = Surroundings(request, pools, published, node_cards)
        return partitions_view(devices, cards, ask, around, smallest_first=tight)

    def _refusals(
        self, request: ResolvedRequest, devices: Sequence[Device], rows: Positions, cards: Cards, ask: CardRequest
    ) -> Codes:
        """Return the vendor's reason per card; none without a vendor. Shape (n,)."""
        codes = np.zeros(len(devices), dtype=np.uint8)
        for driver in {device.id.driver for device in devices}:
            vendor = vendor_of(driver)
            if vendor is None:
                continue
            preferences = self._policies.preferences_of(request.claim_key, request.name).of(vendor)
            of_driver = np.flatnonzero([device.id.driver == driver for device in devices])
            codes[of_driver] = vendor.refuse(cards.take(of_driver), ask.take(of_driver), preferences)
            if preferences.lists:
                for position in of_driver.tolist():
                    reason = refused_by_lists(self._inventory, vendor, preferences, int(rows[position]))
                    codes[position] = reason or codes[position]
        return codes

    def _add(self, cards: Cards, devices: Sequence[Device], tentative: TentativeUsage) -> None:
        """Add what the search has chosen so far for this pod. `cards` are copies, so they may be changed."""
        for position, device in enumerate(devices):
            delta = tentative.added.get(device.id)
            if delta is None:
                continue
            cards.add(position, used_of(device, delta.shares, delta.consumed, exclusive=bool(delta.exclusive)))
            vendor = vendor_of(device.id.driver)
            if vendor is not None and not cards.mark[position]:
                cards.mark[position] = max(
                    vendor.mark(
                        vendor.allocation_parameters(
                            self._policies.preferences_of(view.claim_key, view.name).of(vendor)
                        ),
                        view.consumed(device) or {},
                    )
                    for view in delta.views
                )

    def _packed(
        self, request: ResolvedRequest, allowed: Sequence[Device], cards: Cards, ask: CardRequest
    ) -> list[Ints] | None:
        """Return the node policy's keys of the cards, each of the shape of `allowed`."""
        if self.ranking is None or not allowed:
            return None
        node = max(int(self._columns.node[device.row]) for device in allowed)
        if node < 0:
            return None
        left = free_shares(cards)
        line, places = node_devices_of(self._inventory, node, rows_of(allowed), left, asked_shares(cards, ask))
        keys = self.ranking.card_keys(request, line)
        return [key[places] for key in keys] if keys is not None else None

    # -- sets ---------------------------------------------------------------------------------------

    def _arrangement(
        self,
        request: ResolvedRequest,
        cards: Sequence[Device],
        count: int,
        tentative: TentativeUsage,
        *,
        part: Device | None,
    ) -> CandidateSets | None:
        """Return the vendor's sets, or None. `part`: a part that could be taken instead."""
        some = cards[0] if cards else part
        assert some is not None
        driver = some.id.driver
        vendor = vendor_of(driver)
        if driver not in self._arranging or vendor is None or any(each.id.driver != driver for each in cards):
            return None
        layouts, nodes = self._inventory.layouts, self._columns.node
        node = int(nodes[some.row])
        found = layouts.of(node, driver) if node >= 0 else None
        if found is None:
            return None
        layout, rows = found
        eligible = layouts.position[rows_of(cards)]
        if (eligible < 0).any():
            return None
        cards_of_node = [self._columns.device(row) for row in rows.tolist()]
        node_cards = self._columns.cards(rows)
        if tentative.added:
            self._add(node_cards, cards_of_node, tentative)
        ask = ask_of(request.consumed, [cards_of_node[position] for position in eligible.tolist()])
        own = np.array([card.id in tentative.added for card in cards_of_node], dtype=np.bool_)
        may = np.zeros(layout.size, dtype=np.bool_)
        may[eligible] = True
        node_view = node_view_of(
            layout,
            card_states_of(may, node_cards.slots_used == 0, own),
            vendor.states(node_cards, ask.spread(eligible, layout.size)),
            count,
            policies=self._policies,
            vendor=vendor,
            request=request,
        )
        return vendor.arrange(node_view)

    def _in_order(
        self, request: ResolvedRequest, devices: Sequence[Device], arrangement: CandidateSets, count: int
    ) -> Iterator[Sequence[Device]]:
        """Yield the sets of each tier in the policy's order, each as devices.

        Sets are compared by the ranks of their cards in `devices`, best first. With ranks 0 to 3
        at the positions 2, 0, 3 and 1:

            set of the positions {0, 1}  mask 0b0011  ranks (1, 3)
            set of the positions {2, 3}  mask 0b1100  ranks (0, 2)  -> first
        """
        position = self._inventory.layouts.position
        bits = [1 << int(position[device.row]) for device in devices]
        for tier in arrangement.tiers:
            listed = sorted(tuple(rank for rank, bit in enumerate(bits) if mask & bit) for mask in tier.sets)
            drawn = [combinations([rank for rank, bit in enumerate(bits) if pool & bit], count) for pool in tier.pools]
            before: tuple[int, ...] = ()
            # `merge` of sorted sequences: a set that is in several of them comes twice in a row.
            for ranks in merge(listed, *drawn):
                if ranks == before:
                    continue
                before = ranks
                # The policy chooses the set; inside it containers see the cards in order of their
                # numbers.
                chosen = sorted((devices[rank] for rank in ranks), key=lambda device: int(position[device.row]))
                self.note_set(request, chosen, tier.score)
                yield chosen


def _set_of(request: ResolvedRequest, devices: Iterable[Device]) -> _Chosen:
    return request.claim_key, request.name, frozenset(device.id for device in devices)


def _with_parts(devices: Sequence[Device], count: int, numa: Ints, use: PartitionUse) -> Iterator[Sequence[Device]]:
    """Yield all sets, with parts of cards or without, in order of `devices`."""
    groups: dict[int, list[Device]] = {}
    for device in devices:
        groups.setdefault(int(numa[device.row]) if use is PartitionUse.ONE_NUMA_NODE else 0, []).append(device)
    for members in groups.values():
        yield from combinations(members, count)


def arranging_drivers(policies: Policies) -> frozenset[str]:
    """Return the drivers whose vendor may arrange sets for some claim of the pod."""
    claims = tuple(policies.device_policies) or ("",)
    return _arranging(
        tuple(
            [
                (policies.request_preferences.get(claim, NO_PREFERENCES), policies.for_claim(claim).keys)
                for claim in claims
            ]
        )
    )


@lru_cache(maxsize=256)
def _arranging(stated: tuple[tuple[RequestPreferences, tuple[str, ...]], ...]) -> frozenset[str]:
    """`stated`: preferences and device policy of each claim."""
    return frozenset(
        vendor.profile.driver
        for vendor in VENDORS
        for request_preferences, keys in stated
        if any(vendor.arranges(each.of(vendor), keys) for each in request_preferences.each())
    )


def common_values(request: ResolvedRequest, device: Device) -> Hashable:
    """Return the values of the device for the matchAttribute constraints of the request."""
    return tuple(device.attribute(name) for name in request.match_attributes)


def matched_count(request: ResolvedRequest) -> int:
    """Return how many devices one matchAttribute constraint covers, other requests included."""
    spec = request.claim.spec.devices
    most = request.count
    for number in request.constraints:
        constraint = spec.constraints[number]
        if constraint.match_attribute is None:
            continue
        named = {name.partition("/")[0] for name in constraint.requests}
        tied = sum(_count(each) for each in spec.requests if not named or each.name in named)
        most = max(most, tied)
    return most


def _count(request: DeviceRequest) -> int:
    return next((exact.count for exact in request.choices), 0) or 1

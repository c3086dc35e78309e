"""Native mode: the order of devices in the slices that makes kube-scheduler's first fit follow a
device policy.

Handed to the node driver by the command that starts it, and called whenever claims come and go. In:
the pool, the node, the claims that hold devices of it. Out: a rank per card. Pure; scores and
orders are those of `controller.scoring`, sets of cards those of the vendor.

kube-scheduler takes devices in the order in which they are listed, for every request alike. So:
- cards come by their score before the request, fullest first (binpack) or emptiest first (spread,
  topology-aware);
- where the vendor arranges cards in sets (islands under topology-aware, Neuron's blocks always),
  the idle ones among them come so that the first is the vendor's best single card, the first two
  are its best pair with that card, and so on. Where the best pair and the best single card differ,
  an order cannot begin with both: the smaller request is the more frequent one.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Final

import msgspec
import numpy as np

from controller.inventory.columns import rows_of
from controller.inventory.inventory import Inventory
from controller.inventory.model import Device
from controller.scoring.formulas import device_order, device_scores
from controller.scoring.node_views import card_states_of
from controller.scoring.policies import DevicePolicy
from hami_dra.api import names
from hami_dra.api.core import Node
from hami_dra.api.resource import ResourceClaim, ResourceSlice
from hami_dra.driver.node.settings import DeviceRanking
from hami_dra.driver.slices import Pool, slice_body
from hami_dra.kube.guard import LoopGuard
from hami_dra.vendors.protocol import CandidateTier, CardRequest, Cards, Layout, NodeView, Vendor
from hami_dra.vendors.registry import vendor_of

_guard: Final = LoopGuard("order of devices")
_BLOCKING = ("NoSchedule", "NoExecute")


def native_ranking(policy: DevicePolicy) -> DeviceRanking:
    """Return the ranking that follows `policy`, for `NodeSettings.ranking`."""
    return partial(card_ranks, policy=policy)


def card_ranks(pool: Pool, node: Node, claims: Iterable[ResourceClaim], policy: DevicePolicy) -> dict[str, int]:
    """Uuid of each card of the pool → its place. Empty where the pool cannot be read: its own order is then kept."""
    inventory = _inventory(pool, node, claims)
    devices = [each for found in inventory.pools_on(pool.node) for each in found.devices if each.row >= 0]
    devices = [each for each in devices if each.id.driver == pool.driver]
    whole = sorted((each for each in devices if not each.is_part), key=lambda each: (each.index, each.id))
    if not whole:
        return {}
    cards = _with_parts(inventory, whole, [each for each in devices if each.is_part])
    order = _by_policy(cards, policy)
    vendor = vendor_of(pool.driver)
    laid_out = inventory.layouts.of(inventory.nodes.index_of(pool.node), pool.driver)
    if vendor is not None and laid_out is not None and len(laid_out[1]) == len(whole):
        free = [
            not cards.slots_used[place] and not any(taint.effect in _BLOCKING for taint in card.spec.taints)
            for place, card in enumerate(whole)
        ]
        grown = _grown(vendor, laid_out[0], cards, [place for place in order if free[place]], policy)
        places = iter(grown)
        order = [next(places) if free[place] else place for place in order]
    return {whole[position].string_attribute(names.ATTR_UUID): rank for rank, position in enumerate(order)}


def _inventory(pool: Pool, node: Node, claims: Iterable[ResourceClaim]) -> Inventory:
    """The facts of this node alone."""
    inventory = Inventory()
    inventory.node_changed(None, node)
    for index in range(len(pool.slices)):
        inventory.slice_changed(None, msgspec.convert(slice_body(pool, index, 1), ResourceSlice))
    for claim in claims:
        with _guard.each(claim.key):
            inventory.claim_changed(None, claim)
    return inventory


def _with_parts(inventory: Inventory, whole: Sequence[Device], parts: Sequence[Device]) -> Cards:
    """The columns of the cards, with what is used of their parts."""
    columns = inventory.devices
    cards = columns.cards(rows_of(whole))
    position = {card.index: place for place, card in enumerate(whole)}
    for part in parts:
        if part.index in position:
            cards.add(position[part.index], columns.used(part.row))
    return cards


def _by_policy(cards: Cards, policy: DevicePolicy) -> list[int]:
    """Return all positions; those that the policy refuses (`mutex`: used ones) last."""
    nothing = np.zeros(len(cards.index), dtype=np.int64)
    scores = device_scores(cards, CardRequest(slots=nothing, cores=nothing, memory=nothing), policy.weights)
    order = [int(position) for position in device_order(cards, scores, policy)]
    return order + [position for position in range(len(cards.index)) if position not in order]


def _grown(vendor: Vendor, layout: Layout, cards: Cards, free: Sequence[int], policy: DevicePolicy) -> Sequence[int]:
    """Return the free cards, set by set. Positions are the same in `layout` and `cards`: both are
    in order of the index.
    """
    preferences = vendor.preferences({})
    if not free or not vendor.arranges(preferences, policy.keys):
        return free
    idle = np.array(cards.slots_used == 0, dtype=np.bool_)
    eligible = np.zeros(layout.size, dtype=np.bool_)
    eligible[list(free)] = True
    card_states = card_states_of(eligible, idle, own=np.zeros_like(idle))
    states = vendor.states(
        cards, CardRequest(slots=cards.slots_total, cores=cards.cores_total, memory=cards.memory_total)
    )

    def tiers(count: int) -> Iterable[CandidateTier]:
        node_view = NodeView(
            layout, card_states.tobytes(), states.tobytes(), count, preferences, names.BINPACK, policy.keys
        )
        arrangement = vendor.arrange(node_view)
        return arrangement.tiers if arrangement is not None else ()

    chosen: list[int] = []
    for count in range(1, len(free) + 1):
        if count > len(chosen):
            found = _best_around(chosen, tiers(count), count, free)
            if not found and len(chosen) == 1 and (found := _best_around((), tiers(count), count, free)):
                chosen = []  # a single card that no legal set holds would break the first set
            chosen += [position for position in free if position in found and position not in chosen]
    return list(dict.fromkeys(chain(chosen, free)))


def _best_around(
    chosen: Sequence[int], tiers: Iterable[CandidateTier], count: int, order: Sequence[int]
) -> Sequence[int]:
    """Return the first set of the best tier that contains `chosen`; of several in a tier the one
    that `order` prefers.

    Empty where no legal set of this size does: the next larger size is tried then.
    """
    core = sum(1 << position for position in chosen)
    for tier in tiers:
        sets = [[position for position in order if mask >> position & 1] for mask in tier.sets if mask & core == core]
        for pool in tier.pools:
            if pool & core == core:
                others = [position for position in order if pool >> position & 1 and position not in chosen]
                sets.append([*chosen, *others[: count - len(chosen)]])
        if sets:
            return min(sets, key=lambda found: sorted(map(order.index, found)))
    return ()

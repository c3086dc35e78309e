"""Parts of cards (MIG instances) on the device axis: each represents the card that it is cut from.

Called by `scoring.chooser` if parts are among the devices that a request may take. In: those
devices, all devices of the same drivers on the node. Out: the same columns as for cards, with the
numbers of the whole card in place of a part's, and further keys for parts. Pure.

- Which card: the device policy, on the usage of the whole card, its other parts included.
- Which part of a card: the smallest that holds the request, and of equal ones the one after which
  most can still be cut from the card: its use of the shared counters rules out least.
- The smallest part comes before the policy if a request can only have parts, or the vendor requires
  it.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from controller.allocation.chooser import ResolvedRequest
from controller.allocation.counters import CounterName, drawn_counters
from controller.allocation.errors import AllocatorError
from controller.cluster.incremental.saturation import MOST, saturated
from controller.inventory.model import Device, Pool, value_of
from controller.inventory.roles import totals_of
from hami_dra.api.arrays import Ints
from hami_dra.vendors.protocol import CardRequest, Cards

CardKey = tuple[str, int]
"""(driver, index): a card and its parts have the same."""


class PartitionsView(Struct, frozen=True):
    """Arrays of shape (devices,), int64."""

    cards: Cards
    ask: CardRequest
    before: list[Ints]
    """Keys above the device policy, most important first, lower is better."""
    inside: list[Ints]
    """Keys among the parts of one card."""


class Surroundings(Struct, frozen=True):
    request: ResolvedRequest
    pools: Sequence[Pool]
    devices: Sequence[Device]
    """All cards and parts of the pools, in use or not."""
    cards: Cards
    """Their columns, with the additions of the search."""


def partitions_view(
    devices: Sequence[Device], cards: Cards, ask: CardRequest, around: Surroundings, *, smallest_first: bool
) -> PartitionsView:
    """Return the view. `cards` and `ask`: of `devices`. `smallest_first`: the vendor requires it."""
    parts = [position for position, device in enumerate(devices) if device.is_part]
    wholes = {_key(device): place for place, device in enumerate(around.devices) if not device.is_part}
    tight = smallest_first or not any(
        _may_take(around.request, around.devices[wholes[key]])
        for key in {_key(devices[position]) for position in parts}
        if key in wholes
    )
    size, cores = cards.memory_total.copy(), cards.cores_total.copy()
    seen = _as_their_cards(devices, parts, cards, wholes, around)
    if not tight:
        ask = _smallest_of_card(devices, parts, ask)
    for amounts in (size, cores):
        amounts[[position for position in range(len(devices)) if not devices[position].is_part]] = 0
    ruled_out = np.zeros(len(devices), dtype=np.int64)
    cost = _ruled_out(around)
    ruled_out[parts] = [cost.get(devices[position], 0) for position in parts]
    return PartitionsView(seen, ask, [size, cores] if tight else [], [size, cores, ruled_out])


def _key(device: Device) -> CardKey:
    return device.id.driver, device.index


def _may_take(request: ResolvedRequest, card: Device) -> bool:
    """Return whether the selectors of the request also match whole cards."""
    try:
        return all(selector.matches(card) for selector in request.all_selectors)
    except AllocatorError:
        return False


def _as_their_cards(
    devices: Sequence[Device], parts: Sequence[int], cards: Cards, wholes: dict[CardKey, int], around: Surroundings
) -> Cards:
    """Return the columns with a part's numbers replaced by those of its card: totals, and the usage
    of all its tenants.
    """
    node_cards = around.cards
    used: dict[CardKey, list[int]] = {}
    for place, device in enumerate(around.devices):
        sums = used.setdefault(_key(device), [0, 0, 0])
        for role, amounts in enumerate((node_cards.slots_used, node_cards.cores_used, node_cards.memory_used)):
            sums[role] += int(amounts[place])
    seen = cards.take(np.arange(len(devices)))
    for position in parts:
        key = _key(devices[position])
        if key not in wholes:
            continue
        for name in ("slots_total", "cores_total", "memory_total"):
            getattr(seen, name)[position] = getattr(node_cards, name)[wholes[key]]
        seen.slots_used[position], seen.cores_used[position], seen.memory_used[position] = used[key]
    return seen


def _smallest_of_card(devices: Sequence[Device], parts: Sequence[int], ask: CardRequest) -> CardRequest:
    """Return the request of the smallest part for all parts of a card, so that the policy compares
    cards and not parts.
    """
    least: dict[CardKey, int] = {}
    for position in parts:
        key = _key(devices[position])
        best = least.setdefault(key, position)
        if (ask.memory[position], ask.cores[position]) < (ask.memory[best], ask.cores[best]):
            least[key] = position
    source = np.arange(len(devices))
    for position in parts:
        source[position] = least[_key(devices[position])]
    return ask.take(source)


def _ruled_out(around: Surroundings) -> dict[Device, int]:
    """Return by part the memory of all parts that its card still offers and would not after this one is taken."""
    costs: dict[Device, int] = {}
    taken = {
        device
        for place, device in enumerate(around.devices)
        if around.cards.slots_used[place] or around.cards.memory_used[place]
    }
    for pool in around.pools:
        totals = {
            (each.name, name): saturated(value_of(counter.value))
            for each in pool.counter_sets.values()
            for name, counter in each.counters.items()
        }
        by_card: dict[CardKey, list[Device]] = {}
        for device in pool.devices:
            if device.spec.consumes_counters:
                by_card.setdefault(_key(device), []).append(device)
        for members in by_card.values():
            try:
                costs |= _ruled_out_of(members, taken, totals)
            except AllocatorError:
                continue  # a counter that is no quantity: the search reports it
    return costs


def _ruled_out_of(members: Sequence[Device], taken: set[Device], totals: dict[CounterName, int]) -> dict[Device, int]:
    """Compute `_ruled_out` for one card, with the counters of its parts: shape (parts, counters),
    floats.

    `stays[i, j]`: part j still fits after part i is taken. A card of 4 slices, parts a and b of 2
    slices each, c of all 4:

        after a: 2 left, enough for a part of 2, not for c -> a costs the memory of c
        after c: 0 left                                    -> c costs that of a, b and c
    """
    own = {
        name: column
        for column, name in enumerate(dict.fromkeys(name for each in members for name, _ in drawn_counters(each)))
    }
    draws = np.zeros((len(members), len(own)), dtype=np.float64)
    for row, device in enumerate(members):
        for name, amount in drawn_counters(device):
            draws[row, own[name]] = float(max(-MOST, min(amount, MOST)))
    held = np.array([device in taken for device in members], dtype=np.bool_)
    left = np.array([totals.get(name, 0) for name in own], dtype=np.float64) - draws[held].sum(axis=0)
    memory = np.array([totals_of(device)[2] for device in members], dtype=np.int64)
    offered = (draws <= left).all(axis=1) & ~held
    after = left - draws
    stays = (draws[None, :, :] <= after[:, None, :]).all(axis=2)
    costs = (np.where(offered & ~stays, memory, 0)).sum(axis=1)
    return dict(zip(members, costs.tolist(), strict=True))

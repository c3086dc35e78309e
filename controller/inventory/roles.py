"""The three roles that HAMi scores (slots, cores, memory), computed from published capacities.

The only module that reads totals, usage and requests through a driver profile. Called by the
columns (usage), the chooser and the prefilter (requests). Pure.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from controller.cluster.incremental.saturation import CARD_MOST, saturated
from controller.inventory.model import Amount, Device
from hami_dra.api.arrays import Ints
from hami_dra.vendors.protocol import CardRequest, Cards

Amounts = tuple[int, int, int]
"""(slots, cores, memory), each from 0 to `CARD_MOST`"""
_NOTHING: Final[Amounts] = (0, 0, 0)
WHOLE_CARD: Final = 1_000_000
"""Shares of a card are counted in millionths: their sums are exact, in any order."""


def totals_of(device: Device) -> Amounts:
    """Return the totals. An exclusive device has one slot. A role the driver does not publish has
    total 0, except slots.
    """
    profile, totals = device.profile, device.totals
    slots = 1
    if device.shared:
        slots = totals.get(profile.shares, profile.default_shares) if profile.shares else profile.default_shares
    return _capped(slots), _role(totals, profile.cores), _role(totals, profile.memory)


def used_of(device: Device, shares: int, consumed: Mapping[str, Amount], *, exclusive: bool) -> Amounts:
    """Return the amounts that allocations hold of a device. An exclusive allocation holds all of
    it.

    Fractions are rounded down, a request's up: so no fitting request is judged too large, and the
    search decides.
    """
    if exclusive:
        return totals_of(device)
    profile = device.profile
    slots = consumed.get(profile.shares, shares) if profile.shares else shares
    return _capped(slots), _role(consumed, profile.cores), _role(consumed, profile.memory)


def consumed_of(device: Device, consumed: Mapping[str, int]) -> Amounts:
    """Return the amounts that one request takes of a device, from `ResolvedRequest.consumed`."""
    return used_of(device, 1, consumed, exclusive=not device.shared)


def ask_of(consumed: Callable[[Device], Mapping[str, int] | None], devices: Sequence[Device]) -> CardRequest:
    """Return `consumed_of` for some devices, as arrays of shape (n,). Devices that cannot meet the request have 0."""
    found: list[Amounts] = []
    last: Device | None = None
    last_wanted: Mapping[str, int] | None = None
    amounts = _NOTHING
    for device in devices:
        wanted = consumed(device)
        # Cards of one model are adjacent, and consume the same.
        if wanted is not last_wanted or last is None or not _read_alike(device, last):
            amounts = consumed_of(device, wanted) if wanted is not None else _NOTHING
            last, last_wanted = device, wanted
        found.append(amounts)
    columns = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return CardRequest(slots=columns[0], cores=columns[1], memory=columns[2])


def _read_alike(one: Device, other: Device) -> bool:
    """Return whether equal consumption means equal amounts of both devices."""
    if one.profile is not other.profile or one.shared is not other.shared:
        return False
    return one.shared or one.capacities == other.capacities


def free_shares(cards: Cards) -> Ints:
    """Return the free part of each card in millionths: the smaller one of memory and cores. Shape
    of the columns, any.

    Only idle cards have WHOLE_CARD; a card without a free slot has 0. A card that publishes neither
    memory nor cores is as full as its slots. Four cards of 16 GiB, 100 cores and 10 slots: an idle
    one; one with a quarter of its memory and 60 cores used; one without a free slot; and one of
    which a tenant takes neither memory nor cores, so that a single millionth counts:

    >>> from types import SimpleNamespace as Fake
    >>> four = np.ones(4, dtype=np.int64)
    >>> free_shares(Fake(
    ...     slots_total=10 * four, slots_used=np.array([0, 1, 10, 1]),
    ...     cores_total=100 * four, cores_used=np.array([0, 60, 10, 0]),
    ...     memory_total=16 * four, memory_used=np.array([0, 4, 2, 0]),
    ... )).tolist()
    [1000000, 400000, 0, 999999]
    """
    used = CardRequest(slots=cards.slots_used, cores=cards.cores_used, memory=cards.memory_used)
    return np.where(cards.slots_used > 0, WHOLE_CARD - asked_shares(cards, used), WHOLE_CARD)


def free_totals(free: Ints) -> tuple[Ints, Ints]:
    """Return the sums of the free parts of all cards, and of those that are neither idle nor full.
    Shape (nodes, cards) → (nodes,).

    >>> free, partial = free_totals(np.array([[1_000_000, 250_000, 0]]))
    >>> free.tolist(), partial.tolist()
    ([1250000], [250000])
    """
    return free.sum(axis=-1), np.where(free < WHOLE_CARD, free, 0).sum(axis=-1)


def asked_shares(cards: Cards, ask: CardRequest) -> Ints:
    """Return the part of each card that a request takes, in millionths, by the rule of
    `free_shares`. At least 1.

    4 of 16 GiB and 60 of 100 cores are 600,000 millionths; with all slots it is the whole card:

    >>> from types import SimpleNamespace as Fake
    >>> two = np.ones(2, dtype=np.int64)
    >>> asked_shares(
    ...     Fake(slots_total=10 * two, cores_total=100 * two, memory_total=16 * two),
    ...     Fake(slots=np.array([1, 10]), cores=60 * two, memory=4 * two),
    ... ).tolist()
    [600000, 1000000]
    """
    held = np.maximum(_millionths(ask.memory, cards.memory_total), _millionths(ask.cores, cards.cores_total))
    bare = (cards.memory_total <= 0) & (cards.cores_total <= 0)
    held = np.where(bare, _millionths(ask.slots, cards.slots_total), held)
    shares: Ints = np.where(ask.slots >= cards.slots_total, WHOLE_CARD, np.minimum(np.maximum(held, 1), WHOLE_CARD))
    return shares


def _millionths(part: Ints, total: Ints) -> Ints:
    """Return part / total in millionths, at most WHOLE_CARD; 0 where the total is 0.

    >>> _millionths(np.array([1, 5, 1]), np.array([3, 4, 0])).tolist()
    [333333, 1000000, 0]
    """
    ratio = np.divide(part, total, out=np.zeros(np.shape(part), dtype=np.float64), where=total > 0)
    millionths: Ints = np.rint(np.minimum(ratio, 1.0) * WHOLE_CARD).astype(np.int64)
    return millionths


def _role(amounts: Mapping[str, Amount], name: str | None) -> int:
    return _capped(amounts.get(name, 0)) if name else 0


def _capped(amount: Amount) -> int:
    """Return the amount, limited to CARD_MOST: a slice may publish any number."""
    return saturated(amount if isinstance(amount, int) else math.floor(amount), CARD_MOST)

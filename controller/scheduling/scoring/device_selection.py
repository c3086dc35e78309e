"""What a request would take of the cards of many nodes at once: the card choice of `fair-share`, as arrays.

Called by `scoring.free_capacity` (all candidate nodes) and by `scoring.chooser` (the node that is searched): one
rule for both, so that a node is judged by the cards that it will give. Pure.

The rule (docs/packing.md): break no idle card where a used one has room, then the tightest fit. Whole cards come from the
smallest island that holds them all; else from the largest ones. Equal cards in their order.
"""

import numpy as np

from controller.scheduling.inventory.roles import WHOLE_CARD
from hami_dra.api.arrays import Bools, Ints

_NEVER = np.int64(1) << 60


def fit_keys(free: Ints, share: Ints, island: Ints, may: Bools, *, scarcity: Ints, count: int) -> list[Ints]:
    """By what cards are ordered, most important first, lower is better. All arrays of one shape (..., cards).

    `free` and `share` in millionths; `island`: a number below the number of cards; `may`: the request may take the card;
    `scarcity`: millionths of a card that are added because the card is scarce. Cards that it may not take come last.
    """
    idle = free == WHOLE_CARD
    whole = share == WHOLE_CARD
    breaks = np.where(idle, np.where(whole, 0, WHOLE_CARD - share), -share) + scarcity
    width = free.shape[-1]
    fit = 3 * width + free - share
    breaks = np.where(may, breaks, _NEVER)
    if not (whole & may).any():
        return [breaks, fit]
    members = _count_by(island, may & whole, width)
    size = np.where(members >= count, members, 2 * width - members)
    return [breaks, np.where(whole, size, fit), np.where(whole, island, 0)]


def first_of(keys: list[Ints], may: Bools, count: int) -> Bools:
    """The `count` best cards of every line, fewer where it may not take so many. Shape (..., cards)."""
    order = np.lexsort(tuple(reversed(keys)), axis=-1)
    best = order[..., :count]
    chosen: Bools = np.zeros(may.shape, dtype=np.bool_)
    np.put_along_axis(chosen, best, np.take_along_axis(may, best, axis=-1), axis=-1)
    return chosen


def left_after(free: Ints, home: Ints, share: Ints, chosen: Bools) -> Ints:
    """`free` once the chosen cards are taken. A part takes of the card in column `home`. Shape (nodes, cards)."""
    after = free.copy()
    line, column = np.nonzero(chosen)
    np.subtract.at(after, (line, home[line, column]), share[line, column])
    after[after <= 2] = 0  # thirds do not add up in millionths
    return after


def _count_by(island: Ints, members: Bools, width: int) -> Ints:
    """For every card how many members its island has."""
    lines = int(np.prod(island.shape[:-1], dtype=np.int64))
    flat = np.where(members, island, 0).reshape(lines, width) + width * np.arange(lines)[:, None]
    counts = np.bincount(flat.ravel(), weights=members.ravel(), minlength=lines * width).astype(np.int64)
    found: Ints = np.take_along_axis(counts.reshape(island.shape), np.maximum(island, 0), axis=-1)
    return found

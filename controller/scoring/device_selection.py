"""The cards that a request would take of many nodes at once: the card choice of `fair-share`, as
arrays.

Called by `scoring.free_capacity` (all candidate nodes) and by `scoring.chooser` (the node that is
searched): one rule for both, so that a node is judged by the cards that it will give. Pure.

The rule (docs/design/packing.md): break no idle card if a used one has room, then the tightest fit. Whole
cards come from the smallest island that holds them all; else from the largest ones. Equal cards in
their order.
"""

import numpy as np

from controller.inventory.roles import WHOLE_CARD
from hami_dra.api.arrays import Bools, Ints

_NEVER = np.int64(1) << 60


def fit_keys(free: Ints, share: Ints, island: Ints, may: Bools, *, scarcity: Ints, count: int) -> list[Ints]:
    """Return the keys that cards are ordered by, most important first, lower is better. Arrays of
    one shape (..., cards).

    `free` and `share` in millionths; `island`: a number below the number of cards; `may`: the
    request may take the card; `scarcity`: millionths of a card that are added because the card is
    scarce. Cards that it may not take come last.

    First key: what the choice breaks off an idle card (the rest of it), below 0 on a used card
    (which fills up). For 0.3 of a card, of three cards an idle one, one with 0.5 and one with 0.4
    left: both used ones tie at -0.3, then `fit` prefers the tighter 0.4:

    >>> free, share = np.array([1_000_000, 500_000, 400_000]), np.full(3, 300_000)
    >>> any_card, no_scarcity = np.ones(3, dtype=bool), np.zeros(3, dtype=np.int64)
    >>> breaks, fit = fit_keys(free, share, np.arange(3), any_card, scarcity=no_scarcity, count=1)
    >>> breaks.tolist(), (fit - fit.min()).tolist()
    ([700000, -300000, -300000], [600000, 100000, 0])

    Whole cards compare by island: one with enough members counts its size, one without 2 * width -
    members, which is more than any size that is enough (at most width) and prefers the larger.
    Parts of cards count 3 * width + what is left, so that they come after whole cards. Two cards
    from islands of 3, 2 and 1 of 6 cards: the island of 2 is first.

    >>> free = share = np.full(6, 1_000_000)
    >>> any_card, no_scarcity = np.ones(6, dtype=bool), np.zeros(6, dtype=np.int64)
    >>> island = np.array([0, 0, 0, 3, 3, 5])
    >>> _, size, _ = fit_keys(free, share, island, any_card, scarcity=no_scarcity, count=2)
    >>> size.tolist()
    [3, 3, 3, 2, 2, 11]
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
    """Return a mask of the `count` best cards of every line, fewer if it may not take as many.
    Shape (..., cards).

    >>> first_of([np.array([[3, 1, 2]])], np.array([[True, True, False]]), 2).tolist()
    [[False, True, False]]
    """
    order = np.lexsort(tuple(reversed(keys)), axis=-1)
    best = order[..., :count]
    chosen: Bools = np.zeros(may.shape, dtype=np.bool_)
    np.put_along_axis(chosen, best, np.take_along_axis(may, best, axis=-1), axis=-1)
    return chosen


def left_after(free: Ints, home: Ints, share: Ints, chosen: Bools) -> Ints:
    """Return `free` after the chosen cards are taken. A part takes of the card in column `home`.
    Shape (nodes, cards).

    A card with two parts of a half, both taken:

    >>> free, home = np.array([[1_000_000, 0, 0]]), np.array([[0, 0, 0]])
    >>> share, chosen = np.array([[0, 500_000, 500_000]]), np.array([[False, True, True]])
    >>> left_after(free, home, share, chosen).tolist()
    [[0, 0, 0]]
    """
    after = free.copy()
    line, column = np.nonzero(chosen)
    np.subtract.at(after, (line, home[line, column]), share[line, column])
    after[after <= 2] = 0  # thirds do not add up in millionths
    return after


def _count_by(island: Ints, members: Bools, width: int) -> Ints:
    """Return for every card the number of `members` of its island.

    Lines are numbered through, so that one `bincount` counts the islands of all lines: island i of
    line n is i + width * n.

    >>> island = np.array([[0, 0, 2], [1, 1, 1]])
    >>> _count_by(island, np.array([[True, False, True], [True, True, True]]), 3).tolist()
    [[1, 1, 1], [3, 3, 3]]
    """
    lines = int(np.prod(island.shape[:-1], dtype=np.int64))
    flat = np.where(members, island, 0).reshape(lines, width) + width * np.arange(lines)[:, None]
    counts = np.bincount(flat.ravel(), weights=members.ravel(), minlength=lines * width).astype(np.int64)
    found: Ints = np.take_along_axis(counts.reshape(island.shape), np.maximum(island, 0), axis=-1)
    return found

"""Packing of each driver's cards: figures for metrics, `status` and the dashboard.

Called with an inventory, or with a `CardTable` that the caller keeps between calls (cheaper: 40,000
cards in milliseconds). Out: one `Packing` for each driver that has cards. Pure; over columns only.

Definitions

- Free part of a card: the least of (total - used) / total over the roles that its driver publishes
  (shares, cores, memory): a card whose slots or cores are all taken is full, whatever memory is
  left. Held parts of the card (MIG) count as used.
- `free_capacity`: G, the sum of free parts over the usable cards.
- `fragmentation`: P / G, with P the sum of free parts over partly held cards. So 0.0 if all free
  capacity is in whole cards (or nothing is free), 1.0 if no whole card is left. It is the fragment
  measure of Weng et al., "Beware of Fragmentation" (USENIX ATC'23, section 3), as a share of the
  idle capacity, for a workload of tasks that each request one whole card: for these, a node's
  fragment is the sum of the free parts on cards that are not entirely free.
- `free_islands[k]`: the sum over islands (`linkGroup` of one node) of floor(free cards / k): the
  number of requests for k linked cards that could be met at once, one size at a time. Cards in no
  island are in no group. On machines whose islands are meshes (DGX-1) k cards of an island need not
  all be linked to one another.
- `empty_nodes`: all cards of this driver on the node are free.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from controller.cluster.incremental import sums
from controller.views.overview.card_table import CardTable, vendor_name
from controller.views.overview.model import Packing
from hami_dra.api.arrays import Bools, Floats, Ints, Positions

ISLAND_SIZES: Final = (2, 4, 8)


def packing(table: CardTable) -> tuple[Packing, ...]:
    """Refresh the table and return the present figures, in the order of `ordered_drivers`."""
    table.refresh()
    rows = table.cards
    if not len(rows):
        return ()
    devices = table.inventory.devices
    count = len(table.drivers)
    driver = table.driver[rows]
    usable, held, free = table.usable[rows], table.held[rows], table.free[rows]
    left = _free_part(table, rows)
    full = usable & held & (left <= 0.0)
    partly = usable & held & (left > 0.0)
    empty_nodes, nodes = _nodes(table, rows)
    islands = {size: _islands(table, rows[free], size) for size in ISLAND_SIZES}

    def cards(mask: Bools) -> Ints:
        return np.bincount(driver[mask], minlength=count)

    def amount(column: Ints) -> list[int]:
        return sums(driver, column[rows], count)

    capacity = np.bincount(driver, weights=np.where(usable, left, 0.0), minlength=count)
    broken = np.bincount(driver, weights=np.where(partly, left, 0.0), minlength=count)
    columns: dict[str, Sequence[int] | Ints] = {
        "cards": np.bincount(driver, minlength=count),
        "usable_cards": cards(usable),
        "free_cards": cards(free),
        "partly_used_cards": cards(partly),
        "full_cards": cards(full),
        "nodes": nodes,
        "empty_nodes": empty_nodes,
        "memory_total": amount(devices.memory_total),
        "memory_used": amount(table.memory_used),
        "cores_total": amount(devices.cores_total),
        "cores_used": amount(table.cores_used),
        "shares_total": amount(devices.slots_total),
        "shares_used": amount(table.slots_used),
    }
    return tuple(
        Packing(
            driver=table.drivers[number],
            vendor=vendor_name(table.drivers[number]),
            free_islands={size: int(found[number]) for size, found in islands.items()},
            free_capacity=round(float(capacity[number]), 6),
            fragmentation=float(broken[number] / capacity[number]) if capacity[number] > 0 else 0.0,
            **{name: int(column[number]) for name, column in columns.items()},
        )
        for number in table.ordered_drivers()
    )


def linked_sizes(table: CardTable) -> dict[str, tuple[int, ...]]:
    """Return which of ISLAND_SIZES each driver's linked cards could form if all were free, as last refreshed."""
    totals = {size: _islands(table, table.cards, size) for size in ISLAND_SIZES}
    return {
        driver: tuple(size for size, groups in totals.items() if groups[number])
        for number, driver in enumerate(table.drivers)
    }


def _free_part(table: CardTable, rows: Positions) -> Floats:
    """Return the free part of each card, 0.0 to 1.0, shape (rows,). One whose parts are held is full for others."""
    devices = table.inventory.devices
    left = np.ones(len(rows))
    for total, used in (
        (devices.slots_total, table.slots_used),
        (devices.cores_total, table.cores_used),
        (devices.memory_total, table.memory_used),
    ):
        whole = total[rows]
        share = np.divide(whole - used[rows], whole, out=np.ones(len(rows)), where=whole > 0)
        left = np.minimum(left, np.clip(share, 0.0, 1.0))
    left[devices.exclusive[rows]] = 0.0
    return left


def _nodes(table: CardTable, rows: Positions) -> tuple[Ints, Ints]:
    """Return per driver the nodes whose cards are all free, and those with cards; not shared devices."""
    count = len(table.drivers)
    rows = rows[table.inventory.devices.node[rows] >= 0]
    pairs = table.inventory.devices.node[rows] * count + table.driver[rows]
    found, place = np.unique(pairs, return_inverse=True)
    taken = np.bincount(place, weights=~table.free[rows], minlength=len(found))
    return np.bincount(found[taken == 0] % count, minlength=count), np.bincount(found % count, minlength=count)


def _islands(table: CardTable, free: Positions, size: int) -> Ints:
    """Return the number of groups of `size` linked free cards by driver. `free`: rows of free cards."""
    count = len(table.drivers)
    rows = free[(table.island[free] > 0) & (table.inventory.devices.node[free] >= 0)]
    numbers, island = np.unique(table.island[rows], return_inverse=True)
    keys = (table.inventory.devices.node[rows] * count + table.driver[rows]) * max(len(numbers), 1) + island
    groups, cards = np.unique(keys, return_counts=True)
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, groups // max(len(numbers), 1) % count, cards // size)
    return sums

"""How the candidate nodes compare before any is searched: what the vendors say of the sets they could give, and which
alternatives of prioritized lists they could meet.

Called by `decide` once the candidates are known. Works on the columns of all candidates at once: nodes whose cards look alike
are asked about once, and the vendors' answers are kept. What it says is an estimate from above: the search on the node itself
may find less (constraints, counters), and `decide` then goes on to the next. Pure.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from controller.allocation.prefilter import RequestColumns
from controller.allocation.request import RequestGroup, RequestView
from controller.inventory.columns import Bools
from controller.inventory.inventory import Inventory
from controller.scoring.chooser import arranging_drivers
from controller.scoring.formulas import Floats
from controller.scoring.policies import Policies
from controller.scoring.scenes import cells_of, scene_of
from hami_dra.vendors.protocol import Cell, Codes, Ints, PartUse, Positions, Scene, Vendor
from hami_dra.vendors.registry import VENDORS

PRIORITIZED_LIST_SIZE: Final = 8
"""FirstAvailableDeviceRequestMaxSize: upstream scores 8 - position of the alternative."""
_ANSWERS_KEPT: Final = 1 << 16
_HOPELESS: Final = -1e12

Wanted = list[tuple[RequestGroup, list[RequestColumns]]]


@dataclass(slots=True)
class Outlook:
    """Columns of shape (nodes.size,); only candidates have values."""

    rank: Ints
    """Upstream's score of prioritized lists, summed; higher is better."""
    topology: Floats
    """What the vendors say, summed over the requests; higher is better."""
    tie: Floats
    """The same between nodes that are equal to the node policy too."""
    refused: dict[str, Bools] = field(default_factory=dict)
    """Reason code → candidates where no set of cards is legal."""


def look_out(inventory: Inventory, policies: Policies, wanted: Wanted, candidates: Bools, *, rules: bool) -> Outlook:
    """`wanted`: every request of ours with the columns of its alternatives. `rules`: ask the vendors at all."""
    size = inventory.nodes.size
    outlook = Outlook(
        np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.float64), np.zeros(size, dtype=np.float64)
    )
    drivers = arranging_drivers(policies) if rules else frozenset[str]()
    if not drivers and not any(group.prioritized for group, _ in wanted):
        return outlook
    chosen = np.flatnonzero(candidates)
    asked: list[_Asked] = []
    for group, columns in wanted:
        alternative = _first_alternative(group, columns, chosen)
        if group.prioritized:
            outlook.rank[chosen] += PRIORITIZED_LIST_SIZE - alternative
        for number, (view, column) in enumerate(zip(group.alternatives, columns, strict=True)):
            mine = alternative == number
            if drivers and mine.any() and not view.all_devices and not view.admin_access:
                asked += [
                    _Asked(inventory, policies, vendor, view=view, column=column, nodes=chosen, mine=mine)
                    for vendor in VENDORS
                    if vendor.profile.driver in drivers
                ]
    asked = [each for each in asked if each.says.any()]
    if asked:
        _ask(outlook, asked, chosen, size)
    return outlook


def _first_alternative(group: RequestGroup, columns: list[RequestColumns], nodes: Positions) -> Ints:
    """Per node the first alternative that it may meet; the last where it can meet none. Shape of `nodes`."""
    found = np.full(len(nodes), len(columns) - 1, dtype=np.int64)
    for number in reversed(range(len(columns))):
        view = group.alternatives[number]
        enough = np.True_ if view.all_devices else columns[number].enough(view.count)[nodes]
        found[np.broadcast_to(enough, found.shape)] = number
    return found


class _Asked:
    """One request, one vendor, all candidate nodes: `cells` and `states` of shape (nodes, widest layout)."""

    def __init__(
        self,
        inventory: Inventory,
        policies: Policies,
        vendor: Vendor,
        *,
        view: RequestView,
        column: RequestColumns,
        nodes: Positions,
        mine: Bools,
    ) -> None:
        self.vendor = vendor
        self.view = view
        self._policies = policies
        self._layouts = inventory.layouts
        self.layout = inventory.layouts.numbers(vendor.profile.driver)[nodes]
        self.says = mine & (self.layout >= 0)
        self.parts: Bools = np.zeros(len(nodes), dtype=np.bool_)
        if not self.says.any():
            return
        devices, position = inventory.devices, inventory.layouts.position
        place = np.full(inventory.nodes.size, -1, dtype=np.int64)
        place[nodes[self.says]] = np.flatnonzero(self.says)
        rows = np.flatnonzero((devices.node[: devices.size] >= 0) & devices.active[: devices.size])
        rows = rows[place[devices.node[rows]] >= 0]
        eligible = column.codes[rows] == 0
        of_vendor = _of_driver(inventory, vendor)[devices.kind[rows]]
        known = of_vendor & (position[rows] >= 0)
        # where other vendors' devices would do as well, the vendor cannot tell which cards are the choice
        self.says &= np.bincount(place[devices.node[rows[eligible & ~of_vendor]]], minlength=len(nodes)) == 0
        # parts of cards are no cards, but may be taken instead
        self.parts = np.bincount(place[devices.node[rows[eligible & of_vendor & ~known]]], minlength=len(nodes)) > 0
        rows, eligible = rows[known], eligible[known]
        where = place[devices.node[rows]], position[rows]
        width = int(position[rows].max(initial=0)) + 1
        self.cells: Codes = np.zeros((len(nodes), width), dtype=np.uint8)
        self.states: Codes = np.zeros((len(nodes), width), dtype=np.uint8)
        nobody = np.zeros(len(rows), dtype=np.bool_)
        self.cells[where] = cells_of(eligible, devices.slots_used[rows] == 0, nobody)
        ask = column.ask(rows)
        for amounts in (ask.slots, ask.cores, ask.memory):
            amounts[~eligible] = 0
        self.states[where] = vendor.states(devices.cards(rows), ask)

    def key(self) -> npt.NDArray[np.uint8]:
        """Bytes per node: nodes with equal ones are alike to this request."""
        numbers = np.where(self.says, self.layout, -1).astype(np.int32)
        parts = self.parts.astype(np.uint8)[:, None]
        table = np.concatenate(
            (numbers[:, None].view(np.uint8).reshape(len(numbers), 4), parts, self.cells, self.states), axis=1
        )
        table[~self.says, 4:] = 0
        return table

    def scene(self, node: int, mine: int, taken: int) -> Scene:
        """`node`: position among the candidates. `mine`: cards of the pod's earlier requests; `taken`: the whole ones."""
        layout = self._layouts.numbered(int(self.layout[node]))
        cells = self.cells[node, : layout.size].copy()
        for position in range(layout.size):
            if mine >> position & 1:
                cells[position] = (cells[position] | Cell.MINE) & ~Cell.IDLE
            if taken >> position & 1:
                cells[position] &= ~Cell.ELIGIBLE
        states = self.states[node, : layout.size]
        return scene_of(
            layout,
            cells,
            states,
            self.view.count,
            policies=self._policies,
            vendor=self.vendor,
            request=self.view,
        )

    @property
    def takes_whole_cards(self) -> bool:
        """Nothing of a card is left for the pod's later requests, as far as capacities tell."""
        return not self.view.names_amounts


def _of_driver(inventory: Inventory, vendor: Vendor) -> Bools:
    return np.array(
        [sample.id.driver == vendor.profile.driver for sample in inventory.devices.kind_samples], dtype=np.bool_
    )


def _ask(outlook: Outlook, asked: list[_Asked], nodes: Positions, size: int) -> None:
    """Each group of nodes that are alike to all requests is judged once."""
    table = np.ascontiguousarray(np.concatenate([each.key() for each in asked], axis=1))
    rows = table.view(np.dtype((np.void, table.shape[1]))).ravel()
    _, first, group = np.unique(rows, return_index=True, return_inverse=True)
    scores = np.zeros((len(first), 2), dtype=np.float64)
    codes = [""] * len(first)
    for number, node in enumerate(first.tolist()):
        *scores[number], codes[number] = _judge(asked, node)
    outlook.topology[nodes], outlook.tie[nodes] = scores[group].T
    for code in sorted({code for code in codes if code}):
        refused = np.zeros(size, dtype=np.bool_)
        refused[nodes[np.array([each == code for each in codes])[group]]] = True
        outlook.refused[code] = refused


def _judge(asked: list[_Asked], node: int) -> tuple[float, float, str]:
    """The best that a node has for all requests in turn (score, tie), or the reason why it has nothing."""
    total = tie = 0.0
    mine: dict[str, int] = {}
    taken: dict[str, int] = {}
    for each in asked:
        if not each.says[node]:
            continue
        driver = each.vendor.profile.driver
        best = _best(each.vendor, each.scene(node, mine.get(driver, 0), taken.get(driver, 0)))
        if best is None:
            continue
        if best.code and best.parts and each.parts[node]:
            continue
        if best.code:
            # a later request may have been left without a set by the first choice of an earlier one: that is for the search
            return (0.0, 0.0, best.code) if not mine else (total + _HOPELESS, tie, "")
        total += best.score
        tie += best.tie
        mine[driver] = mine.get(driver, 0) | best.mask
        if each.takes_whole_cards:
            taken[driver] = taken.get(driver, 0) | best.mask
    return total, tie, ""


@dataclass(frozen=True, slots=True)
class _Best:
    score: float = 0.0
    tie: float = 0.0
    mask: int = 0
    code: str = ""
    parts: bool = False
    """Where there is no legal set, parts of cards will do."""


@lru_cache(maxsize=_ANSWERS_KEPT)
def _best(vendor: Vendor, scene: Scene) -> _Best | None:
    """A set of the first tier. None: the vendor has no say."""
    arrangement = vendor.arrange(scene)
    if arrangement is None:
        return None
    for tier in arrangement.tiers:
        return _Best(tier.score, tier.tie, tier.some(scene.count))
    return _Best(code=arrangement.refusal, parts=arrangement.parts is not PartUse.NO)

"""How the candidate nodes compare before any is searched: what the vendors say of the sets they could give, and which
alternatives of prioritized lists they could meet.

Called by `decide` once the candidates are known. Nodes whose cards look alike (`decide.node_equivalence`) are asked about once, and the
vendors' answers are kept. What it says is an estimate from above: the search on the node itself
may find less (constraints, counters), and `decide` then goes on to the next. Pure.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from controller.scheduling.allocation.ownership import matching_drivers
from controller.scheduling.allocation.prefilter import RequestColumns
from controller.scheduling.allocation.request import RequestGroup, ResolvedRequest
from controller.scheduling.decide.node_equivalence import NO_SAY, NodeClass, NodeClasses, node_classes_of
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.scoring.chooser import arranging_drivers
from controller.scheduling.scoring.free_capacity import first_alternative
from controller.scheduling.scoring.node_views import node_view_of
from controller.scheduling.scoring.policies import Policies
from hami_dra.api.arrays import Bools, Floats, Ints, Positions
from hami_dra.vendors.protocol import CardState, NodeView, PartitionUse, Vendor
from hami_dra.vendors.registry import VENDORS

PRIORITIZED_LIST_SIZE: Final = 8
"""FirstAvailableDeviceRequestMaxSize: upstream scores 8 - position of the alternative."""
_ANSWERS_KEPT: Final = 1 << 16
_HOPELESS: Final = -1e12
_COUNTED: Final = 1 << 16
"""Numbers below this are sorted by counting them."""

Wanted = list[tuple[RequestGroup, list[RequestColumns]]]


@dataclass(slots=True)
class NodeEstimates:
    """Columns of shape (nodes.size,); only candidates have values."""

    rank: Ints
    """Upstream's score of prioritized lists, summed; higher is better."""
    topology: Floats
    """What the vendors say, summed over the requests; higher is better."""
    tie: Floats
    """The same between nodes that are equal to the node policy too."""
    flat: bool
    """All nodes are alike: nobody has a say, and no list is prioritized."""
    refused: dict[str, Bools] = field(default_factory=dict)
    """Reason code → candidates where no set of cards is legal."""


def estimate_nodes(
    inventory: Inventory, policies: Policies, wanted: Wanted, candidates: Bools, *, rules: bool
) -> NodeEstimates:
    """Where `estimate_if_uniform` has none. `wanted`: every request of ours with the columns of its alternatives. `rules`: ask the vendors
    at all.
    """
    size = inventory.nodes.size
    drivers = _arranging(inventory, policies, wanted) if rules else frozenset[str]()
    estimates = NodeEstimates(
        np.zeros(size, dtype=np.int64),
        np.zeros(size, dtype=np.float64),
        np.zeros(size, dtype=np.float64),
        flat=False,
    )
    chosen = np.flatnonzero(candidates)
    asked: list[_NodeQuestion] = []
    for group, columns in wanted:
        alternative = first_alternative(group.alternatives, columns, chosen)
        if group.prioritized:
            estimates.rank[chosen] += PRIORITIZED_LIST_SIZE - alternative
        for number, (view, column) in enumerate(zip(group.alternatives, columns, strict=True)):
            mine = alternative == number
            if drivers and mine.any() and not view.all_devices and not view.admin_access:
                asked += [
                    _NodeQuestion(
                        policies, vendor, node_classes_of(inventory, vendor, column), view=view, nodes=chosen, mine=mine
                    )
                    for vendor in VENDORS
                    if vendor.profile.driver in drivers
                ]
    asked = [each for each in asked if (each.number != NO_SAY).any()]
    if asked:
        _ask(estimates, asked, chosen, size)
    return estimates


def estimate_if_uniform(
    inventory: Inventory, policies: Policies, wanted: Wanted, *, rules: bool
) -> NodeEstimates | None:
    """Where no vendor has a say, and no list is prioritized: the same for all nodes. None: they must be looked at."""
    if any(group.prioritized for group, _ in wanted) or (rules and _arranging(inventory, policies, wanted)):
        return None
    return _flat(inventory.nodes.size)


def _arranging(inventory: Inventory, policies: Policies, wanted: Wanted) -> frozenset[str]:
    """Drivers of devices that the requests select, whose vendors may have a say about sets."""
    drivers = arranging_drivers(policies) & inventory.layouts.drivers()
    if not drivers:
        return drivers
    views = [view for group, _ in wanted for view in group.alternatives]
    return drivers & frozenset[str]().union(*(matching_drivers(inventory, view) for view in views))


@lru_cache(maxsize=4)
def _flat(size: int) -> NodeEstimates:
    rank, score = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.float64)
    rank.flags.writeable = score.flags.writeable = False
    return NodeEstimates(rank, score, score, flat=True)


class _NodeQuestion:
    """One request, one vendor, all candidate nodes. `number`: of `likeness`, shape (nodes,), NO_SAY where nothing is asked."""

    def __init__(
        self,
        policies: Policies,
        vendor: Vendor,
        node_classes: NodeClasses,
        *,
        view: ResolvedRequest,
        nodes: Positions,
        mine: Bools,
    ) -> None:
        self.vendor = vendor
        self.view = view
        self.node_classes = node_classes
        self.number: Ints = np.where(mine, node_classes.number[nodes], NO_SAY)
        self._policies = policies

    def scene(self, node_class: NodeClass, mine: int, taken: int) -> NodeView:
        """`mine`: cards of the pod's earlier requests; `taken`: the whole ones."""
        cells = node_class.cells
        if mine or taken:
            cells = cells.copy()
            for position in range(len(cells)):
                if mine >> position & 1:
                    cells[position] = (cells[position] | CardState.MINE) & ~CardState.IDLE
                if taken >> position & 1:
                    cells[position] &= ~CardState.ELIGIBLE
        return node_view_of(
            node_class.layout,
            cells,
            node_class.states,
            self.view.count,
            policies=self._policies,
            vendor=self.vendor,
            request=self.view,
        )

    @property
    def takes_whole_cards(self) -> bool:
        """Nothing of a card is left for the pod's later requests, as far as capacities tell."""
        return not self.view.names_amounts


def _ask(estimates: NodeEstimates, asked: list[_NodeQuestion], nodes: Positions, size: int) -> None:
    """Each group of nodes that are alike to all requests is judged once."""
    first, group = _groups(asked)
    scores = np.zeros((len(first), 2), dtype=np.float64)
    codes = [""] * len(first)
    for number, node in enumerate(first.tolist()):
        *scores[number], codes[number] = _judge(asked, node)
    estimates.topology[nodes], estimates.tie[nodes] = scores[group].T
    for code in sorted({code for code in codes if code}):
        refused = np.zeros(size, dtype=np.bool_)
        refused[nodes[np.array([each == code for each in codes])[group]]] = True
        estimates.refused[code] = refused


def _groups(asked: list[_NodeQuestion]) -> tuple[Positions, Ints]:
    """A member of each group, and per node the number of its group."""
    combined = np.zeros(len(asked[0].number), dtype=np.int64)
    for each in asked:
        combined = combined * (len(each.node_classes) + 1) + each.number - NO_SAY
        # as small as can be again, for the next request and for what is counted by it
        present = np.flatnonzero(np.bincount(combined)) if combined.max(initial=0) < _COUNTED else np.unique(combined)
        combined = np.searchsorted(present, combined)
    member = np.zeros(int(combined.max(initial=-1)) + 1, dtype=np.intp)
    member[combined] = np.arange(len(combined))
    return member, combined


def _judge(asked: list[_NodeQuestion], node: int) -> tuple[float, float, str]:
    """The best that a node has for all requests in turn (score, tie), or the reason why it has nothing."""
    total = tie = 0.0
    mine: dict[str, int] = {}
    taken: dict[str, int] = {}
    for each in asked:
        number = int(each.number[node])
        if number == NO_SAY:
            continue
        node_class = each.node_classes[number]
        driver = each.vendor.profile.driver
        best = _best(each.vendor, each.scene(node_class, mine.get(driver, 0), taken.get(driver, 0)))
        if best is None:
            continue
        if best.code and best.parts and node_class.parts:
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
def _best(vendor: Vendor, scene: NodeView) -> _Best | None:
    """A set of the first tier. None: the vendor has no say."""
    arrangement = vendor.arrange(scene)
    if arrangement is None:
        return None
    for tier in arrangement.tiers:
        return _Best(tier.score, tier.tie, tier.some(scene.count))
    return _Best(code=arrangement.refusal, parts=arrangement.parts is not PartitionUse.NO)

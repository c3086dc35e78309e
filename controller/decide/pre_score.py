"""Upper bounds of the candidate nodes before any is searched: the vendors' score of the sets of
cards that each node could give, and the alternatives of prioritized lists that it could meet.

Called by `decide` once the candidates are known. Vendors score each class of equivalent
nodes (`decide.node_equivalence`), and their answers are cached. The search on the node itself may
find less (constraints, counters); `decide` then goes on to the next node. Pure.
"""

from functools import lru_cache
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from controller.allocation.ownership import matching_drivers
from controller.allocation.prefilter import RequestColumns
from controller.allocation.request import RequestGroup, ResolvedRequest
from controller.decide.node_equivalence import NO_SAY, NodeClass, NodeClasses, node_classes_of
from controller.inventory.inventory import Inventory
from controller.scoring.chooser import arranging_drivers
from controller.scoring.free_capacity import first_alternative
from controller.scoring.node_views import node_view_of
from controller.scoring.policies import Policies
from hami_dra.api.arrays import Bools, Floats, Ints, Positions
from hami_dra.vendors.protocol import CardState, NodeView, PartitionUse, Vendor
from hami_dra.vendors.registry import VENDORS

PRIORITIZED_LIST_SIZE: Final = 8
"""FirstAvailableDeviceRequestMaxSize: upstream scores 8 - position of the alternative."""
_ANSWERS_KEPT: Final = 1 << 16
_INFEASIBLE: Final = -1e12
_COUNTED: Final = 1 << 16
"""Numbers below this are sorted by counting them."""

Wanted = list[tuple[RequestGroup, list[RequestColumns]]]


class NodeEstimates(Struct):
    """Columns of shape (nodes.size,); only candidates have values."""

    rank: Ints
    """Upstream's score of prioritized lists, summed over the requests; higher is better."""
    topology: Floats
    """The vendors' score, summed over the requests; higher is better."""
    tie: Floats
    """The vendors' score that decides between nodes equal by the node policy too."""
    flat: bool
    """All nodes have equal estimates: no vendor scores them, and no list is prioritized."""
    preference: Ints | None = None
    """What the pod prefers of nodes, exact; higher is better. None: nothing."""
    refused: dict[str, Bools] = field(default_factory=dict)
    """Reason code → candidates where no set of cards is legal."""

    def preference_of(self, node: int) -> int:
        return int(self.preference[node]) if self.preference is not None else 0


def estimate_nodes(
    inventory: Inventory, policies: Policies, wanted: Wanted, candidates: Bools, drivers: frozenset[str]
) -> NodeEstimates:
    """Return the estimates where `estimate_if_uniform` has none.

    `wanted`: every managed request with the columns of its alternatives. `drivers`: those whose
    vendors score sets (`arranging_of`). A prioritized list gives a node 8 points if its first
    alternative can be met there, 7 if only the second can, and so on.
    """
    size = inventory.nodes.size
    estimates = NodeEstimates(
        np.zeros(size, dtype=np.int64),
        np.zeros(size, dtype=np.float64),
        np.zeros(size, dtype=np.float64),
        flat=False,
    )
    chosen = np.flatnonzero(candidates)
    questions: list[_NodeQuestion] = []
    for group, columns in wanted:
        alternative = first_alternative(group.alternatives, columns, chosen)
        if group.prioritized:
            estimates.rank[chosen] += PRIORITIZED_LIST_SIZE - alternative
        for number, (view, column) in enumerate(zip(group.alternatives, columns, strict=True)):
            own = alternative == number
            if drivers and own.any() and not view.all_devices and not view.admin_access:
                questions += [
                    _NodeQuestion(
                        policies, vendor, node_classes_of(inventory, vendor, column), view=view, nodes=chosen, own=own
                    )
                    for vendor in VENDORS
                    if vendor.profile.driver in drivers
                ]
    questions = [each for each in questions if (each.number != NO_SAY).any()]
    if questions:
        _ask(estimates, questions, chosen, size)
    return estimates


def without_legal_set(
    inventory: Inventory,
    policies: Policies,
    view: ResolvedRequest,
    column: RequestColumns,
    *,
    nodes: Positions,
    drivers: frozenset[str],
    count: int,
) -> Bools:
    """Return which of the nodes have no legal set of `count` devices by the vendors' rules, even if
    all their devices were idle. Shape (len(nodes),).
    """
    refused = np.zeros(len(nodes), dtype=np.bool_)
    every = np.ones(len(nodes), dtype=np.bool_)
    for vendor in VENDORS:
        if vendor.profile.driver not in drivers:
            continue
        classes = node_classes_of(inventory, vendor, column, idle=True)
        question = _NodeQuestion(policies, vendor, classes, view=view, nodes=nodes, own=every)
        for number in {*question.number.tolist()} - {NO_SAY}:
            best = _best(vendor, replace(question.node_view(classes[number], 0, 0), count=count))
            if best is not None and best.code and not (best.parts and classes[number].parts):
                refused |= question.number == number
    return refused


def estimate_if_uniform(inventory: Inventory, wanted: Wanted, drivers: frozenset[str]) -> NodeEstimates | None:
    """Return estimates that are equal for all nodes, or None where the nodes must be evaluated.

    They are equal where no vendor scores the nodes and no list is prioritized.
    """
    if drivers or any(group.prioritized for group, _ in wanted):
        return None
    return _flat(inventory.nodes.size)


Estimate = tuple[int, float, int]
"""(rank of prioritized lists, vendors' score, preference) of a node; higher is better."""


def most_promising(candidates: Ints, estimates: NodeEstimates) -> tuple[Estimate, Ints]:
    """Return the best estimate of the candidates, and the candidates that have it.

    `candidates`: not empty. The rank decides first, the score among equal ranks, the preference
    among equal scores:

    >>> rank, score = np.array([8, 8, 7]), np.array([1.0, 2.0, 9.0])
    >>> estimates = NodeEstimates(rank, score, np.zeros(3), flat=False)
    >>> best_estimate, rows = most_promising(np.array([0, 1, 2]), estimates)
    >>> best_estimate, rows.tolist()
    ((8, 2.0, 0), [1])
    """
    rank, score, preference = 0, 0.0, 0
    if not estimates.flat:
        rank, candidates = _highest(estimates.rank, candidates)
        score, candidates = _highest(estimates.topology, candidates)
    if estimates.preference is not None:
        preference, candidates = _highest(estimates.preference, candidates)
    return (int(rank), float(score), int(preference)), candidates


def _highest(column: Any, candidates: Ints) -> tuple[Any, Ints]:
    """Return the highest value of the candidates, and the candidates that have it."""
    values = column[candidates]
    highest = values.max()
    return highest, candidates[values == highest]


def arranging_of(inventory: Inventory, policies: Policies, wanted: Wanted) -> frozenset[str]:
    """Return the drivers of selectable devices whose vendors may score sets of cards."""
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
    """One request, one vendor, all candidate nodes.

    `number`: the node classes' numbers, shape (nodes,), NO_SAY where the vendor is not asked.
    """

    def __init__(
        self,
        policies: Policies,
        vendor: Vendor,
        node_classes: NodeClasses,
        *,
        view: ResolvedRequest,
        nodes: Positions,
        own: Bools,
    ) -> None:
        self.vendor = vendor
        self.view = view
        self.node_classes = node_classes
        self.number: Ints = np.where(own, node_classes.number[nodes], NO_SAY)
        self._policies = policies

    def node_view(self, node_class: NodeClass, own: int, taken: int) -> NodeView:
        """Return the node as the vendor sees it for this request.

        `own`, `taken`: bit masks by position, of the cards that the pod's earlier requests use,
        and of those they use whole. With own = 0b011 and taken = 0b001 the cards 0 and 1 are OWN
        and no longer IDLE, and card 0 is no longer ELIGIBLE.
        """
        card_states = node_class.card_states
        if own or taken:
            card_states = card_states.copy()
            for position in range(len(card_states)):
                if own >> position & 1:
                    card_states[position] = (card_states[position] | CardState.OWN) & ~CardState.IDLE
                if taken >> position & 1:
                    card_states[position] &= ~CardState.ELIGIBLE
        return node_view_of(
            node_class.layout,
            card_states,
            node_class.states,
            self.view.count,
            policies=self._policies,
            vendor=self.vendor,
            request=self.view,
        )

    @property
    def takes_whole_cards(self) -> bool:
        """Nothing of a card is left for the pod's later requests, judging by the capacities they name."""
        return not self.view.names_amounts


def _ask(estimates: NodeEstimates, questions: list[_NodeQuestion], nodes: Positions, size: int) -> None:
    """Fill in the estimates; each group of nodes that are equivalent for all requests is judged once."""
    first, group = _groups(questions) if len(questions) > 1 else _classes(questions[0])
    scores = np.zeros((2, len(first)), dtype=np.float64)
    codes = [""] * len(first)
    for number, node in enumerate(first.tolist()):
        if node < 0:
            continue
        *scores[:, number], codes[number] = _judge(questions, node)
    estimates.topology[nodes], estimates.tie[nodes] = scores[:, group]
    for code in sorted({code for code in codes if code}):
        refused = np.zeros(size, dtype=np.bool_)
        refused[nodes[np.array([each == code for each in codes])[group]]] = True
        estimates.refused[code] = refused


def _classes(question: _NodeQuestion) -> tuple[Positions, Ints]:
    """Return a member of each class of nodes, and per node the number of its class; members of classes
    without nodes are -1.
    """
    group = question.number - NO_SAY
    member = np.full(len(question.node_classes) + 1, -1, dtype=np.intp)
    member[group] = np.arange(len(group))
    return member, group


def _groups(questions: list[_NodeQuestion]) -> tuple[Positions, Ints]:
    """Return a member of each group of equivalent nodes, and per node the number of its group.

    Two nodes are in one group if every question has equal numbers for them. The numbers of a node
    are the digits of one combined number (mixed radix: question i has len(node_classes) + 1 digits,
    0 for NO_SAY). After each digit the combined numbers are replaced by their positions among those
    that occur, so that they stay below the number of nodes and never overflow:

    >>> from types import SimpleNamespace as Question
    >>> first = Question(node_classes="ab", number=np.array([0, 0, 1, 1, 0]))
    >>> second = Question(node_classes="abc", number=np.array([2, 2, 0, NO_SAY, NO_SAY]))
    >>> member, group = _groups([first, second])

    The first digits are [1, 1, 2, 2, 1], renumbered [0, 0, 1, 1, 0]; times 4 plus the second digits
    [3, 3, 1, 0, 0] this is [3, 3, 5, 4, 0]:

    >>> group.tolist()
    [1, 1, 3, 2, 0]
    >>> member.tolist()     # the last node of each group
    [4, 1, 3, 2]
    """
    combined = np.zeros(len(questions[0].number), dtype=np.int64)
    for each in questions:
        combined = combined * (len(each.node_classes) + 1) + each.number - NO_SAY
        # Renumber densely, before the next digit and for `bincount`.
        present = np.flatnonzero(np.bincount(combined)) if combined.max(initial=0) < _COUNTED else np.unique(combined)
        combined = np.searchsorted(present, combined)
    member = np.zeros(int(combined.max(initial=-1)) + 1, dtype=np.intp)
    member[combined] = np.arange(len(combined))
    return member, combined


def _judge(questions: list[_NodeQuestion], node: int) -> tuple[float, float, str]:
    """Return the best (score, tie) of a node for all requests in turn, or the reason code why it has no legal set."""
    total = tie = 0.0
    own: dict[str, int] = {}
    taken: dict[str, int] = {}
    for each in questions:
        number = int(each.number[node])
        if number == NO_SAY:
            continue
        node_class = each.node_classes[number]
        driver = each.vendor.profile.driver
        best = _best(each.vendor, each.node_view(node_class, own.get(driver, 0), taken.get(driver, 0)))
        if best is None:
            continue
        # No legal set of whole cards, but parts of cards may do: the search decides.
        if best.code and best.parts and node_class.parts:
            continue
        if best.code:
            # The choice for an earlier request may have left this one without a set: the search may
            # choose otherwise.
            return (0.0, 0.0, best.code) if not own else (total + _INFEASIBLE, tie, "")
        total += best.score
        tie += best.tie
        own[driver] = own.get(driver, 0) | best.mask
        if each.takes_whole_cards:
            taken[driver] = taken.get(driver, 0) | best.mask
    return total, tie, ""


class _Best(Struct, frozen=True):
    score: float = 0.0
    tie: float = 0.0
    mask: int = 0
    code: str = ""
    parts: bool = False
    """If there is no legal set, parts of cards will do."""


@lru_cache(maxsize=_ANSWERS_KEPT)
def _best(vendor: Vendor, node_view: NodeView) -> _Best | None:
    """Return a set of the first tier, or None if the vendor does not score sets."""
    arrangement = vendor.arrange(node_view)
    if arrangement is None:
        return None
    for tier in arrangement.tiers:
        return _Best(tier.score, tier.tie, tier.some(node_view.count))
    return _Best(code=arrangement.refusal, parts=arrangement.parts is not PartitionUse.NO)

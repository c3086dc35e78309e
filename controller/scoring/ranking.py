"""The comparison of fitting nodes by the pod's node policy: one column of values, and the matching
order of cards.

Called by `decide` once the candidates are known, and by `scoring.chooser` for the cards of the node
that is searched. HAMi's `binpack` and `spread` read the column that the inventory keeps;
`fair-share` judges every node by the state it would be in with the pod
(`scoring.device_selection`), in columns per shape of request that are updated for nodes that
changed. Pure.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from controller.allocation.request import ResolvedRequest
from controller.cluster.pod_resources import pod_requests
from controller.inventory.inventory import Inventory
from controller.scoring.device_selection import fit_keys
from controller.scoring.fair_share import CardTotals, Cost, UsableCapacity, cost
from controller.scoring.formulas import sort_sign
from controller.scoring.free_capacity import NodeDevices, Wanted, after_placement, card_grid_of
from controller.scoring.policies import Policies
from hami_dra.api import names
from hami_dra.api.arrays import Floats, Ints
from hami_dra.api.core import Pod

_HAMI_UNIT: Final = 10.0
"""Weight of a card's worth of scarcity relative to HAMi's node score, which is between 0 and 30."""


class Ranking(Protocol):
    """The ranking of all nodes for one pod."""

    values: Floats
    """Shape (nodes.size,); the policy says what is best: the lowest for `spread`, else the highest."""

    def terms(self, node: int) -> list[tuple[str, float]]:
        """Return the summands of a node's value, by name."""

    def card_keys(self, request: ResolvedRequest, line: NodeDevices) -> list[Ints] | None:
        """Return the keys that the cards of a node are ordered by, most important first, lower is
        better. None: the device policy.
        """


class NodeRanker(Protocol):
    def __call__(self, inventory: Inventory, policies: Policies, pod: Pod, wanted: Wanted, /) -> Ranking: ...


def reads_stored_score(policies: Policies) -> bool:
    """Whether nodes are compared by what the inventory stores, regardless of the pod: the ranking is `Plain`."""
    return not policies.weighs_packing


def rank_nodes(inventory: Inventory, policies: Policies, pod: Pod, wanted: Wanted) -> Ranking:
    """Return the ranking by the pod's policies. `wanted`: the requests that are still to be met."""
    if reads_stored_score(policies):
        return Plain(inventory)
    if policies.has_ranking:
        return RANKINGS[policies.node_policy](inventory, policies, pod, wanted)
    return _Hami(inventory, policies, wanted) if wanted else Plain(inventory)


class Plain:
    """HAMi's node score, as stored in the inventory."""

    def __init__(self, inventory: Inventory) -> None:
        self.values: Floats = inventory.nodes.score

    def terms(self, node: int) -> list[tuple[str, float]]:
        return [("used", float(self.values[node]))]

    def card_keys(self, request: ResolvedRequest, line: NodeDevices) -> list[Ints] | None:  # noqa: ARG002 (the protocol's signature)
        return None


class _Hami(Plain):
    """HAMi's node score, with a cost for scarce cards."""

    def __init__(self, inventory: Inventory, policies: Policies, wanted: Wanted) -> None:
        super().__init__(inventory)
        self._used = self.values
        self._scarce = _HAMI_UNIT * after_placement(inventory, policies.packing, wanted).scarce
        self.values = self._used + sort_sign(policies.node_policy) * self._scarce

    def terms(self, node: int) -> list[tuple[str, float]]:
        return [("used", float(self._used[node])), ("scarce", float(self._scarce[node]))]


class _FairShare:
    def __init__(self, inventory: Inventory, policies: Policies, pod: Pod, wanted: Wanted) -> None:
        nodes = inventory.nodes
        self._after = after_placement(inventory, policies.packing, wanted)
        grid = card_grid_of(inventory)
        requests = pod_requests(pod)
        cpu, memory = (
            UsableCapacity(nodes.offers(each), inventory.rules.left(pod, each)) for each in ("cpu", "memory")
        )
        before = CardTotals(
            grid.cards[: nodes.size], grid.node_free[: nodes.size], grid.node_partial[: nodes.size], cpu, memory
        )
        after = CardTotals(
            before.cards,
            self._after.free,
            self._after.partial,
            cpu.after(requests["cpu"]),
            memory.after(requests["memory"]),
        )
        self._cost: Cost = cost(before, after, policies.packing)
        self.values: Floats = -(self._cost.total + self._after.scarce)

    def terms(self, node: int) -> list[tuple[str, float]]:
        parts = [
            ("stranded", self._cost.stranded),
            ("broken", self._cost.broken),
            ("left", self._cost.left),
            ("cpu", self._cost.cpu),
            ("scarce", self._after.scarce),
        ]
        return [(name, float(column[node])) for name, column in parts]

    def card_keys(self, request: ResolvedRequest, line: NodeDevices) -> list[Ints] | None:
        scarcity = self._after.scarcity_of(request, line.type)
        return fit_keys(line.left, line.share, line.island, line.may, scarcity=scarcity, count=max(request.count, 1))


RANKINGS: Final[Mapping[str, NodeRanker]] = {names.FAIR_SHARE: _FairShare}
"""Of the node policies that HAMi lacks."""

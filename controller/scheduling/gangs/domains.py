"""Topology domains as a gang sees them: which can hold it, tightest first. Pure.

Everything here is counted over columns, so a gang that no domain can hold is refused at a cost that
grows with the nodes and not with the members.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from controller.scheduling.decide.allowed_nodes import AllowedNodes
from controller.scheduling.gangs.gang_request import TopologyConstraint
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.node_filter.topology_domains import NO_DOMAIN, TopologyDomains
from hami_dra.api.arrays import Bools, Floats, Ints, Positions


@dataclass(frozen=True, slots=True)
class Demand:
    """What a gang asks of the nodes: like members together, the hardest first.

    Four workers and a leader on three nodes, of which the last has one free card:

        counts  [4, 1]
        fits    [[1, 1, 0],      workers per node
                 [8, 8, 1]]      leaders per node
    """

    counts: Ints
    """Members of each kind. Shape (kinds,)."""
    fits: Ints
    """Upper bound of the members of each kind on each node. Shape (kinds, nodes.size)."""
    least: int
    """Members that must be placed."""
    links: Floats
    """The vendors' score of a set of devices for the hardest member, on each node; 0 where no
    member fits. Shape (nodes.size,).
    """
    score: Floats
    """Score of each node, lower is better, 0 where no member fits. Shape (nodes.size,)."""

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def placeable(self, fits: Ints) -> Ints:
        """Return how many members fit, by sums of `fits` of shape (kinds, domains). Shape
        (domains,).
        """
        found: Ints = np.minimum(fits, self.counts[:, None]).sum(axis=0)
        return found


@dataclass(frozen=True, slots=True)
class Domain:
    """Nodes in which the gang is tried."""

    name: str
    """`<label>=<value>`, several of them separated by commas; empty: all nodes."""
    number: Ints = field(compare=False, repr=False)
    """By row of the node. Shape (nodes.size,)."""
    own: int
    """The `number` of the nodes of this domain."""
    nodes: int
    """Number of its nodes."""
    fits: Ints = field(compare=False, repr=False)
    """Upper bound of the members of each kind that fit. Shape (kinds,)."""
    placeable: int
    """Upper bound of the members that fit at once."""
    left: int
    """Members like the hardest that would still fit after the gang; negative: the members that are
    lacking.
    """
    links: float
    """Sum of `Demand.links` over the best nodes, as many as there are such members."""
    score: float
    """Sum of `Demand.score`."""

    @property
    def mask(self) -> Bools:
        """Shape (nodes.size,)."""
        found: Bools = self.number == self.own
        return found

    @property
    def allowed(self) -> AllowedNodes | None:
        """The restriction for `decide`; None: all nodes."""
        return AllowedNodes(self.mask) if self.name else None


class GangDomains:
    """The domains of one gang.

    `settled`: rows of the nodes of members that are bound.
    """

    def __init__(
        self, inventory: Inventory, topology: Sequence[TopologyConstraint], settled: Sequence[int], demand: Demand
    ) -> None:
        self._inventory = inventory
        self._labels = inventory.derived(_LabelColumns, _LabelColumns).domains
        self._demand = demand
        self._total = demand.total
        self._settled = np.array(settled, dtype=np.intp)
        self._required = tuple(dict.fromkeys(each.key for each in topology if each.required))
        preferred = dict.fromkeys(each.key for each in topology if not each.required)
        self._preferred = tuple(key for key in preferred if key not in self._required)

    def required(self) -> list[Domain]:
        """Return the domains that the required constraints leave, best first; one of all nodes
        where there are none. Those that cannot hold the gang come last.
        """
        if not self._required:
            return [self._everything()]
        return self._split(self._required, None)

    def to_try(self, required: Sequence[Domain]) -> Iterator[Domain]:
        """Yield the domains in which the gang may fit, most preferred first.

        With the preferred keys clique and rack, clique being the narrower: single cliques, then
        single racks (in as few cliques as possible, then anywhere in the rack), then as few racks
        as possible, then anywhere.
        """
        possible = [domain for domain in required if domain.placeable >= self._demand.least]
        for width, key in enumerate(self._preferred):
            inside = [
                domain
                for outer in possible
                for domain in self._split((*self._required, key), outer)
                if domain.placeable >= self._total
            ]
            for domain in sorted(inside, key=lambda each: (not self._joins(each), *self._order(each))):
                yield from self._narrowed(domain, self._preferred[:width])
                yield domain
        for domain in possible:
            yield from self._narrowed(domain, self._preferred)
            yield domain

    def _narrowed(self, domain: Domain, keys: Sequence[str]) -> Iterator[Domain]:
        """Yield the domain reduced to as few domains of the widest of the keys as hold the gang."""
        if not keys:
            return
        parts = self._split((keys[-1],), domain)
        chosen = self._fewest(parts)
        if 1 < len(chosen) < len(parts):
            number = np.full(self._inventory.nodes.size, NO_DOMAIN, dtype=np.int64)
            for each in chosen:
                number[each.mask] = 0
            inner = ", ".join(sorted(each.name for each in chosen))
            yield from self._domains(number, [f"{domain.name},{inner}" if domain.name else inner])

    def _fewest(self, parts: Sequence[Domain]) -> list[Domain]:
        """Return as few domains as hold the gang together: the roomiest, and of those that suffice
        for the rest the tightest. Empty if all together do not hold it.

        Room for 9, 8 and 2 members, and a gang of 11: the first and the third.
        """
        demand = self._demand
        rest = sorted((each for each in parts if each.placeable), key=lambda each: (-each.placeable, each.name))
        chosen: list[Domain] = []
        fits = np.zeros(len(demand.counts), dtype=np.int64)
        while rest:
            enough = [each for each in rest if self._holds(fits + each.fits)]
            best = min(enough, key=lambda each: (each.left, each.score, each.name)) if enough else rest[0]
            chosen.append(best)
            if enough:
                return chosen
            fits = fits + best.fits
            rest.remove(best)
        return []

    def _holds(self, fits: Ints) -> bool:
        return int(self._demand.placeable(fits[:, None])[0]) >= self._total

    def _split(self, keys: Sequence[str], outer: Domain | None) -> list[Domain]:
        """Return the domains of nodes that agree in all keys, within another one, best first.

        Labels as columns, sums by `bincount`; clique c0 has the nodes 0 and 1, node 3 has no
        clique:

            number  [0, 0, 1, -1]
            fits    [3, 2, 4, 4]    ->  room for 5 in c0, for 4 in c1
        """
        nodes = self._inventory.nodes
        number = self._numbers(keys, outer)
        inside = np.flatnonzero(number != NO_DOMAIN)
        if not inside.size:
            return []
        _, first = np.unique(number[inside], return_index=True)
        names = []
        for row in inside[first].tolist():
            labels = nodes.node(row).metadata.labels
            names.append(",".join([f"{key}={labels[key]}" for key in keys]))
        return sorted(self._domains(number, names), key=self._order)

    def _domains(self, number: Ints, names: Sequence[str]) -> list[Domain]:
        """Return the domains of the numbers that occur, by number. `names`: in the same order."""
        demand = self._demand
        inside = np.flatnonzero(number != NO_DOMAIN)
        present, group = np.unique(number[inside], return_inverse=True)
        many = len(present)
        sums = [np.bincount(group, weights=line[inside], minlength=many) for line in demand.fits]
        fits = np.array(sums).astype(np.int64).reshape(len(sums), many)
        placeable = demand.placeable(fits)
        left = fits[0] - demand.counts[0]
        score = np.bincount(group, weights=demand.score[inside], minlength=many)
        size = np.bincount(group, minlength=many)
        links = self._links(inside, group, many)
        return [
            Domain(
                names[at],
                number,
                int(present[at]),
                nodes=int(size[at]),
                fits=fits[:, at],
                placeable=int(placeable[at]),
                left=int(left[at]),
                links=float(links[at]),
                score=float(score[at]),
            )
            for at in range(many)
        ]

    def _links(self, inside: Positions, group: Ints, many: int) -> Floats:
        """Return the links of each domain. `group`: by position in `inside`. Shape (many,).

        Two members, and links of 5, 3 and 4 on the nodes of a domain: 5 + 4.
        """
        links = self._demand.links[inside]
        if not links.any():
            return np.zeros(many, dtype=np.float64)
        order = np.lexsort((-links, group))
        sizes = np.bincount(group, minlength=many)
        place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        best = order[place < self._demand.counts[0]]
        found: Floats = np.bincount(group[best], weights=links[best], minlength=many).astype(np.float64)
        return found

    def _numbers(self, keys: Sequence[str], outer: Domain | None) -> Ints:
        """Return by row of the node the number of its domain: nodes that agree in all keys have one
        number, those that lack a label or are not in `outer` have none.

        Domains with members that are bound are the only ones that required keys leave.
        """
        nodes = self._inventory.nodes
        number: Ints = np.where(nodes.present[: nodes.size], 0, NO_DOMAIN)
        for key in keys:
            labels = self._labels.of(key)
            known = (number != NO_DOMAIN) & (labels != NO_DOMAIN)
            pairs = number[known] * (int(labels.max(initial=0)) + 1) + labels[known]
            number = np.full(nodes.size, NO_DOMAIN, dtype=np.int64)
            number[known] = np.unique(pairs, return_inverse=True)[1]
        if outer is not None:
            return np.where(outer.mask, number, NO_DOMAIN)
        taken = number[self._settled]
        taken = taken[taken != NO_DOMAIN]
        return np.where(np.isin(number, taken), number, NO_DOMAIN) if taken.size else number

    def _everything(self) -> Domain:
        nodes, demand = self._inventory.nodes, self._demand
        number: Ints = np.where(nodes.present[: nodes.size], 0, NO_DOMAIN)
        for found in self._domains(number, [""]):
            return found
        none = np.zeros(len(demand.counts), dtype=np.int64)
        return Domain("", number, 0, nodes=0, fits=none, placeable=0, left=-int(demand.counts[0]), links=0.0, score=0.0)

    def _joins(self, domain: Domain) -> bool:
        """Return whether a member that is bound runs in the domain."""
        return bool((domain.number[self._settled] == domain.own).any())

    def _order(self, domain: Domain) -> tuple[bool, int, float, float, str]:
        """Sort key: those that hold all members, the tightest first; then those that hold the most."""
        holds = domain.placeable >= self._total
        return not holds, domain.left if holds else -domain.placeable, -domain.links, domain.score, domain.name


class _LabelColumns:
    """The label columns of one inventory."""

    def __init__(self, inventory: Inventory) -> None:
        self.domains: Final = TopologyDomains(inventory.nodes)

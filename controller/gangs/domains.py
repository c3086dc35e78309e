"""Topology domains as a gang sees them: which can hold it, tightest first. Pure.

Everything here is counted over columns, so a gang that no domain can hold is refused at a cost that
grows with the nodes and not with the members.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from msgspec import Struct

from controller.cluster.nodes.node_labels import NO_DOMAIN
from controller.decide.allowed_nodes import AllowedNodes
from controller.gangs.unit import TopologyConstraint
from controller.inventory.inventory import Inventory
from hami_dra.api.arrays import Bools, Floats, Ints, Positions

MOST_KINDS: Final = 64
"""Kinds of members that are counted apart; the easiest of more kinds are counted as one."""
_NAMED: Final = 8
"""Domains that the name of several domains states."""


class Demand(Struct, frozen=True):
    """What a gang asks of the nodes: like members together, the hardest first.

    Four workers and a leader on three nodes, of which the last has one free card; a node has 8
    slots, and a worker takes a whole card:

        counts  [4, 1, 5]
        fits    [[1, 1, 0],      workers per node
                 [8, 8, 1],      leaders per node
                 [8, 8, 1]]      members of both kinds per node
    """

    counts: Ints
    """Members of each kind, at most `MOST_KINDS` kinds, and of all. Shape (kinds + 1,)."""
    fits: Ints
    """Upper bound of the members of each kind on each node, and of all of them together. Shape (kinds + 1, nodes.size)."""
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
        return int(self.counts[-1])


class Kinds:
    """What fits of each kind, as it is found out. The kinds beyond `MOST_KINDS` are counted as one."""

    def __init__(self, counts: Ints, size: int) -> None:
        """`counts`: members by kind; `size`: nodes.size."""
        self._counts = counts
        self._others: Ints = np.zeros(size, dtype=np.int64)
        self.fits: dict[int, Ints] = {}
        """By kind, per node. Shape (nodes.size,) each."""

    def others(self, kind: int) -> None:
        """Count the members of this kind with the others."""
        self._others += np.minimum(self.fits.pop(kind), self._counts[kind])

    def demand(self, order: Sequence[int], room: Ints, least: int, links: Floats, score: Floats) -> Demand:
        """Return the demand; `order`: the kinds in `fits`, the hardest first; `room`: for all members together."""
        total, own = int(self._counts.sum()), self._counts[order]
        rest = total - int(own.sum())
        fits = [self.fits[kind] for kind in order]
        if rest:
            fits.append(self._others)
        everyone = np.minimum(room, np.sum(fits, axis=0))
        counts = np.array([*own.tolist(), *([rest] if rest else []), total], dtype=np.int64)
        return Demand(counts, np.array([*fits, everyone]), least, links, score)


@dataclass(frozen=True, slots=True)
class Domain:
    """Nodes in which the gang is tried."""

    name: str
    """`<label>=<value>`, several of them separated by commas; empty: all nodes."""
    rows: Positions = field(compare=False, repr=False)
    """Of its nodes."""
    size: int
    """Number of all rows: nodes.size."""
    fits: Ints = field(compare=False, repr=False)
    """Upper bound of the members of each kind that fit, and of all. Shape (kinds + 1,)."""
    placeable: int
    """Upper bound of the members that fit at once."""
    left: int
    """Members like the hardest that would still fit after the gang; negative: the members that are lacking."""
    links: float
    """Sum of `Demand.links` over the best nodes, as many as there are such members."""
    score: float
    """Sum of `Demand.score`."""
    joins: bool
    """Whether a member that is bound runs here."""

    @property
    def nodes(self) -> int:
        """Number of its nodes."""
        return len(self.rows)

    @property
    def allowed(self) -> AllowedNodes | None:
        """The restriction for `decide`; None: all nodes."""
        if not self.name:
            return None
        mask = np.zeros(self.size, dtype=np.bool_)
        mask[self.rows] = True
        return AllowedNodes(mask)


class GangDomains:
    """The domains of one gang.

    `settled`: rows of the nodes of members that are bound. Preferred keys that no node has are left
    out: they divide nothing.
    """

    def __init__(
        self, inventory: Inventory, topology: Sequence[TopologyConstraint], settled: Sequence[int], demand: Demand
    ) -> None:
        self._inventory = inventory
        self._labels = inventory.labels
        self._demand = demand
        self._settled = np.array(settled, dtype=np.intp)
        self._required = tuple(dict.fromkeys(each.key for each in topology if each.required))
        preferred = dict.fromkeys(each.key for each in topology if not each.required)
        known = inventory.nodes.label_keys
        self._preferred = tuple(key for key in preferred if key in known and key not in self._required)

    def required(self) -> list[Domain]:
        """Return the domains that the required constraints leave, best first; one of all nodes
        where there are none. Those that cannot hold the gang come last.

        Members that are bound leave only their domains, and none once a node of theirs is in none.
        """
        nodes = self._inventory.nodes
        present = np.flatnonzero(nodes.present[: nodes.size])
        if not self._required:
            return self._domains(present, np.zeros(1, dtype=np.intp), ())
        domains = self._split(self._required, present)
        if not self._settled.size:
            return domains
        return [each for each in domains if each.joins] if self.outside() < 0 else []

    def outside(self) -> int:
        """Return the row of a node with a bound member that lacks a required label; -1: there is none."""
        for key in self._required:
            labels = self._labels.domains(key)[self._settled]
            if (labels == NO_DOMAIN).any():
                return int(self._settled[np.argmin(labels)])
        return -1

    def to_try(self, required: Sequence[Domain]) -> Iterator[Domain]:
        """Yield the domains in which the gang may fit, most preferred first.

        With the preferred keys clique and rack, clique being the narrower: single cliques, then
        single racks (in as few cliques as possible, then anywhere in the rack), then as few racks
        as possible, then anywhere.
        """
        possible = [domain for domain in required if domain.placeable >= self._demand.least]
        if not possible:
            return
        rows = np.concatenate([domain.rows for domain in possible])
        for width, key in enumerate(self._preferred):
            whole = self._split((*self._required, key), rows, least=self._demand.total)
            for domain in (*filter(_joins, whole), *[each for each in whole if not each.joins]):
                yield from self._narrowed(domain, self._preferred[:width])
                yield domain
        for domain in possible:
            yield from self._narrowed(domain, self._preferred)
            yield domain

    def _narrowed(self, domain: Domain, keys: Sequence[str]) -> Iterator[Domain]:
        """Yield the domain reduced to as few domains of the widest of the keys as hold the gang."""
        if not keys or domain.nodes < 2:
            return
        parts = self._split((keys[-1],), domain.rows, least=1)
        chosen = self._fewest(parts)
        if len(chosen) > 1 and sum(each.nodes for each in chosen) < domain.nodes:
            names = sorted(each.name for each in chosen)
            inner = ", ".join(names[:_NAMED])
            if len(names) > _NAMED:
                inner += f" and {len(names) - _NAMED} more"
            rows = np.sort(np.concatenate([each.rows for each in chosen]))
            name = f"{domain.name},{inner}" if domain.name else inner
            yield from (replace(each, name=name) for each in self._domains(rows, np.zeros(1, dtype=np.intp), ()))

    def _fewest(self, parts: Sequence[Domain]) -> list[Domain]:
        """Return as few domains as hold the gang together: the roomiest, and of those that suffice
        for the rest the tightest. Empty if all together do not hold it.

        Room for 9, 8 and 2 members, and a gang of 11: the first and the third.

            before   [0, 9, 17]     room in those that come before
            at 0     [9, 8, 2]      none of them suffices
            at 1     [17, 11]       with the first, the second and the third do
        """
        rest = sorted(parts, key=lambda each: (-each.placeable, each.name))
        if not rest:
            return []
        fits = np.stack([each.fits for each in rest], axis=1)
        before = np.cumsum(fits, axis=1) - fits
        counts = self._demand.counts[:, None]

        def suffices(at: int) -> Bools:
            return np.asarray((before[:, at, None] + fits[:, at:] >= counts).all(axis=0))

        # Where one suffices, one suffices after more of them: halve the range.
        low, high = 0, len(rest)
        while low < high:
            middle = (low + high) // 2
            if suffices(middle).any():
                high = middle
            else:
                low = middle + 1
        if low == len(rest):
            return []
        enough = [rest[low + at] for at in np.flatnonzero(suffices(low)).tolist()]
        return [*rest[:low], min(enough, key=lambda each: (each.left, each.score, each.name))]

    def _split(self, keys: Sequence[str], rows: Positions, *, least: int = 0) -> list[Domain]:
        """Return the domains of those rows that agree in all keys and have room for `least` members,
        best first; nodes that lack a label are in none.

        Clique c0 has the nodes 0 and 2, node 3 has no clique:

            number  [0, 1, 0, -1]
            rows    [0, 2, 1],  starts  [0, 2]
        """
        number = np.zeros(len(rows), dtype=np.int64)
        for key in keys:
            labels = self._labels.domains(key)[rows]
            known = labels != NO_DOMAIN
            rows, number, labels = rows[known], number[known], labels[known]
            number = np.unique(number * (int(labels.max(initial=0)) + 1) + labels, return_inverse=True)[1]
        if not rows.size:
            return []
        order = np.lexsort((rows, number))
        rows, number = rows[order], number[order]
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        return self._domains(rows, starts, keys, least=least)

    def _domains(self, rows: Positions, starts: Positions, keys: Sequence[str], *, least: int = 0) -> list[Domain]:
        """Return the domains of rows that are grouped, best first: those that hold all members, the
        tightest first; then those that hold the most.

        `starts`: where each group begins; `keys`: the labels that its nodes share; `least`: members
        for which a group must have room. Sums by `reduceat`; c0 has two nodes:

            rows  [0, 2, 1],  starts  [0, 2],  fits  [3, 4, 2]  ->  room for 5 in c0, for 4 in c1
        """
        demand, size, many = self._demand, self._inventory.nodes.size, len(starts)
        if not rows.size:  # a cluster without nodes
            none = np.zeros(len(demand.counts), dtype=np.int64)
            left = -int(demand.counts[0])
            return [Domain("", rows, size, none, placeable=0, left=left, links=0.0, score=0.0, joins=False)]
        ends = np.append(starts[1:], len(rows))
        group = np.repeat(np.arange(many), ends - starts)
        fits: Ints = np.add.reduceat(demand.fits[:, rows], starts, axis=1)
        placeable = np.minimum(np.minimum(fits, demand.counts[:, None])[:-1].sum(axis=0), fits[-1])
        left = fits[0] - demand.counts[0]
        score = np.bincount(group, weights=demand.score[rows], minlength=many)
        links = self._links(rows, group, ends - starts)
        bound = np.zeros(size, dtype=np.bool_)
        bound[self._settled] = True
        joins = np.logical_or.reduceat(bound[rows], starts)
        roomy = np.flatnonzero(placeable >= least)
        names = dict(zip(roomy.tolist(), self._names(rows[starts[roomy]], keys), strict=True))
        rank = np.empty(many, dtype=np.intp)
        rank[sorted(names, key=names.__getitem__)] = np.arange(len(names))
        holds = placeable >= demand.total
        order = rank, score, -links, np.where(holds, left, -placeable), ~holds
        return [
            Domain(
                names[at],
                rows[starts[at] : ends[at]],
                size,
                fits[:, at],
                placeable=int(placeable[at]),
                left=int(left[at]),
                links=float(links[at]),
                score=float(score[at]),
                joins=bool(joins[at]),
            )
            for at in roomy[np.lexsort([column[roomy] for column in order])].tolist()
        ]

    def _names(self, rows: Positions, keys: Sequence[str]) -> list[str]:
        """Return the names of the domains that these nodes are in."""
        labels = [self._inventory.nodes.node(row).metadata.labels for row in rows.tolist()]
        return [",".join([f"{key}={each[key]}" for key in keys]) for each in labels]

    def _links(self, rows: Positions, group: Ints, sizes: Ints) -> Floats:
        """Return the links of each domain. `group`: by position in `rows`; `sizes`: rows of each.
        Shape (domains,).

        Two members, and links of 5, 3 and 4 on the nodes of a domain: 5 + 4.
        """
        links = self._demand.links[rows]
        if not links.any():
            return np.zeros(len(sizes), dtype=np.float64)
        order = np.lexsort((-links, group))
        place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        best = order[place < self._demand.counts[0]]
        found: Floats = np.bincount(group[best], weights=links[best], minlength=len(sizes)).astype(np.float64)
        return found


def _joins(domain: Domain) -> bool:
    return domain.joins

"""Islands: groups of cards joined by the fast interconnect.

Called by the vendors when they publish cards, and by `hami-dra topology`. In: the links between
cards. Out: the groups.
"""

from collections.abc import Iterator, Mapping


def islands(links: Mapping[int, Mapping[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Return connected components with at least two members, each ascending, ordered by lowest member.

    `links[a][b]` > 0 is the number of lanes from a to b; a link that only one side reports counts.
    Behind NVSwitch and on bridged pairs a component is a clique. On a mesh (DGX-1) it is not: the
    component is still the island, and the lanes hold the details. Peers that are not keys of
    `links` are ignored.
    """
    neighbours: dict[int, set[int]] = {card: set() for card in links}
    for card, peers in links.items():
        for peer, lanes in peers.items():
            if lanes > 0 and peer in neighbours and peer != card:
                neighbours[card].add(peer)
                neighbours[peer].add(card)
    return tuple(tuple(sorted(group)) for group in connected(neighbours) if len(group) > 1)


def connected(neighbours: Mapping[int, set[int]]) -> Iterator[set[int]]:
    """Yield the connected components, by their lowest member. A neighbour is one both ways."""
    seen: set[int] = set()
    for card in sorted(neighbours.keys()):
        if card not in seen:
            group, queue = {card}, [card]
            while queue:
                fresh = neighbours[queue.pop()] - group
                group |= fresh
                queue.extend(fresh)
            seen |= group
            yield group

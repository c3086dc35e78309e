"""Islands: groups of cards that the fast interconnect joins.

Called by the vendors when they publish cards, and by `hami-dra topology`. In: who is linked to whom. Out: the groups.
"""

from collections.abc import Mapping


def islands(links: Mapping[int, Mapping[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Connected components with at least two members, each ascending, ordered by their lowest member.

    `links[a][b]` > 0 are the lanes from a to b; a link that only one side reports counts. Behind NVSwitch and on bridged
    pairs a component is a clique. On a mesh (DGX-1) it is not: there the component is the island, and the lanes tell the rest.
    Peers that are not keys of `links` are ignored.
    """
    neighbours: dict[int, set[int]] = {card: set() for card in links}
    for card, peers in links.items():
        for peer, lanes in peers.items():
            if lanes > 0 and peer in neighbours and peer != card:
                neighbours[card].add(peer)
                neighbours[peer].add(card)
    groups: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for card in sorted(neighbours):
        if card in seen:
            continue
        group, queue = {card}, [card]
        while queue:
            fresh = neighbours[queue.pop()] - group
            group |= fresh
            queue.extend(fresh)
        seen |= group
        if len(group) > 1:
            groups.append(tuple(sorted(group)))
    return tuple(groups)

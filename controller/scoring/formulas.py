"""HAMi's scores and orders, on arrays. Pure; called by the chooser (device axis) and by `decide`
(node axis).

Sources: HAMi S/policy/gpu_policy.go:77-222 (device score and order), node_policy.go:48-130 (node
order), at HEAD. The node score itself is kept by the inventory, updated incrementally
(`controller.inventory.columns`).
"""

from collections.abc import Hashable, Sequence

import numpy as np

from controller.scoring.policies import DevicePolicy, Weights
from hami_dra.api import names
from hami_dra.api.arrays import Floats, Ints, Positions
from hami_dra.vendors.protocol import CardRequest, Cards


def _share(used: Ints, total: Ints) -> Floats:
    """Return used / total, 0 where the total is 0. Shape (n,).

    >>> _share(np.array([1, 1]), np.array([4, 0])).tolist()
    [0.25, 0.0]
    """
    ratio: Floats = np.divide(used, total, out=np.zeros(total.shape, dtype=np.float64), where=total > 0)
    return ratio


def device_scores(cards: Cards, ask: CardRequest, weights: Weights) -> Floats:
    """Return `10 x (wS x slots + wC x cores + wM x memory)`, each term (used + asked) / total of
    the card. Shape (n,).

    A role that the driver does not publish (total 0) takes the ratio of the slots, so that devices
    without memory or cores are still ordered by how full they are. (HAMi scores such a card 0,
    which disables the policy for it.) With weights of 1, a card of 10 slots, 100 cores and 16,000
    MiB, of which 2, 50 and 4,000 are taken with the pod, has 10 x (0.2 + 0.5 + 0.25) = 9.5.
    """
    slots, cores, memory = _loads(cards, ask)
    scores: Floats = 10.0 * (weights.slot * slots + weights.core * cores + weights.memory * memory)
    return scores


def device_terms(cards: Cards, ask: CardRequest, weights: Weights) -> tuple[Floats, Floats, Floats]:
    """Return the summands of `device_scores`, weights included: slots, cores and memory. Each of shape (n,)."""
    slots, cores, memory = _loads(cards, ask)
    return 10.0 * weights.slot * slots, 10.0 * weights.core * cores, 10.0 * weights.memory * memory


def _loads(cards: Cards, ask: CardRequest) -> tuple[Floats, Floats, Floats]:
    """Return how full each card would be, by slots, cores and memory.

    2 of 10 slots, 20 of 100 cores and no memory published: 0.2, 0.2 and, for memory, the slots'
    0.2.
    """
    slots = _share(cards.slots_used + ask.slots, cards.slots_total)
    cores = np.where(cards.cores_total > 0, _share(cards.cores_used + ask.cores, cards.cores_total), slots)
    memory = np.where(cards.memory_total > 0, _share(cards.memory_used + ask.memory, cards.memory_total), slots)
    return slots, cores, memory


def device_keys(cards: Cards, scores: Floats, policy: DevicePolicy) -> list[Floats]:
    """Return the keys that the policy orders cards by, most important first; lower is better. Each of shape (n,)."""
    keys: list[Floats] = []
    for key in policy.keys:
        # a node policy's only if no ranking of nodes is given
        if key == names.BINPACK or key not in names.DEVICE_POLICIES:
            keys.append(-scores)
        elif key == names.MUTEX:
            keys.append(cards.slots_used.astype(np.float64))
        elif key == names.NUMA:
            keys.append(cards.numa.astype(np.float64))
        else:  # spread; topology-aware orders single cards like spread
            keys.append(scores)
    return keys


def device_order(
    cards: Cards,
    scores: Floats,
    policy: DevicePolicy,
    *,
    keys: Sequence[Floats | Ints] | None = None,
    before: Sequence[Ints] = (),
    inside: Sequence[Ints] = (),
) -> Positions:
    """Return the positions of the cards to try, best first, without those that the policy refuses
    (`mutex`: used ones).

    Score before NUMA (HAMi HEAD, after #1806), then the lower NUMA node, then the lower index.
    `before`: keys above the policy's; `inside`: keys among devices of one index. `keys`: replace
    those of the policy. All are given most important first, lower is better; `lexsort` wants the
    most important key last, so they are reversed.
    """
    if keys is None:
        keys = device_keys(cards, scores, policy)
    order = np.lexsort((*reversed(inside), cards.index, cards.numa, *reversed(keys), *reversed(before)))
    if names.MUTEX in policy.keys:
        order = order[cards.slots_used[order] == 0]
    return order


def group_order(
    order: Positions, groups: Sequence[Hashable], keys: Sequence[Floats | Ints], count: int, *, tight: bool
) -> Positions:
    """Return `order` with the members of each group next to each other, the best group first.

    `groups`: by position of the cards, the values they must have in common; `count`: number of
    cards to take from one group. A group is judged by its `count` best cards, summed key by key;
    groups with too few cards come last. Of equal groups the smallest comes first when cards are
    packed (`tight`: larger ones stay whole), else the largest.

    >>> order, keys = np.array([0, 1, 2, 3]), [np.array([1.0, 2.0, 3.0, 9.0])]
    >>> group_order(order, ["a", "b", "b", "a"], keys, 2, tight=True).tolist()  # a: 10, b: 5
    [1, 2, 0, 3]
    """
    members: dict[Hashable, list[int]] = {}
    for position in order.tolist():
        members.setdefault(groups[position], []).append(position)

    def badness(group: list[int]) -> tuple[bool, list[float], int]:
        best = group[:count]
        return len(group) < count, [float(key[best].sum()) for key in keys], len(group) if tight else -len(group)

    return np.array([position for group in sorted(members.values(), key=badness) for position in group], dtype=np.intp)


def sort_sign(node_policy: str) -> float:
    """Return the factor of a node's score that makes lower better: the one definition of the best node."""
    return 1.0 if node_policy == names.SPREAD else -1.0


def best_node(scores: Floats, rank: Ints, candidates: Positions, node_policy: str, tie: Floats | None = None) -> int:
    """Return the index of the best of `candidates` (not empty): highest score for binpack, lowest
    for spread.

    Of equal ones the highest `tie` (shape of `scores`), then the lower name.

    >>> scores, rank = np.array([3.0, 5.0, 5.0]), np.array([0, 2, 1])
    >>> best_node(scores, rank, np.array([0, 1, 2]), "binpack")     # equal scores: the lower name
    2
    """
    values = sort_sign(node_policy) * scores[candidates]
    tied = candidates[values == values.min()]
    if tie is not None:
        tied = tied[tie[tied] == tie[tied].max()]
    return int(tied[np.argmin(rank[tied])])


def ranked_nodes(scores: Floats, rank: Ints, candidates: Positions, node_policy: str, most: int) -> Positions:
    """Return the first `most` of `candidates`, best first, by the rule of `best_node`.

    Only those that can be among the first are sorted:

    >>> scores, rank = np.array([3.0, 5.0, 5.0, 1.0]), np.array([0, 2, 1, 3])
    >>> ranked_nodes(scores, rank, np.arange(4), "binpack", 3).tolist()
    [2, 1, 0]
    """
    return lowest_first(sort_sign(node_policy) * scores, rank, candidates, most)


def lowest_first(keys_of_all: Floats, rank: Ints, candidates: Positions, most: int) -> Positions:
    """Return the first `most` of `candidates`: those of the lowest keys, of equal ones the lowest ranks."""
    keys = keys_of_all[candidates]
    if 0 < most < len(candidates):
        near = (keys == keys.min()).nonzero()[0]
        if len(near) > most:  # on an idle cluster all are tied
            ranks = rank[candidates[near]]
            near = near[_lowest(ranks, most)]
        elif len(near) < most:
            near = (keys <= np.partition(keys, most - 1)[most - 1]).nonzero()[0]
        candidates, keys = candidates[near], keys[near]
    return candidates[np.lexsort((rank[candidates], keys))][:most]


def _lowest(ranks: Ints, most: int) -> Positions:
    """Return the positions of at least the `most` lowest ranks.

    Ranks are usually spread evenly, so that about 4 * most of them are below max * 4 * most / len,
    and few have to be sorted. If fewer are, `argpartition` finds them:

    >>> ranks = np.array([7, 0, 5, 1, 6, 2, 4, 3])
    >>> _lowest(ranks, 1).tolist()      # those up to 7 * 4 // 8 = 3
    [1, 3, 5, 7]
    """
    bound = int(ranks.max()) * 4 * most // len(ranks)
    found = (ranks <= bound).nonzero()[0]
    return found if len(found) >= most else np.argpartition(ranks, most - 1)[:most]

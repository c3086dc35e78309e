"""HAMi's scores and orders, on arrays. Pure; called by the chooser (device axis) and by `decide` (node axis).

Sources: HAMi S/policy/gpu_policy.go:77-222 (device score and order), node_policy.go:48-130 (node order), at HEAD.
The node score itself is kept by the inventory, updated by difference (`controller.inventory.columns`).
"""

import numpy as np
import numpy.typing as npt

from controller.scoring.policies import DevicePolicy, Weights
from hami_dra.api import names
from hami_dra.vendors.protocol import Ask, Cards, Ints

Floats = npt.NDArray[np.float64]


def _share(used: Ints, total: Ints) -> Floats:
    """Used / total, 0 where the total is 0. Shape (n,)."""
    ratio: Floats = np.divide(used, total, out=np.zeros(total.shape, dtype=np.float64), where=total > 0)
    return ratio


def device_scores(cards: Cards, ask: Ask, weights: Weights) -> Floats:
    """`10 x (wS x slots + wC x cores + wM x memory)`, each term (used + asked) / total of the card. Shape (n,).

    A role that the driver does not publish (total 0) takes the ratio of the slots, so that devices without memory or
    cores are still ordered by how full they are. (HAMi scores such a card 0, which switches the policy off for it.)
    """
    slots = _share(cards.slots_used + ask.slots, cards.slots_total)
    cores = np.where(cards.cores_total > 0, _share(cards.cores_used + ask.cores, cards.cores_total), slots)
    memory = np.where(cards.memory_total > 0, _share(cards.memory_used + ask.memory, cards.memory_total), slots)
    scores: Floats = 10.0 * (weights.slot * slots + weights.core * cores + weights.memory * memory)
    return scores


def device_order(cards: Cards, scores: Floats, policy: DevicePolicy) -> npt.NDArray[np.intp]:
    """Positions of the cards to try, best first; cards that the policy refuses are left out (`mutex`: used ones).

    Score before NUMA (HAMi HEAD, after #1806), then the lower NUMA node, then the lower index.
    """
    keys: list[npt.NDArray[np.generic]] = []
    for key in policy.keys:
        if key == names.BINPACK:
            keys.append(-scores)
        elif key == names.MUTEX:
            keys.append(cards.slots_used)
        elif key == names.NUMA:
            keys.append(cards.numa)
        else:  # spread; topology-aware orders single cards as spread does
            keys.append(scores)
    order = np.lexsort((cards.index, cards.numa, *reversed(keys)))
    if names.MUTEX in policy.keys:
        order = order[cards.slots_used[order] == 0]
    return order


def best_node(scores: Floats, rank: Ints, candidates: npt.NDArray[np.intp], node_policy: str) -> int:
    """Index of the best of `candidates` (not empty): highest score for binpack, lowest for spread; tie: lower name."""
    values = scores[candidates]
    best = values.min() if node_policy == names.SPREAD else values.max()
    tied = candidates[values == best]
    return int(tied[np.argmin(rank[tied])])


def ranked_nodes(
    scores: Floats, rank: Ints, candidates: npt.NDArray[np.intp], node_policy: str, most: int
) -> npt.NDArray[np.intp]:
    """The first `most` of `candidates`, best first, by the rule of `best_node`."""
    keys = scores[candidates] if node_policy == names.SPREAD else -scores[candidates]
    if 0 < most < len(candidates):
        bound = np.partition(keys, most - 1)[most - 1]
        better, tied = np.flatnonzero(keys < bound), np.flatnonzero(keys == bound)
        places = most - len(better)
        if places < len(tied):  # on an idle cluster all are tied
            tied = tied[np.argpartition(rank[candidates[tied]], places - 1)[:places]]
        near = np.concatenate((better, tied))
        candidates, keys = candidates[near], keys[near]
    return candidates[np.lexsort((rank[candidates], keys))][:most]

"""Random worlds for the node filter, written as the API server would store them; see tests/support/nodefit.py.

A seed always gives the same world: 4 to 12 nodes in up to three zones, pods that run there, pods that are assumed, storage
objects, namespaces, and one pod that waits. Each world has a few themes (`draws.THEMES`), so that most of its nodes are
refused for few reasons. One world in eight holds bad input, which kube-scheduler answers in its own way. `before` are
objects as they stood earlier: the inventory hears of them first, so that what it keeps is brought up to date.
"""

from __future__ import annotations

from typing import Any

from tests.support.nodefit_worlds.cluster import device_classes, earlier_objects, namespaces, node
from tests.support.nodefit_worlds.draws import Draws
from tests.support.nodefit_worlds.pods import assumed_pod, existing_pod, waiting_pod
from tests.support.nodefit_worlds.storage import Storage

Json = dict[str, Any]


def random_world(seed: int) -> Json:
    """Return the world of this seed."""
    draws = Draws(seed)
    nodes = [node(draws, number) for number in range(draws.between(4, 12))]
    draws.node_names = [each["metadata"]["name"] for each in nodes]
    storage = Storage(draws)
    running = [existing_pod(draws, storage, number) for number in range(_pods(draws))]
    assumed = [
        {"pod": assumed_pod(draws, storage, number), "node": draws.one(draws.node_names)}
        for number in range(draws.one([0, 0, 1, 2, 4]))
    ]
    waiting = waiting_pod(draws, storage)
    objects = [*namespaces(draws), *device_classes(draws), *storage.objects.values(), *running]
    draws.shuffle(objects)
    return {
        "name": f"seed-{seed}",
        "themes": sorted(draws.themes),
        "nodes": nodes,
        "objects": objects,
        "assumed": assumed,
        "pod": waiting,
        "before": earlier_objects(draws, [*nodes, *objects]),
    }


def _pods(draws: Draws) -> int:
    if draws.has("affinity", "anti", "symmetric", "spread", "soft"):
        return draws.between(0, 24)
    return draws.between(4, 16) if draws.has("ports", "resources") else draws.between(0, 8)

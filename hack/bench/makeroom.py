"""Milliseconds until preemption has a plan, or a place to be reserved is found, on nodes of 8 cards that are
full of pods of lower priority.

    python hack/bench/makeroom.py [--nodes 100 5000] [--rounds 5] [--plans 7]

Each node has four pods with two whole cards each: 20,000 of them on 5,000 nodes. Priorities from 0
to 90, start times all different. Requests: one card, four cards, a node, a card that no priority is
high enough for, and a gang of four nodes; places to be reserved are for a node and for a gang of 1,000. All times are CPU time; the median of each round, and
over the rounds the median with the least and the most.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from controller.cli.heap import collect_in_pieces
from controller.decide import Options, SchedulingRequest
from controller.gangs import GangKey, Gangs, Unit
from controller.inventory.inventory import Inventory
from controller.preemption import Budgets, Preemption, PreemptionPlan, PreemptionRules, Tenants, soonest
from controller.scoring.policies import Policies
from hack.bench.decide import CARDS, DRIVER, furnished, scheduling_request
from hami_dra.api.core import Pod
from hami_dra.api.resource import ResourceClaim

EACH = 2
"""Cards of a tenant."""
REQUESTS = {
    "a card": (1, 1, 1_000),
    "4 cards": (1, 4, 1_000),
    "a node": (1, CARDS, 1_000),
    "a card, hopeless": (1, 1, -1),
    "a node, hopeless": (1, CARDS, 5),
    "a gang of 4 nodes": (4, CARDS, 1_000),
}
"""Members, cards of each, priority."""
RESERVED = {"reserved: a node": (1, CARDS, 0), "reserved: 1,000 cards": (1_000, 1, 0)}


def tenant(node: int, number: int) -> tuple[Pod, ResourceClaim]:
    name, where = f"tenant-{node}-{number}", f"node-{node:05}"
    amounts = {"memory": "80Gi", "cores": "100", "shares": "1"}
    results = [
        {
            "request": "gpu",
            "driver": DRIVER,
            "pool": where,
            "device": f"gpu-{EACH * number + each}",
            "consumedCapacity": amounts,
        }
        for each in range(EACH)
    ]
    reserved = [{"resource": "pods", "name": name, "uid": name}]
    metadata = {"name": name, "namespace": "bench", "uid": name}
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    claim = msgspec.convert(
        {"metadata": metadata, "spec": {"devices": {"requests": []}}, "status": status}, ResourceClaim
    )
    second = node * CARDS + number
    started = f"2026-01-{1 + second // 86_400:02}T{second // 3_600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}Z"
    spec = {
        "nodeName": where,
        "priority": (node * 7 + number * 31) % 10 * 10,
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
    }
    pod = msgspec.convert(
        {"metadata": metadata, "spec": spec, "status": {"phase": "Running", "startTime": started}}, Pod
    )
    return pod, claim


def occupied(nodes: int) -> tuple[Inventory, Tenants]:
    inventory = furnished(nodes)
    claims: dict[str, ResourceClaim] = {}
    tenants = Tenants(Gangs(), claims.get)
    for node in range(nodes):
        for number in range(CARDS // EACH):
            pod, claim = tenant(node, number)
            claims[claim.key] = claim
            inventory.claim_changed(None, claim)
            inventory.pod_changed(None, pod)
            tenants.pod_changed(None, pod)
    return inventory, tenants


def unit(members: int, cards: int, priority: int) -> Unit:
    requests: list[SchedulingRequest] = []
    for number in range(members):
        request = scheduling_request(number, cards, {}, Policies())
        spec = msgspec.structs.replace(request.pod.spec, priority=priority)
        requests.append(msgspec.structs.replace(request, pod=msgspec.structs.replace(request.pod, spec=spec)))
    key = GangKey("labels", "bench", "train") if members > 1 else None
    return Unit(key, tuple(requests), members)


def timed(search: Callable[[], Any], rounds: int, plans: int) -> tuple[Any, str]:
    """Return the last answer, and the median of the rounds with the least and the most."""
    medians, answer = [], None
    for _ in range(rounds + 1):  # the first fills the caches
        took = []
        for _ in range(plans):
            start = time.process_time()
            answer = search()
            took.append((time.process_time() - start) * 1e3)
        medians.append(statistics.median(took))
    least, most = min(medians[1:]), max(medians[1:])
    return answer, f"{statistics.median(medians[1:]):8.1f} ms  ({least:.1f} to {most:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 5_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plans", type=int, default=7)
    options = parser.parse_args()
    for nodes in options.nodes:
        inventory, tenants = occupied(nodes)
        collect_in_pieces()
        gc.collect()
        gc.freeze()
        rules = PreemptionRules(1.8e9)
        preemption = Preemption(inventory, tenants, Budgets(), Options(managed=frozenset({DRIVER})), rules)
        for name, request in REQUESTS.items():
            wanted = unit(*request)
            plan, figures = timed(partial(preemption.plan, wanted), options.rounds, options.plans)
            cut = ", cut" if plan.is_cut else ""
            said = f"{len(plan.victims)} victims{cut}" if isinstance(plan, PreemptionPlan) else f"none{cut}"
            print(f"{nodes:6} nodes  {name:20} {figures}  {said}")
        for name, request in RESERVED.items():
            place, figures = timed(partial(soonest, preemption, unit(*request)), options.rounds, options.plans)
            print(
                f"{nodes:6} nodes  {name:20} {figures}  {len(place.leaving) if place is not None else 'none'} end before"
            )
        gc.unfreeze()


if __name__ == "__main__":
    main()

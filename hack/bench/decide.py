"""Microseconds to decide and assume a pod at 100, 1,000 and 5,000 nodes of 8 cards.

    python hack/bench/decide.py [--nodes 100 1000 5000] [--decisions 300]

Two requests: a shared card (7,500 MiB), and eight whole cards. Every decision is assumed as the
controller does it, so the next one sees it and the caches have something to update; of the pods
placed before, the last 50 stay.
Prints median and p99 and the ratio to the smallest cluster: with caches updated by difference it
stays far below the ratio of the sizes. The garbage collector is set as the controller sets it. All
times are CPU time.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from controller.cli.heap import collect_in_pieces
from controller.decide import Decision, Options, PodClaim, SchedulingRequest, decide
from controller.inventory.inventory import Inventory
from controller.scoring.policies import DevicePolicy, Policies
from hami_dra.api.core import Node, Pod
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceSlice

DRIVER = "nvidia.hami.io"
CARDS = 8
STAYING = 50
"""Pods that are placed at a time."""
REQUESTS = {
    "a shared card": (1, {"memory": "7500Mi", "cores": "0"}),
    "8 whole cards": (8, {}),
}


def card(index: int) -> dict[str, object]:
    def capacity(value: str, default: str, step: str) -> dict[str, object]:
        policy = {"default": default, "validRange": {"min": "0", "step": step, "max": value}}
        return {"value": value, "requestPolicy": policy}

    return {
        "name": f"gpu-{index}",
        "allowMultipleAllocations": True,
        "attributes": {"hami.io/index": {"int": index}, "hami.io/productName": {"string": "NVIDIA H100 80GB HBM3"}},
        "capacity": {
            "memory": capacity("80Gi", "80Gi", "1Mi"),
            "cores": capacity("100", "100", "1"),
            "shares": capacity("10", "1", "1"),
        },
    }


def furnished(nodes: int) -> Inventory:
    inventory = Inventory()
    devices = [card(index) for index in range(CARDS)]
    allocatable = {"cpu": "192", "memory": "2Ti", "pods": "250"}
    for number in range(nodes):
        name = f"node-{number:05}"
        status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
        inventory.node_changed(None, msgspec.convert({"metadata": {"name": name, "uid": name}, "status": status}, Node))
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
        item = {"metadata": {"name": f"{name}-slice", "uid": f"{name}-slice"}, "spec": spec}
        inventory.slice_changed(None, msgspec.convert(item, ResourceSlice))
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    body = {"metadata": {"name": "bench"}, "spec": {"selectors": [selector]}}
    inventory.class_changed(None, msgspec.convert(body, DeviceClass))
    return inventory


def scheduling_request(number: int, count: int, capacity: dict[str, str], policies: Policies) -> SchedulingRequest:
    exactly = {"deviceClassName": "bench", "allocationMode": "ExactCount", "count": count}
    exactly["capacity"] = {"requests": capacity}
    claim = {
        "metadata": {"name": f"claim-{number}", "namespace": "bench", "uid": f"claim-{number}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    container = {"name": "main", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}
    pod = {
        "metadata": {"name": f"pod-{number}", "namespace": "bench", "uid": f"pod-{number}"},
        "spec": {"containers": [container]},
    }
    return SchedulingRequest(
        pod=msgspec.convert(pod, Pod),
        claims=(PodClaim("gpu", msgspec.convert(claim, ResourceClaim)),),
        policies=policies,
    )


def measure(nodes: int, count: int, capacity: dict[str, str], decisions: int) -> list[float]:
    """Microseconds of each decision with its assumption; the first, which fills the caches, is left out."""
    inventory = furnished(nodes)
    collect_in_pieces()
    gc.collect()
    gc.freeze()
    options = Options(managed=frozenset({DRIVER}))
    policies = Policies(node_policy="binpack", device_policy=DevicePolicy(("binpack",)))
    took = []
    for number in range(decisions + 1):
        wanted = scheduling_request(number, count, capacity, policies)
        start = time.process_time()
        answer = decide(inventory, wanted, options)
        if not isinstance(answer, Decision):
            raise SystemExit(f"no place at decision {number}: {answer.message}; use more nodes or fewer decisions")
        inventory.usage.assume(answer.holdings)
        inventory.assume_pod(wanted.pod, answer.node)
        took.append((time.process_time() - start) * 1e6)
        if number >= STAYING:
            inventory.forget(f"claim-{number - STAYING}")
            inventory.forget_pod(f"pod-{number - STAYING}")
    gc.unfreeze()
    return took[1:]


def medians(nodes: list[int], decisions: int) -> dict[str, float]:
    """Return the median of each request at each size, in microseconds."""
    return {
        f"decide: {name}, {size} nodes, µs": statistics.median(measure(size, count, capacity, decisions))
        for name, (count, capacity) in REQUESTS.items()
        for size in nodes
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--decisions", type=int, default=300)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    chosen = parser.parse_args()
    if chosen.output == "json":
        print(json.dumps(medians(chosen.nodes, chosen.decisions)))
        return 0
    print(f"{'request':<16} {'nodes':>6} {'median µs':>10} {'p99 µs':>8} {'ratio':>6}")
    for name, (count, capacity) in REQUESTS.items():
        first = 0.0
        for nodes in chosen.nodes:
            took = measure(nodes, count, capacity, chosen.decisions)
            median = statistics.median(took)
            first = first or median
            p99 = statistics.quantiles(took, n=100)[98]
            print(f"{name:<16} {nodes:>6} {median:>10.0f} {p99:>8.0f} {median / first:>6.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Preemptions on a real control plane whose devices are all taken by pods of lower priority, without grace.

    python hack/bench/makeroom_cluster.py [--nodes 100] [--alone 30] [--pods 500] [--rounds 5]

Each round fills all devices, one pod for each. Then pods of high priority come, each for one device: first
one after the other, each when the one before it is bound (seconds from create to bound), then the rest at
once (pods bound per second). Prints medians over the rounds with the least and the most, and how many pods
were evicted for one that was bound: 1.00 is the least there is.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack.bench.rounds import spread
from hack.bench.throughput_cluster import CLASS, DRIVER, NAMESPACE, PODS, Bench, furnish, in_parallel
from hack.controlplane import variants
from hack.controlplane.cluster import ControlPlane
from hack.installation import Installation

PRIORITIES = {"low": 0, "high": 1_000}
TEMPLATES = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaimtemplates"
WAIT = 600.0


def pod(name: str, priority: str) -> tuple[str, dict[str, Any]]:
    spec = {
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "whole"}],
        "priorityClassName": priority,
        "terminationGracePeriodSeconds": 0,
    }
    return PODS, {"metadata": {"name": name, "labels": {"hami.io/dra": "true"}}, "spec": spec}


def bound(plane: ControlPlane, prefix: str) -> int:
    pods = plane.api.list(PODS)
    return sum(each["metadata"]["name"].startswith(prefix) and bool(each["spec"].get("nodeName")) for each in pods)


def wait_bound(plane: ControlPlane, prefix: str, number: int, every: float) -> None:
    plane.api.wait_for(f"{number} {prefix} bound", lambda: bound(plane, prefix) >= number, seconds=WAIT, every=every)


def alone(plane: ControlPlane, name: str) -> float:
    """Create a pod. Returns the seconds until it is bound."""
    began = time.monotonic()
    plane.api.create(*pod(name, "high"))
    plane.api.wait_for(
        f"{name} bound", lambda: plane.api.get(f"{PODS}/{name}")["spec"].get("nodeName"), seconds=WAIT, every=0.02
    )
    return time.monotonic() - began


def measured(plane: ControlPlane, devices: int, first: int, pods: int) -> tuple[float, float, float, float]:
    """Return the median and the longest time alone, pods a second at once, and evictions for each pod."""
    in_parallel(plane, [pod(f"low-{number:05}", "low") for number in range(devices)])
    wait_bound(plane, "low-", devices, 1.0)
    times = [alone(plane, f"high-{number:05}") for number in range(first)]
    began = time.monotonic()
    in_parallel(plane, [pod(f"high-{number:05}", "high") for number in range(first, pods)])
    wait_bound(plane, "high-", pods, 0.25)
    rate = (pods - first) / (time.monotonic() - began)
    return statistics.median(times), max(times), rate, (devices - bound(plane, "low-")) / pods


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--alone", type=int, default=30)
    parser.add_argument("--pods", type=int, default=500, help="of high priority in a round, those alone included")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    options = {"kube-controller-manager": ["--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"]}
    with ControlPlane(**variants.variant("1.37.1").options, client_qps=5000, extra_args=options) as plane:
        furnish(plane, chosen.nodes, chosen.cards)
        for name, value in PRIORITIES.items():
            plane.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})
        request = {"name": "gpu", "exactly": {"deviceClassName": CLASS}}
        plane.api.create(
            TEMPLATES, {"metadata": {"name": "whole"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
        )
        installation = Installation(plane)
        installation.install(preemption="respect")
        installation.start_webhook()
        installation.start_controller(
            "--manage", DRIVER, "--preemption=devices", "--save-after=0s", "--evictions-per-minute=100000"
        )
        installation.wait_ready(seconds=300)
        cleaner = Bench(plane, pods=0, gang_size=1, patience=WAIT)
        rounds = []
        for number in range(chosen.rounds + 1):  # the first warms all programs
            found = measured(plane, chosen.nodes * chosen.cards, chosen.alone, chosen.pods)
            print(f"  round {number}: {found}", file=sys.stderr, flush=True)
            cleaner.clear()
            if number:
                rounds.append(found)
        installation.remove()
    print(f"{chosen.nodes} nodes x {chosen.cards} devices, {chosen.pods} preemptors; {chosen.rounds} rounds")
    for title, values, digits in zip(
        ("alone, s, median", "alone, s, longest", "at once, pods/s", "evictions a pod"),
        zip(*rounds, strict=True),
        (2, 2, 1, 2),
        strict=True,
    ):
        print(f"  {title:<20} {spread(list(values), digits)}")


if __name__ == "__main__":
    main()

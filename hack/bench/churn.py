"""Does a controller that runs for long grow? Pods come and go at a steady pace on a real control
plane; `make soak` runs an hour.

    python hack/bench/churn.py [--minutes 60] [--nodes 500] [--rate 5] [--living 400]

Every pod has a claim for a part of a card, of ten sizes; the oldest goes when more than `--living`
are there. Nodes change their labels all the time. Printed each minute: pods bound, how long a pod
waited from creation to node (median, 99th percentile: what watch and queue lag show up in), the
controller's memory and CPU. At the end the first quarter is held against the last, and it fails
when memory grew by more than `--growth` percent, or the wait by ten times that. The first minutes
do not count: what is kept of decisions and events is bounded, and fills up.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack.bench.throughput_cluster import DRIVER, PODS, furnish, pod
from hack.controlplane.cluster import ControlPlane
from hack.installation import Installation

CARDS = 8


@dataclass(frozen=True)
class Minute:
    bound: int
    wait_median: float
    wait_p99: float
    memory: float
    """MiB."""
    cpu: float
    """Seconds."""


class Churn:
    def __init__(self, plane: ControlPlane, controller: Any, *, rate: float, living: int, nodes: int) -> None:
        self._plane = plane
        self._controller = controller
        self._rate = rate
        self._most = living
        self._nodes = nodes
        self._created: dict[str, float] = {}
        self._waits: list[float] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._alive: deque[str] = deque()
        self._serial = 0
        self._cpu = 0.0

    def run(self, minutes: int) -> list[Minute]:
        threading.Thread(target=self._follow, daemon=True).start()
        found = []
        start = time.monotonic()
        try:
            for number in range(minutes):
                self._go_on(until=start + 60 * (number + 1))
                found.append(self._minute())
                self._say(number + 1, found[-1])
        finally:
            self._ended.set()
        return found

    def _go_on(self, until: float) -> None:
        turn = time.monotonic()
        while time.monotonic() < until:
            self._plane.api.create(PODS, self._next_pod())
            if len(self._alive) > self._most:
                self._plane.api.delete(f"{PODS}/{self._alive.popleft()}", gracePeriodSeconds=0)
            if self._serial % 10 == 0:
                node = f"node-{self._serial * 7919 % self._nodes:05d}"
                self._plane.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"turn": str(self._serial)}}})
            turn += 1 / self._rate
            time.sleep(max(turn - time.monotonic(), 0.0))

    def _next_pod(self) -> dict[str, Any]:
        self._serial += 1
        body = pod(self._serial, labelled=True)
        (entry,) = body["spec"]["resourceClaims"]
        entry["resourceClaimTemplateName"] = f"part-{self._serial % 10}"
        name = body["metadata"]["name"]
        self._alive.append(name)
        with self._lock:
            self._created[name] = time.monotonic()
        return body

    def _follow(self) -> None:
        while not self._ended.is_set():
            for event in self._plane.api.watch(PODS, seconds=30):
                item = event["object"]
                if item.get("spec", {}).get("nodeName"):
                    with self._lock:
                        created = self._created.pop(item["metadata"]["name"], None)
                        if created is not None:
                            self._waits.append(time.monotonic() - created)
                if self._ended.is_set():
                    return

    def _minute(self) -> Minute:
        self._controller.check()
        with self._lock:
            waits, self._waits = self._waits, []
        cpu, before = self._controller.cpu_seconds(), self._cpu
        self._cpu = cpu
        memory = self._controller.memory_bytes() / (1 << 20)
        p99 = statistics.quantiles(waits, n=100)[98] if len(waits) > 1 else float("nan")
        return Minute(len(waits), statistics.median(waits) if waits else float("nan"), p99, memory, cpu - before)

    def _say(self, number: int, minute: Minute) -> None:
        print(
            f"minute {number:>3}: {minute.bound:>5} bound, waited {minute.wait_median * 1e3:6.0f} ms, p99 {minute.wait_p99 * 1e3:6.0f} ms, "
            f"memory {minute.memory:6.1f} MiB, CPU {minute.cpu:5.1f} s",
            flush=True,
        )


def growth(counted: list[Minute]) -> dict[str, float]:
    """Percent from the first quarter to the last."""
    quarter = max(len(counted) // 4, 1)
    result = {}
    for name in ("memory", "wait_median"):
        first = statistics.median(getattr(minute, name) for minute in counted[:quarter])
        last = statistics.median(getattr(minute, name) for minute in counted[-quarter:])
        result[name] = 100 * (last / first - 1)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=15, help="minutes, of these, that do not count")
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--rate", type=float, default=5, help="pods created per second")
    parser.add_argument("--living", type=int, default=400, help="pods at a time")
    parser.add_argument("--growth", type=float, default=10, help="percent that are too much")
    chosen = parser.parse_args()
    if chosen.minutes < chosen.warm_up + 4:
        parser.error(f"--minutes: at least {chosen.warm_up + 4}, {chosen.warm_up} of them for --warm-up")
    options = {"kube-controller-manager": ["--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"]}
    with ControlPlane(client_qps=5000, extra_args=options) as plane:
        print(f"{chosen.nodes} nodes of {CARDS} cards ...", file=sys.stderr, flush=True)
        furnish(plane, chosen.nodes, CARDS)
        _more_templates(plane)
        installation = Installation(plane)
        installation.install(webhook=False)
        controller = installation.start_controller("--manage", DRIVER)
        installation.wait_ready()
        churn = Churn(plane, controller.process, rate=chosen.rate, living=chosen.living, nodes=chosen.nodes)
        grown = growth(churn.run(chosen.minutes)[chosen.warm_up :])
    for name, percent in grown.items():
        print(f"{name}: {percent:+.1f} % from the first quarter to the last")
    return 1 if grown["memory"] > chosen.growth or grown["wait_median"] > 10 * chosen.growth else 0


def _more_templates(plane: ControlPlane) -> None:
    """The template of the other benchmark, in ten sizes."""
    folder = PODS.replace("/api/v1", "/apis/resource.k8s.io/v1").replace("/pods", "/resourceclaimtemplates")
    found = plane.api.get(f"{folder}/part")["spec"]
    for number in range(10):
        found["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"] = (
            f"{2000 + 500 * number}Mi"
        )
        plane.api.create(folder, {"metadata": {"name": f"part-{number}"}, "spec": found})


if __name__ == "__main__":
    sys.exit(main())

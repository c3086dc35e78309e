"""What keeping decisions costs: microseconds per decision with and without `DecisionLog`, and bytes
per kept decision.

    python hack/bench/explain.py [--nodes 50 1000 5000] [--decisions 300]

The cluster and requests are those of hack/bench/decide.py. "in detail" is what happens up to 20
times a second, "without nodes" what happens to the decisions beyond. "told" is what reading one
costs.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from controller.cli.heap import collect_in_pieces
from controller.decide import Decision, Options, decide
from controller.reconcile.runtime.decision_log import DecisionLog
from controller.scoring.policies import DevicePolicy, Policies
from hack.bench.decide import DRIVER, REQUESTS, STAYING, furnished, scheduling_request

DETAILED = 1e12
"""Details per second: always."""


def measure(nodes: int, count: int, capacity: dict[str, str], decisions: int) -> dict[str, list[float]]:
    """Microseconds by what was measured; the first decision, which fills the caches, is left out."""
    inventory = furnished(nodes)
    collect_in_pieces()
    gc.collect()
    gc.freeze()
    options = Options(managed=frozenset({DRIVER}))
    policies = Policies(node_policy="binpack", device_policy=DevicePolicy(("binpack",)))
    logs = {"in detail": DecisionLog(details_per_second=DETAILED), "without nodes": DecisionLog(details_per_second=0.0)}
    took: dict[str, list[float]] = {name: [] for name in ("decide", *logs, "told")}
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(decisions + 60):
        wanted = scheduling_request(number, count, capacity, policies)
        start = time.perf_counter()
        answer = decide(inventory, wanted, options)
        took["decide"].append((time.perf_counter() - start) * 1e6)
        if not isinstance(answer, Decision):
            raise SystemExit(f"no place at decision {number}: {answer.message}; use more nodes or fewer decisions")
        for name, log in logs.items():
            start = time.perf_counter()
            log.record(inventory, wanted, options, answer, at=at, now=float(number))
            took[name].append((time.perf_counter() - start) * 1e6)
        start = time.perf_counter()
        logs["in detail"].of_pod(wanted.pod.key)
        took["told"].append((time.perf_counter() - start) * 1e6)
        inventory.usage.assume(answer.holdings)
        inventory.assume_pod(wanted.pod, answer.node)
        if number >= STAYING:
            inventory.forget(f"claim-{number - STAYING}")
            inventory.forget_pod(f"pod-{number - STAYING}")
    gc.unfreeze()
    return {name: values[60:] for name, values in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[50, 1000, 5000])
    parser.add_argument("--decisions", type=int, default=300)
    arguments = parser.parse_args()
    for name, (count, capacity) in REQUESTS.items():
        for nodes in arguments.nodes:
            took = measure(nodes, count, capacity, arguments.decisions)
            medians = ", ".join(f"{what} {statistics.median(values):.0f}" for what, values in took.items())
            print(f"{name}, {nodes} nodes: {medians} us")


if __name__ == "__main__":
    main()

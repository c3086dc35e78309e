"""Microseconds of CPU that the inventory spends on each kind of news and of question, for a cluster
of 8-card nodes.

    python hack/bench/inventory.py [--nodes 100 1000 5000] [--times 300]

News: one object changes. Questions: asked right after a change, so that what is kept has to be
mended. Prints medians, one column per cluster size: a row that grows with the cluster is one that
looks at all of it.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from hack.bench.decide import CARDS, DRIVER, furnished
from hami_dra.api.core import Node, Pod
from hami_dra.api.resource import ResourceClaim, ResourceSlice

ZONE = "topology.kubernetes.io/zone"
PODS_PER_NODE = 10
Step = Callable[[int], object]


def claim(number: int, node: str) -> ResourceClaim:
    consumed = {"memory": "4Gi", "cores": "10", "shares": "1"}
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": f"gpu-{number % CARDS}", "shareID": "s"}
    status = {"allocation": {"devices": {"results": [{**result, "consumedCapacity": consumed}]}}}
    metadata = {"name": f"c{number}", "namespace": "bench", "uid": f"c{number}"}
    return msgspec.convert({"metadata": metadata, "status": status}, ResourceClaim)


def pod(number: int, node: str = "", **spec: object) -> Pod:
    container = {"name": "main", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}
    body = {"containers": [container], "nodeName": node, **spec}
    metadata = {"name": f"p{number}", "namespace": "bench", "uid": f"p{number}", "labels": {"app": f"a{number % 20}"}}
    return msgspec.convert({"metadata": metadata, "spec": body}, Pod)


class Cluster:
    """A furnished inventory, its pods in three zones, and one step for every kind of news and question."""

    def __init__(self, nodes: int) -> None:
        start = time.process_time()
        self.inventory = furnished(nodes)
        self.sync_us = (time.process_time() - start) * 1e6 / nodes
        self.names = self.inventory.nodes.names
        for number, name in enumerate(self.names):
            self._label(number, {ZONE: f"z{number % 3}"})
            for each in range(PODS_PER_NODE):
                self.inventory.pod_changed(None, pod(PODS_PER_NODE * number + each, name))
        spread = {
            "topologyKey": ZONE,
            "maxSkew": nodes,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "a1"}},
        }
        self._plain = pod(-1, nodeSelector={ZONE: "z1"})
        self._spread = pod(-2, topologySpreadConstraints=[spread])
        pin = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [self.names[0]]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [pin]}}
        self._daemon = pod(-3, affinity={"nodeAffinity": required})
        self._slices = {name: self._slice(name) for name in self.names}

    def steps(self) -> dict[str, Step]:
        """The part before the bar is news or a change that is not measured itself, see `measured`."""
        return {
            "news: a claim": lambda number: self.inventory.claim_changed(None, claim(number, self._name(number))),
            "news: a pod is bound": lambda number: self.inventory.pod_changed(
                None, pod(10**6 + number, self._name(number))
            ),
            "news: a node's heartbeat": self._heartbeat,
            "news: a slice": lambda number: self.inventory.slice_changed(None, self._slices[self._name(number)]),
        }

    def questions(self) -> dict[str, tuple[Step, Callable[[], object]]]:
        """What changes first, and what is asked then."""
        inventory = self.inventory
        same = f'device.driver == "{DRIVER}"'
        fresh = iter(range(10**9))
        return {
            "node scores, after a claim": (self._claim, lambda: inventory.nodes.score),
            "node fit, after a pod": (self._pod, lambda: inventory.rules.node_fit(self._plain)),
            "node fit, after a node's labels": (self._relabel, lambda: inventory.rules.node_fit(self._plain)),
            "node fit of a DaemonSet pod": (self._pod, lambda: inventory.rules.node_fit(self._daemon)),
            "node fit with zones, after a pod": (self._pod, lambda: inventory.rules.node_fit(self._spread)),
            "selected devices, after a slice": (self._republish, lambda: inventory.verdicts.matching(same)),
            "selected devices, new expression": (
                self._pod,
                lambda: inventory.verdicts.matching(f'{same} && "{next(fresh)}" != ""'),
            ),
            "pools of a node, after its slice": (
                self._republish,
                lambda: inventory.pools_on(self.names[0]),
            ),
        }

    def _name(self, number: int) -> str:
        return self.names[number * 7919 % len(self.names)]

    def _claim(self, number: int) -> None:
        self.inventory.claim_changed(None, claim(number, self._name(number)))

    def _pod(self, number: int) -> None:
        self.inventory.pod_changed(None, pod(2 * 10**6 + number, self._name(number)))

    def _heartbeat(self, number: int) -> None:
        node = self.inventory.nodes.node(self.inventory.nodes.index_of(self._name(number)))
        self.inventory.node_changed(node, node)

    def _relabel(self, number: int) -> None:
        self._label(number % len(self.names), {ZONE: f"z{number % 3}", "turn": str(number)})

    def _republish(self, number: int) -> None:
        self.inventory.slice_changed(None, self._slice(self.names[0 if number % 2 else number % len(self.names)]))

    def _label(self, number: int, labels: dict[str, str]) -> None:
        old = self.inventory.nodes.node(self.inventory.nodes.index_of(self.names[number]))
        metadata = msgspec.structs.replace(old.metadata, labels=labels)
        new: Node = msgspec.structs.replace(old, metadata=metadata)
        self.inventory.node_changed(old, new)

    def _slice(self, name: str) -> ResourceSlice:
        (pool,) = self.inventory.pools_on(name)
        return pool.devices[0].slice


def medians(cluster: Cluster, times: int) -> dict[str, float]:
    found = {"first sync, per node": cluster.sync_us}
    for what, step in cluster.steps().items():
        found[what] = statistics.median(measured(lambda _: None, step, times))
    for what, (change, ask) in cluster.questions().items():
        found[what] = statistics.median(measured(change, _regardless(ask), times))
    return found


def _regardless(ask: Callable[[], object]) -> Step:
    """Asks whatever the number."""
    return lambda _: ask()


def measured(change: Step, ask: Step, times: int) -> list[float]:
    """Microseconds of CPU of each `ask`, the first left out."""
    took = []
    for number in range(times + 1):
        change(number)
        start = time.process_time_ns()
        ask(number)
        took.append((time.process_time_ns() - start) / 1e3)
    return took[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--times", type=int, default=300)
    chosen = parser.parse_args()
    gc.disable()  # its pauses depend on what else is in memory
    columns = [medians(Cluster(nodes), chosen.times) for nodes in chosen.nodes]
    print(f"{'microseconds of CPU, nodes:':<36}" + "".join(f"{nodes:>9}" for nodes in chosen.nodes))
    for what in columns[0]:
        print(f"{what:<36}" + "".join(f"{column[what]:9.1f}" for column in columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a controller costs in clusters of 500, 5,000 and 15,000 nodes: start-up, memory, decisions,
news, bursts; as a curve.

    python hack/bench/scale.py [--nodes 500 5000 15000] [--decisions 400] [--rounds 5]

Nodes of 8 linked cards, four running pods for each node (on half of them), each with a claim for a
part of a card. Every size runs in a process of its own, and so does every round of it, the sizes in
an order of the round's own: it reads the initial events of watches as an API server sends them
(written beforehand, so that only reading counts), through the controller's own reflectors and
inventory. All times are CPU time: what else the machine does counts little. Prints the median of
the rounds, with the least and the most where there are several and the load of the machine beside,
and for every cost how it grows from the smallest to the largest cluster: as the 1.00th power of the
number of nodes would be one that looks at all of it; 0.50 is the square root.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from controller.cli.heap import collect_in_pieces
from controller.decide import Decision, Options, PodClaim, SchedulingRequest, decide
from controller.inventory.inventory import Inventory
from controller.reconcile.runtime.clock import LoopClock
from controller.reconcile.runtime.informers import Informers
from controller.scoring.policies import DevicePolicy, Policies
from hack.bench.rounds import orders, spread
from hami_dra.api import kinds, names
from hami_dra.api.allocator import with_allocator
from hami_dra.api.core import Node, Pod
from hami_dra.api.kinds import Kind
from hami_dra.api.resource import ResourceClaim
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.kube.decoding import whole_lines
from hami_dra.kube.http_watch import InitialEvents
from hami_dra.kube.protocol import Listing

MACHINE = "dgx-h100"
CARDS = 8
PODS_PER_NODE = 4
CHUNK = 2**16
"""Bytes that one read of a connection returns."""
NAMESPACE = "team-a"
BURST = 2_000
LOAD = "load of the machine before"
STAYING = 50
CLASS = "nvidia-gpu.hami.io"
LINKED = {
    "constraints": [{"matchAttribute": "hami.io/linkGroup"}, {"matchAttribute": "resource.kubernetes.io/numaNode"}]
}
ZONE = "topology.kubernetes.io/zone"
VOLUMES = 1_000
CSI_DRIVER = "csi.example.com"
AWARE = Policies(device_policy=DevicePolicy(("topology-aware",)))
PACKED = Policies(node_policy="binpack", device_policy=DevicePolicy(("binpack",)))


@dataclass(frozen=True)
class Question:
    count: int
    policies: Policies
    capacity: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    spec: Callable[[int], Mapping[str, Any]] = lambda _number: {}
    """Further fields of the spec of the pod with this number."""
    labels: Mapping[str, str] = field(default_factory=dict)


def claim_volume(number: int) -> dict[str, Any]:
    """A volume of the pod's own, in one of the zones."""
    source = {"claimName": f"data-{number % VOLUMES}"}
    return {"volumes": [{"name": "data", "persistentVolumeClaim": source}]}


def apart_from(app: str) -> dict[str, Any]:
    """Required anti-affinity to the pods of one application on the same node."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def preferring(app: str) -> dict[str, Any]:
    """A preferred zone, soft spread over nodes, and preferred anti-affinity to one application."""
    selector = {"matchLabels": {"app": app}}
    zone = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z1"]}]}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    spread = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}
    return {
        "affinity": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "preference": zone}]},
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": term}]
            },
        },
        "topologySpreadConstraints": [spread],
    }


QUESTIONS = {
    "decide: a shared card": Question(1, PACKED, {"memory": "7500Mi", "cores": "0"}),
    "decide: 8 whole cards": Question(8, PACKED),
    "decide: 4 cards, topology-aware": Question(4, AWARE),
    "decide: 2 cards, two constraints": Question(2, PACKED, {}, LINKED),
    "decide: a shared card, anti-affine": Question(
        1, PACKED, {"memory": "7500Mi", "cores": "0"}, spec=lambda _number: apart_from("web"), labels={"app": "web"}
    ),
    "decide: a shared card, preferences": Question(
        1, PACKED, {"memory": "7500Mi", "cores": "0"}, spec=lambda _number: preferring("web"), labels={"app": "web"}
    ),
}
REPLICAS = 30
ANTI_AFFINE_BURST = Question(
    1, PACKED, {"memory": "7500Mi", "cores": "0"}, spec=lambda _number: apart_from("burst"), labels={"app": "burst"}
)
WITH_VOLUMES = {
    "decide: a shared card, zone-bound volume": Question(
        1, PACKED, {"memory": "7500Mi", "cores": "0"}, spec=claim_volume
    ),
}
"""Asked last, with the volumes of `feed_volumes`."""


# --- the cluster as an API server would send it --------------------------------------------------------------------------


def node_body(name: str, number: int) -> dict[str, Any]:
    conditions = [
        {
            "type": kind,
            "status": status,
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "reason": "KubeletHas",
            "message": "kubelet",
        }
        for kind, status in (
            ("MemoryPressure", "False"),
            ("DiskPressure", "False"),
            ("PIDPressure", "False"),
            ("Ready", "True"),
        )
    ]
    amounts = {
        "cpu": "192",
        "memory": "2113517620Ki",
        "pods": "250",
        "ephemeral-storage": "900Gi",
        "hugepages-2Mi": "0",
    }
    images = [
        {"names": [f"registry.example.com/image-{each}@sha256:{'0' * 64}"], "sizeBytes": 10**9} for each in range(20)
    ]
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", ZONE: f"z{number % 3}"}
    return {
        "metadata": {**_meta(name), "labels": labels},
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"example:///{name}"},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": conditions, "images": images},
    }


def pod_body(name: str, node: str, claim: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "registry.example.com/serving:1",
        "args": ["--model=a/model", "--max-model-len=2048"],
        "env": [{"name": f"SETTING_{each}", "value": "x" * 20} for each in range(10)],
        "resources": {
            "requests": {"cpu": "4", "memory": "16Gi"},
            "limits": {"memory": "16Gi"},
            "claims": [{"name": "gpu"}],
        },
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
    }
    spec = {
        "containers": [container],
        "nodeName": node,
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
        "schedulerName": "default-scheduler",
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
    }
    conditions = [
        {"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    labels = {"app": "serving", "pod-template-hash": "5d4f8c7b9"}
    status = {"phase": "Running", "conditions": conditions, "podIP": "10.0.0.1", "startTime": "2026-01-01T00:00:00Z"}
    return {"metadata": {**_meta(name), "namespace": NAMESPACE, "labels": labels}, "spec": spec, "status": status}


def claim_body(name: str, node: str, card: int) -> dict[str, Any]:
    exactly = {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": 1}
    capacity = {"memory": "16Gi", "cores": "20"}
    request = {"name": "gpu", "exactly": {**exactly, "capacity": {"requests": capacity}}}
    result = {
        "request": "gpu",
        "driver": "nvidia.hami.io",
        "pool": node,
        "device": f"gpu-{card}",
        "shareID": f"00000000-0000-0000-0000-{abs(hash(name)) % 10**12:012}",
        "consumedCapacity": {**capacity, "shares": "1"},
    }
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [term]},
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    }
    allocation = with_allocator(allocation, "hami-dra")
    reserved = [{"resource": "pods", "name": name, "uid": f"pod-{name}"}]
    return {
        "metadata": {**_meta(name), "namespace": NAMESPACE},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": allocation, "reservedFor": reserved},
    }


def _meta(name: str) -> dict[str, Any]:
    """With what every object carries and nobody here reads."""
    managed = [
        {
            "manager": "kubelet",
            "operation": "Update",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {f"f:{each}": {} for each in range(30)}},
        }
    ]
    return {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": managed,
    }


def write_cluster(folder: Path, nodes: int) -> None:
    (template,) = slice_bodies(machine_pools(machine(MACHINE, "NODE")))
    text = json.dumps(template)
    names = [f"node-{number:05}" for number in range(nodes)]
    # on every other node, two on a card: the others are empty, for requests of all eight cards
    running = [(f"{name}-p{each}", name, each) for name in names[::2] for each in range(2 * PODS_PER_NODE)]
    selector = {"cel": {"expression": 'device.driver == "nvidia.hami.io"'}}

    def slices() -> Iterator[dict[str, Any]]:
        for name in names:
            body = json.loads(text.replace("NODE", name).replace("GPU-", f"GPU-{name[-5:]}-"))
            yield {**body, "metadata": _meta(f"{name}-slice")}

    _write(folder, kinds.NODE, (node_body(name, number) for number, name in enumerate(names)))
    _write(folder, kinds.RESOURCE_SLICE, slices())
    _write(folder, kinds.DEVICE_CLASS, [{"metadata": _meta(CLASS), "spec": {"selectors": [selector]}}])
    _write(folder, kinds.NAMESPACE, [{"metadata": _meta(NAMESPACE)}])
    _write(folder, kinds.POD, (pod_body(name, node, name) for name, node, _ in running))
    _write(folder, kinds.RESOURCE_CLAIM, (claim_body(name, node, each // 2) for name, node, each in running))


def _write(folder: Path, kind: Kind[Any], items: Iterable[Mapping[str, Any]]) -> None:
    """The initial events of a watch."""
    end = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}
    names = {"kind": kind.name, "apiVersion": kind.api_version}
    with (folder / kind.plural).open("w") as lines:
        for item in items:
            lines.write(json.dumps({"type": "ADDED", "object": {**names, **item}}, separators=(",", ":")) + "\n")
        lines.write(json.dumps({"type": "BOOKMARK", "object": names | {"metadata": end}}) + "\n")


def feed_volumes(inventory: Inventory) -> None:
    """Bound claims, each with a volume in one of three zones, and nodes that attach 128 volumes."""

    def feed(kind: Kind[Any], metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        inventory.volumes.changed(kind.name, None, msgspec.convert({"metadata": metadata, "spec": spec}, kind.type))

    for number in range(VOLUMES):
        zone = {"key": ZONE, "operator": "In", "values": [f"z{number % 3}"]}
        reference = {"namespace": NAMESPACE, "name": f"data-{number}"}
        affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
        source = {"driver": CSI_DRIVER, "volumeHandle": str(number)}
        bound = {"nodeAffinity": affinity, "claimRef": reference, "csi": source}
        feed(kinds.PERSISTENT_VOLUME, {"name": f"pv-{number}", "labels": {ZONE: f"z{number % 3}"}}, bound)
        metadata = {**reference, "annotations": {names.BIND_COMPLETED: "yes"}}
        feed(kinds.PERSISTENT_VOLUME_CLAIM, metadata, {"volumeName": f"pv-{number}"})
    for name in inventory.nodes.names:
        feed(kinds.CSI_NODE, {"name": name}, {"drivers": [{"name": CSI_DRIVER, "allocatable": {"count": 128}}]})


class Streams:
    """As much of a `Cluster` as reflectors need: initial events from files, watches in which nothing happens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def watch_list(self, kind: Kind[Any], **_scope: str) -> tuple[Listing[Any], AsyncGenerator[Any]]:
        path = self._folder / kind.plural
        if not path.exists():
            return Listing((), "1"), self.watch(kind)
        found, pending = InitialEvents(kind), bytearray()
        with path.open("rb") as events:
            while chunk := events.read(CHUNK):
                if (everything := found.feed(whole_lines(pending, chunk))) is not None:
                    return everything[0], self.watch(kind)
                await asyncio.sleep(0)
        raise SystemExit(f"{path}: no bookmark at the end")

    async def resource_version(self, _kind: Kind[Any], **_scope: str) -> str:
        return "1"

    async def watch(self, _kind: Kind[Any], **_scope: str) -> AsyncGenerator[Any]:
        await asyncio.Event().wait()
        yield


# --- one size ------------------------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, folder: Path, decisions: int) -> None:
        self._folder = folder
        self._decisions = decisions
        self._options = Options(managed=frozenset({"nvidia.hami.io"}))
        self._inventory = Inventory()
        self._serial = 0
        self.found: dict[str, float] = {}

    async def run(self) -> None:
        collect_in_pieces()
        start = time.process_time()
        informers = Informers(Streams(self._folder), self._inventory, LoopClock(), None)  # type: ignore[arg-type]  # lists and watches only
        running = asyncio.create_task(informers.run())
        await informers.wait_synced()
        gc.collect(0)
        gc.freeze()
        self._decide(QUESTIONS["decide: a shared card"])
        self.found["start-up to the first decision, s"] = time.process_time() - start
        self.found["memory, MiB"] = _memory()
        self.found["memory, most until then, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self._ask(QUESTIONS)
        self.found["a changed node, median ms"] = statistics.median(self._nodes_changed()) * 1e3
        start = time.process_time()
        for _ in range(BURST):
            self._decide(QUESTIONS["decide: a shared card"])
        self.found[f"a burst of {BURST} pods, s"] = time.process_time() - start
        self.found[f"a burst of {REPLICAS} anti-affine replicas, ms"] = self._anti_affine_burst() * 1e3
        took = self._decisions_of(QUESTIONS["decide: a shared card"])
        self.found["decide: a shared card, next to them, median ms"] = statistics.median(took) * 1e3
        self.found["memory at the end, MiB"] = _memory()
        feed_volumes(self._inventory)
        self._ask(WITH_VOLUMES)
        running.cancel()

    def _ask(self, questions: Mapping[str, Question]) -> None:
        for name, question in questions.items():
            took = self._decisions_of(question)
            self.found[f"{name}, median ms"] = statistics.median(took) * 1e3
            self.found[f"{name}, p99 ms"] = statistics.quantiles(took, n=100)[98] * 1e3

    def _decisions_of(self, question: Question) -> list[float]:
        """Seconds each; of the pods placed the last 50 stay, so that there is always something to mend."""
        took = []
        placed: list[tuple[str, str]] = []
        for number in range(self._decisions + 1):
            seconds, claim, pod = self._decide(question)
            if number:
                took.append(seconds)
            placed.append((claim, pod))
            if len(placed) > STAYING:
                self._leave(*placed.pop(0))
        for each in placed:
            self._leave(*each)
        return took

    def _leave(self, claim: str, pod: str) -> None:
        self._inventory.forget(claim)
        self._inventory.forget_pod(pod)

    def _decide(self, question: Question) -> tuple[float, str, str]:
        """Seconds, and the uids of claim and pod, which are assumed."""
        self._serial += 1
        wanted = _scheduling_request(self._serial, question)
        start = time.process_time()
        answer = decide(self._inventory, wanted, self._options)
        seconds = time.process_time() - start
        if not isinstance(answer, Decision):
            raise SystemExit(f"no place: {answer.message} {dict(answer.reasons)}")
        (claim,) = answer.allocations
        self._inventory.usage.assume(answer.holdings)
        self._inventory.assume_pod(wanted.pod, answer.node)
        return seconds, claim.claim.metadata.uid, wanted.pod.metadata.uid

    def _anti_affine_burst(self) -> float:
        """Seconds for the replicas of one workload that was never seen, each on a node of its own."""
        start = time.process_time()
        for _ in range(REPLICAS):
            self._decide(ANTI_AFFINE_BURST)
        return time.process_time() - start

    def _nodes_changed(self) -> list[float]:
        """A node's labels change, and the next pod is decided: what the news cost beyond that decision."""
        took = []
        question = QUESTIONS["decide: a shared card"]
        names = self._inventory.nodes.names
        plain = statistics.median(self._decisions_of(question))
        for number in range(100):
            name = names[number * 7919 % len(names)]
            old = self._inventory.nodes.node(self._inventory.nodes.index_of(name))
            labels = {**old.metadata.labels, "turn": str(number)}
            new: Node = msgspec.structs.replace(old, metadata=msgspec.structs.replace(old.metadata, labels=labels))
            start = time.process_time()
            self._inventory.node_changed(old, new)
            seconds = time.process_time() - start
            decided, claim, pod = self._decide(question)
            self._leave(claim, pod)
            took.append(max(seconds + decided - plain, 0.0))
        return took


def _scheduling_request(number: int, question: Question) -> SchedulingRequest:
    exactly: dict[str, Any] = {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": question.count}
    if question.capacity:
        exactly["capacity"] = {"requests": question.capacity}
    name = f"new-{number}"
    metadata = {"name": name, "namespace": NAMESPACE, "uid": name, "labels": dict(question.labels)}
    devices = {"requests": [{"name": "gpu", "exactly": exactly}], **question.more}
    claim = msgspec.convert(
        {"metadata": {**metadata, "uid": f"claim-{name}"}, "spec": {"devices": devices}}, ResourceClaim
    )
    container = {"name": "main", "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}
    spec = {"containers": [container], **question.spec(number)}
    pod = msgspec.convert({"metadata": metadata, "spec": spec}, Pod)
    return SchedulingRequest(pod=pod, claims=(PodClaim("gpu", claim),), policies=question.policies)


def _memory() -> float:
    """Resident MiB that are the process's own."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) / 1024


def rounds_of(sizes: list[int], rounds: int, decisions: int) -> dict[int, dict[str, list[float]]]:
    """Return `nodes -> figure -> value of each round`."""
    found: dict[int, dict[str, list[float]]] = {nodes: {} for nodes in sizes}
    with tempfile.TemporaryDirectory(prefix="hami-dra-scale-") as parent:
        folders = {str(nodes): Path(parent) / str(nodes) for nodes in sizes}
        for name, folder in folders.items():
            folder.mkdir()
            write_cluster(folder, int(name))
        for number, order in enumerate(orders(list(folders), rounds), start=1):
            for name in order:
                load = os.getloadavg()[0]
                print(f"round {number}: {name} nodes, load {load:.1f} ...", file=sys.stderr, flush=True)
                command = [sys.executable, __file__, "--folder", str(folders[name]), "--decisions", str(decisions)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                for figure, value in {**json.loads(done.stdout), LOAD: load}.items():
                    found[int(name)].setdefault(figure, []).append(value)
    return found


def power(sizes: list[int], values: list[float]) -> str:
    """By which power of the number of nodes the cost grows between the ends."""
    if len(sizes) < 2 or not values[0] or not values[-1]:
        return ""
    return f"{math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0]):.2f}"


def main(say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[500, 5000, 15000])
    parser.add_argument("--decisions", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.folder is not None:
        bench = Bench(chosen.folder, chosen.decisions)
        asyncio.run(bench.run())
        say(json.dumps(bench.found))
        return 0
    found = rounds_of(chosen.nodes, chosen.rounds, chosen.decisions)
    if chosen.output == "json":
        medians = {
            f"{name}, {nodes} nodes": statistics.median(values)
            for nodes, figures in found.items()
            for name, values in figures.items()
            if name != LOAD
        }
        say(json.dumps(medians))
        return 0
    width = 10 if chosen.rounds == 1 else 28
    say(f"{'nodes':<56}" + "".join(f"{nodes:>{width}}" for nodes in chosen.nodes) + f"{'power':>8}")
    for name in found[chosen.nodes[0]]:
        rounds = [found[nodes][name] for nodes in chosen.nodes]
        cells = [spread(values, 2) if chosen.rounds > 1 else f"{values[0]:.2f}" for values in rounds]
        grows = power(chosen.nodes, list(map(statistics.median, rounds))) if name != LOAD else ""
        say(f"{name:<56}" + "".join(f"{cell:>{width}}" for cell in cells) + f"{grows:>8}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

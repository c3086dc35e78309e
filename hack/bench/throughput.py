"""Pods bound per second on one real control plane: kube-scheduler alone against hami-dra, gate on and off, and gangs.

    python hack/bench/throughput.py --nodes 200 --pods 1000
    python hack/bench/throughput.py --nodes 500 --pods 1000 --gang-size 8 --gangs
    python hack/bench/throughput.py --nodes 512 --pods 1000 --gang-size 2 --gangs

Each variant gets a fresh control plane with raised client limits, the same nodes, slices and pods; one pod has one claim
for a part of a card. The node life-cycle controller is off: nodes stay Ready without heartbeats, and only what schedules
is measured. Prints pods/s from the first create to the last bind, the ratio to kube-scheduler alone, and the CPU seconds
of every process in between, this one included, which creates and watches the pods. The machine has few cores and all share
them: where it is never idle, pods/s are the inverse of the CPU time a pod costs all of them together, and that figure is less
disturbed by what else runs. `--requests` adds how often the API server was asked what, for each pod.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack.controlplane import variants
from hack.controlplane.cluster import ControlPlane
from hami_dra.api import names

NAMESPACE = "bench"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DRIVER = "nvidia.hami.io"
GIB = 1 << 30
CREATORS = 4


@dataclass(frozen=True)
class Variant:
    """Who schedules, and how its pods state that they are gangs."""

    gate: bool | None = None
    """Of hami-dra; None: kube-scheduler alone."""
    gangs: Literal["", "labels", "PodGroups"] = ""
    """PodGroups of scheduling.k8s.io need GenericWorkload: the control plane has it on."""


ALONE = "kube-scheduler alone"
VARIANTS = {
    ALONE: Variant(),
    "hami-dra, gate on": Variant(gate=True),
    "hami-dra, gate off": Variant(gate=False),
    "kube-scheduler alone, PodGroups": Variant(gangs="PodGroups"),
    "hami-dra, PodGroups": Variant(gate=True, gangs="PodGroups"),
    "hami-dra, gangs by labels": Variant(gate=True, gangs="labels"),
}
WITHOUT_GANGS = tuple([name for name, each in VARIANTS.items() if not each.gangs])
OF_GANGS = tuple([name for name, each in VARIANTS.items() if each.gate is not False])
GROUPS = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{NAMESPACE}/podgroups"


@dataclass
class Result:
    variant: str
    bound: int
    seconds: float
    cpu: dict[str, float] = field(default_factory=dict)
    """Seconds by process."""
    idle: float = 0.0
    """Share of the machine that nobody used meanwhile; where it is not small, something waited."""
    requests: dict[str, float] = field(default_factory=dict)
    """`VERB resource` -> how many the API server answered with success."""

    @property
    def rate(self) -> float:
        return self.bound / self.seconds if self.seconds else 0.0

    @property
    def milliseconds(self) -> float:
        """CPU time of all processes for one pod."""
        return 1000 * sum(self.cpu.values()) / self.bound if self.bound else 0.0


def card(index: int) -> dict[str, Any]:
    """A 16 GiB card in the form our driver publishes (deviceclasses/, resourceslices/), without its topology."""
    return {
        "name": f"gpu-{index}",
        "allowMultipleAllocations": True,
        "attributes": {
            "hami.io/vendor": {"string": "NVIDIA"},
            "hami.io/productName": {"string": "Tesla T4"},
            "hami.io/index": {"int": index},
        },
        "capacity": {
            "memory": {
                "value": "16Gi",
                "requestPolicy": {"default": "16Gi", "validRange": {"min": "0", "step": "1Mi", "max": "16Gi"}},
            },
            "cores": {
                "value": "100",
                "requestPolicy": {"default": "100", "validRange": {"min": "0", "step": "1", "max": "100"}},
            },
            "shares": {"value": "10", "requestPolicy": {"default": "1", "validValues": ["1"]}},
        },
    }


def in_parallel(plane: ControlPlane, bodies: list[tuple[str, dict[str, Any]]]) -> None:
    """Creates (path, body) with a few connections."""
    with ThreadPoolExecutor(CREATORS) as pool:
        list(pool.map(lambda item: plane.api.create(*item), bodies))


def furnish(plane: ControlPlane, nodes: int, cards: int) -> None:
    """Nodes, slices, class, namespace, template."""
    resources = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    status = {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}
    names = [f"node-{number:05d}" for number in range(nodes)]
    in_parallel(plane, [("/api/v1/nodes", {"metadata": {"name": name}}) for name in names])

    def make_ready(name: str) -> None:
        plane.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        plane.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    with ThreadPoolExecutor(CREATORS) as pool:
        list(pool.map(make_ready, names))
    devices = [card(index) for index in range(cards)]
    slices = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{name}-slice"},
            "spec": {
                "driver": DRIVER,
                "nodeName": name,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        }
        for name in names
    ]
    in_parallel(plane, [("/apis/resource.k8s.io/v1/resourceslices", item) for item in slices])
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    plane.api.create(
        "/apis/resource.k8s.io/v1/deviceclasses",
        {"metadata": {"name": "bench"}, "spec": {"selectors": [selector]}},
    )
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    plane.api.wait_for("the service account", lambda: plane.api.get(account), seconds=60)
    request = {
        "name": "gpu",
        "exactly": {
            "deviceClassName": "bench",
            "capacity": {"requests": {"memory": "7500Mi", "cores": "0"}},
        },
    }
    plane.api.create(
        f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaimtemplates",
        {"metadata": {"name": "part"}, "spec": {"spec": {"devices": {"requests": [request]}}}},
    )


def pod(number: int, *, labelled: bool, gangs: str = "", gang_size: int = 0) -> dict[str, Any]:
    """`gangs`: as of `Variant`. `gang_size`: pods in a row that are a gang."""
    labels, group = {"hami.io/dra": "true"} if labelled else {}, {}
    if gangs == "labels":
        labels |= {names.POD_GROUP_NAME: gang_name(number, gang_size), names.POD_GROUP_MIN_AVAILABLE: str(gang_size)}
    elif gangs:
        group = {"schedulingGroup": {"podGroupName": gang_name(number, gang_size)}}
    return {
        "metadata": {"name": f"pod-{number:05d}", "labels": labels},
        "spec": {
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "part"}],
            **group,
        },
    }


def gang_name(number: int, gang_size: int) -> str:
    return f"gang-{number // gang_size}"


def bodies(variant: Variant, pods: int, gang_size: int) -> list[tuple[str, dict[str, Any]]]:
    """What is created, with its path: the PodGroup of each gang goes before its pods."""
    found: list[tuple[str, dict[str, Any]]] = []
    for number in range(pods):
        if variant.gangs == "PodGroups" and number % gang_size == 0:
            spec = {"schedulingPolicy": {"gang": {"minCount": gang_size}}}
            found.append((GROUPS, {"metadata": {"name": gang_name(number, gang_size)}, "spec": spec}))
        labelled = variant.gate is True
        found.append((PODS, pod(number, labelled=labelled, gangs=variant.gangs, gang_size=gang_size)))
    return found


def measure(name: str, *, version: str, nodes: int, cards: int, pods: int, patience: float, gang_size: int) -> Result:
    variant = VARIANTS[name]
    plane_options = variants.variant(variants.GANGS if variant.gangs == "PodGroups" else version).options
    options = {"kube-controller-manager": ["--controllers=*,-node-lifecycle-controller,-taint-eviction-controller"]}
    with ControlPlane(**plane_options, client_qps=5000, extra_args=options) as plane:
        furnish(plane, nodes, cards)
        if variant.gate is not None:
            start_controller(plane, gate=variant.gate)
        bound: set[str] = set()
        finished = threading.Event()
        last = [0.0]

        def follow() -> None:
            while not finished.is_set():
                for event in plane.api.watch(PODS, seconds=30):
                    item = event["object"]
                    if item.get("spec", {}).get("nodeName") and item["metadata"]["name"] not in bound:
                        bound.add(item["metadata"]["name"])
                        last[0] = time.monotonic()
                    if len(bound) == pods:
                        finished.set()
                    if finished.is_set():
                        return

        asked, ticks = requests(plane), machine_ticks()
        before = cpu_seconds(plane)
        watcher = threading.Thread(target=follow, daemon=True)
        watcher.start()
        start = time.monotonic()
        in_parallel(plane, bodies(variant, pods, gang_size))
        created = time.monotonic() - start
        finished.wait(patience)
        finished.set()
        cpu = {name: value - before.get(name, 0.0) for name, value in cpu_seconds(plane).items()}
        idle, all_ticks = (now - then for now, then in zip(machine_ticks(), ticks, strict=True))
        answered = {name: float(count - asked[name]) for name, count in requests(plane).items() if count > asked[name]}
        print(f"  {name}: {len(bound)} bound, all created after {created:.1f} s", file=sys.stderr, flush=True)
        return Result(name, len(bound), last[0] - start, cpu, idle / all_ticks, answered)


def cpu_seconds(plane: ControlPlane) -> dict[str, float]:
    return {**plane.cpu_seconds(), "this program": time.process_time()}


def machine_ticks() -> tuple[int, int]:
    """Idle and all, since the machine was started (proc(5), /proc/stat)."""
    user, nice, system, idle, iowait, *others = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return idle + iowait, user + nice + system + idle + iowait + sum(others)


def requests(plane: ControlPlane) -> Counter[str]:
    found: Counter[str] = Counter()
    for labels, count in re.findall(
        r"^apiserver_request_total\{(.*)\} (\S+)$", plane.api.text("/metrics"), re.MULTILINE
    ):
        label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if label["code"].startswith("2"):
            path = "/".join(part for part in (label["resource"], label["subresource"]) if part)
            found[f"{label['verb']} {path}"] += int(float(count))
    return found


def start_controller(plane: ControlPlane, *, gate: bool) -> None:
    """Installs what ships, starts the controller under its own ServiceAccount, waits until it decides."""
    from hack.installation import Installation

    installation = Installation(plane)
    installation.install(webhook=False)
    installation.start_controller("--manage", DRIVER, f"--gate={'on' if gate else 'off'}")
    installation.wait_ready(seconds=300)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="1.37.1", choices=["1.37.1", "1.36.4"])
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--cards", type=int, default=8)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--patience", type=float, default=180, help="seconds after which unbound pods are given up")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="only these; default: all without gangs")
    parser.add_argument(
        "--gangs", action="store_true", help="the variants with the gate, without gangs and with; PodGroups on 1.37.1"
    )
    parser.add_argument("--gang-size", type=int, default=8, help="members of each gang; must divide the pods")
    parser.add_argument("--requests", action="store_true", help="also what the API server was asked for each pod")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    chosen = parser.parse_args()
    chosen_variants = chosen.variant or (OF_GANGS if chosen.gangs else WITHOUT_GANGS)
    has_gangs = any(VARIANTS[name].gangs for name in chosen_variants)
    if has_gangs and (chosen.gang_size < 1 or chosen.pods % chosen.gang_size):
        parser.error(f"--gang-size {chosen.gang_size} does not divide --pods {chosen.pods}")
    results = [
        measure(
            variant,
            version=chosen.version,
            nodes=chosen.nodes,
            cards=chosen.cards,
            pods=chosen.pods,
            patience=chosen.patience,
            gang_size=chosen.gang_size,
        )
        for variant in chosen_variants
    ]
    if chosen.output == "json":
        print(json.dumps([{**vars(result), "rate": result.rate} for result in results], indent=2))
        return 0
    print(f"{chosen.nodes} nodes x {chosen.cards} cards, {chosen.pods} pods, Kubernetes {chosen.version}")
    for result in results:
        ratio = f"{result.rate / results[0].rate:5.2f} x" if results[0].rate else ""
        cpu = ", ".join(f"{name} {seconds:.1f}" for name, seconds in result.cpu.items())
        print(f"  {result.variant:<31} {result.rate:7.1f} pods/s  {ratio}  ({result.bound} bound; CPU s: {cpu})")
        less = f"{results[0].milliseconds / result.milliseconds:5.2f} x" if result.milliseconds else ""
        print(f"  {'':<31} {result.milliseconds:7.1f} ms CPU a pod {less}; machine idle {result.idle:.0%}")
    if chosen.requests:
        print_requests(results)
    return 0


def print_requests(results: list[Result]) -> None:
    """A line for each kind of request of which some variant makes one for every fifty pods or more; watches do not count."""
    shares = [{name: count / max(result.bound, 1) for name, count in result.requests.items()} for result in results]
    frequent = sorted({name for share in shares for name, count in share.items() if count >= 0.02})
    print("requests for each pod: " + " | ".join(result.variant for result in results))
    for name in frequent:
        if not name.startswith("WATCH"):
            print(f"  {name:<32}" + "".join(f"{share.get(name, 0.0):8.2f}" for share in shares))


if __name__ == "__main__":
    sys.exit(main())

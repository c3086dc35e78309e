"""What throughput.py fills a control plane with, and who schedules on it: nodes, slices, pods,
variants, one run.

The control plane stays: hami-dra is installed and removed between runs, and all pods and claims of
a run are gone before the next one begins, so that every variant meets the same warm API server.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hack.controlplane.api import NotReached
from hack.controlplane.cluster import ControlPlane
from hack.installation import Installation
from hami_dra.api import names

NAMESPACE = "bench"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
OWNERS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
OWNER = "workload"
"""Owns all pods as a controller does: nothing about them is for a person to read."""
GROUPS = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{NAMESPACE}/podgroups"
DRIVER = "nvidia.hami.io"
CLASS = "bench.hami.io"
CREATORS = 4
WARMING = 32
"""Pods bound and not counted after each installation: the control plane's own programs are warm in every round, too."""
SETTLED = 0.1
"""CPU seconds of the API server within a second: it has nothing to do."""


@dataclass(frozen=True)
class Variant:
    """Who schedules, and what its pods are."""

    gate: bool | None = None
    """Of hami-dra, with its webhook and all its policies; None: it is not installed."""
    gangs: Literal["", "labels", "PodGroups"] = ""
    """PodGroups of scheduling.k8s.io need GenericWorkload: the control plane has it on, for all variants."""


@dataclass
class Result:
    """One run. `load`: 1-minute load average of the machine right before it."""

    variant: str
    bound: int
    seconds: float
    cpu: dict[str, float] = field(default_factory=dict)
    """Seconds by process."""
    idle: float = 0.0
    """Share of the machine that nobody used meanwhile; where it is not small, something waited."""
    load: float = 0.0
    requests: dict[str, float] = field(default_factory=dict)
    """`VERB resource` -> how many the API server answered with success."""

    @property
    def rate(self) -> float:
        return self.bound / self.seconds if self.seconds else 0.0

    def milliseconds(self, process: str = "") -> float:
        """CPU time for one pod, of one process or of all."""
        spent = self.cpu.get(process, 0.0) if process else sum(self.cpu.values())
        return 1000 * spent / self.bound if self.bound else 0.0


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
        {"metadata": {"name": CLASS}, "spec": {"selectors": [selector]}},
    )
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    plane.api.create(OWNERS, {"metadata": {"name": OWNER}})
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    plane.api.wait_for("the service account", lambda: plane.api.get(account), seconds=60)
    request = {
        "name": "gpu",
        "exactly": {
            "deviceClassName": CLASS,
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


def owner_of_pods(plane: ControlPlane) -> dict[str, Any]:
    """Return the entry of metadata.ownerReferences."""
    uid = plane.api.get(f"{OWNERS}/{OWNER}")["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": OWNER, "uid": uid, "controller": True}


def bodies(plane: ControlPlane, variant: Variant, pods: int, gang_size: int) -> list[tuple[str, dict[str, Any]]]:
    """What is created, with its path: the PodGroup of each gang goes before its pods."""
    found: list[tuple[str, dict[str, Any]]] = []
    owner = owner_of_pods(plane)
    for number in range(pods):
        if variant.gangs == "PodGroups" and number % gang_size == 0:
            spec = {"schedulingPolicy": {"gang": {"minCount": gang_size}}}
            found.append((GROUPS, {"metadata": {"name": gang_name(number, gang_size)}, "spec": spec}))
        labelled = variant.gate is True
        body = pod(number, labelled=labelled, gangs=variant.gangs, gang_size=gang_size)
        body["metadata"]["ownerReferences"] = [owner]
        found.append((PODS, body))
    return found


class Bench:
    """Runs of variants on one furnished control plane."""

    def __init__(self, plane: ControlPlane, *, pods: int, gang_size: int, patience: float) -> None:
        self._plane = plane
        self.pods = pods
        self._gang_size = gang_size
        self._patience = patience
        self._installation: Installation | None = None
        self._gate: bool | None = None

    def run(self, name: str, variant: Variant) -> Result:
        """Install what the variant needs, bind its pods, and clear away. Raises TimeoutError."""
        if self._install(variant.gate):
            self._warm(name, variant)
        settle(self._plane)
        load = float(Path("/proc/loadavg").read_text().split()[0])
        result = self._measure(name, variant)
        result.load = load
        self.clear()
        return result

    def _warm(self, name: str, variant: Variant) -> None:
        counted = self.pods
        self.pods = max(WARMING // self._gang_size, 1) * self._gang_size
        self._measure(name, variant)
        self.pods = counted
        self.clear()

    def _install(self, gate: bool | None) -> bool:
        """Return whether hami-dra was installed now."""
        if self._installation is not None and gate == self._gate:
            return False
        if self._installation is not None:
            self._installation.remove()
            self._installation = None
        self._gate = gate
        if gate is None:
            return False
        self._installation = Installation(self._plane)
        self._installation.install(gate=gate)
        self._installation.start_webhook()
        self._installation.start_controller("--manage", DRIVER)
        self._installation.wait_ready(seconds=300)
        return True

    def clear(self) -> None:
        api = self._plane.api
        for path in (PODS, GROUPS):  # PodGroups are not served everywhere
            with suppress(NotReached):  # many pods take longer than one request may
                api.delete(path, gracePeriodSeconds=0)
        for what, path in (("pods", PODS), ("claims", CLAIMS)):
            self._wait_empty(what, path)

    def _wait_empty(self, what: str, path: str) -> None:
        api = self._plane.api
        api.wait_for(f"no {what} left", lambda: not api.list(path, limit="1"), seconds=300, every=0.5)

    def _measure(self, name: str, variant: Variant) -> Result:
        plane = self._plane
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
                    if len(bound) == self.pods:
                        finished.set()
                    if finished.is_set():
                        return

        created = bodies(plane, variant, self.pods, self._gang_size)
        asked, ticks = requests(plane), machine_ticks()
        before = cpu_seconds(plane)
        watcher = threading.Thread(target=follow, daemon=True)
        watcher.start()
        start = time.monotonic()
        in_parallel(plane, created)
        finished.wait(self._patience)
        finished.set()
        watcher.join(timeout=60)
        cpu = {name: value - before.get(name, 0.0) for name, value in cpu_seconds(plane).items()}
        idle, all_ticks = (now - then for now, then in zip(machine_ticks(), ticks, strict=True))
        answered = {name: float(count - asked[name]) for name, count in requests(plane).items() if count > asked[name]}
        return Result(name, len(bound), last[0] - start, cpu, idle / all_ticks, requests=answered)


def settle(plane: ControlPlane) -> None:
    """Wait until the API server has nothing to do, at most a minute."""
    apiserver = plane.components["kube-apiserver"]
    for _ in range(60):
        before = apiserver.cpu_seconds()
        time.sleep(1)
        if apiserver.cpu_seconds() - before < SETTLED:
            return


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

"""Which sets of victims make room on a world, and which of them is best: independent of kube-scheduler and of hami-dra.

The order is that of kube-scheduler 1.37 (pkg/scheduler/framework/preemption/preemption.go, pickOneNodeForPreemption),
smaller is better: violations of budgets, highest priority of a victim, sum over the victims of (priority + 2^31), their
number, and of those with the highest priority the earliest start, where later is better.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]
Plan = tuple["Cost", list[str]]
"""What a set of victims costs, and their names."""

CARD: Final = "example.com/gpu"
_NEVER_STARTED: Final = "9999-12-31T00:00:00Z"
"""Counts as started now."""
_OFFSET: Final = 1 << 31
_UNITS: Final = (("m", 1), ("Ki", 1000 << 10), ("Mi", 1000 << 20), ("Gi", 1000 << 30))


class Late(str):
    """A time; later is better, so smaller."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__gt__(self, other)

    def __gt__(self, other: str) -> bool:
        return str.__lt__(self, other)


Cost = tuple[int, int, int, int, Late]


def thousandths(quantity: str) -> int:
    for unit, factor in _UNITS:
        if quantity.endswith(unit):
            return int(quantity.removesuffix(unit)) * factor
    return int(quantity) * 1000


@dataclass
class ModelPod:
    """What of a pod matters here. `needs` in thousandths."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    node: str | None
    priority: int
    never: bool
    terminating: bool
    start: str
    needs: dict[str, int] = field(default_factory=dict)
    ports: frozenset[int] = frozenset()
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Collection[Json] = ()
    anti: Collection[Json] = ()
    near: Collection[Json] = ()


def _read(raw: Json) -> ModelPod:
    meta, spec, status = raw["metadata"], raw["spec"], raw.get("status", {})
    needs: dict[str, int] = {}
    for container in spec["containers"]:
        for resource, amount in container["resources"]["requests"].items():
            needs[resource] = needs.get(resource, 0) + thousandths(amount)
    ports = {port["hostPort"] for container in spec["containers"] for port in container.get("ports", ())}
    affinity = spec.get("affinity", {})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    return ModelPod(
        name=meta["name"],
        namespace=meta["namespace"],
        labels=meta.get("labels") or {},
        node=spec.get("nodeName"),
        priority=spec.get("priority", 0),
        never=spec.get("preemptionPolicy") == "Never",
        terminating="deletionTimestamp" in meta,
        start=status.get("startTime", _NEVER_STARTED),
        needs=needs,
        ports=frozenset(ports),
        selector=spec.get("nodeSelector", {}),
        tolerations=spec.get("tolerations", ()),
        anti=affinity.get("podAntiAffinity", {}).get(required, ()),
        near=affinity.get("podAffinity", {}).get(required, ()),
    )


def _is_meant(term: Json, owner: ModelPod, pod: ModelPod) -> bool:
    labels = term["labelSelector"]["matchLabels"]
    return owner.namespace == pod.namespace and labels.items() <= pod.labels.items()


class Model:
    """One world. `as_evicted`: budgets count as the Eviction API reads them, where an empty selector selects all."""

    def __init__(self, world: Json, *, as_evicted: bool = False) -> None:
        self.nodes: dict[str, Json] = {node["metadata"]["name"]: node for node in world["nodes"]}
        self.pod = _read(world["pod"])
        self.pods: list[ModelPod] = []
        for raw in world["pods"]:
            pod = _read(raw)
            if pod.node is None and pod.priority >= self.pod.priority:
                # A nominated pod of equal or higher priority holds its place, others count for nothing.
                pod.node = raw.get("status", {}).get("nominatedNodeName")
            if pod.node is not None:
                self.pods.append(pod)
        self.by_name = {pod.name: pod for pod in self.pods}
        self.terminating = frozenset(pod.name for pod in self.pods if pod.terminating)
        self._budgets = world["pdbs"]
        self._as_evicted = as_evicted

    def pods_of(self, node: str) -> list[ModelPod]:
        return [pod for pod in self.pods if pod.node == node]

    # --- room ---------------------------------------------------------------------------------------------------------

    def fits(self, node: str, gone: Collection[str] = ()) -> bool:
        """The pod fits on the node once the pods named in `gone` are gone."""
        staying = [pod for pod in self.pods if pod.name not in gone]
        here = [pod for pod in staying if pod.node == node]
        return (
            self._suits(node)
            and self._has_room(node, here)
            and not any(pod.ports & self.pod.ports for pod in here)
            and not any(self._keeps_apart(pod, node) for pod in staying)
            and all(self._is_near(term, node, staying) for term in self.pod.near)
        )

    def _suits(self, node: str) -> bool:
        """What no eviction changes."""
        spec = self.nodes[node]["spec"]
        if spec.get("unschedulable") or any(
            self._label(node, key) != value for key, value in self.pod.selector.items()
        ):
            return False
        tolerated = {each["key"] for each in self.pod.tolerations if each["operator"] == "Exists"}
        taints = [taint for taint in spec.get("taints", ()) if taint["effect"] != "PreferNoSchedule"]
        return all(taint["key"] in tolerated for taint in taints)

    def _has_room(self, node: str, here: list[ModelPod]) -> bool:
        room = self.nodes[node]["status"]["allocatable"]
        return len(here) < int(room["pods"]) and all(
            amount + sum(pod.needs.get(resource, 0) for pod in here) <= thousandths(room.get(resource, "0"))
            for resource, amount in self.pod.needs.items()
        )

    def _keeps_apart(self, other: ModelPod, node: str) -> bool:
        apart = [term for term in other.anti if _is_meant(term, other, self.pod)]
        apart += [term for term in self.pod.anti if _is_meant(term, self.pod, other)]
        return any(self._is_same(term["topologyKey"], other.node, node) for term in apart)

    def _is_near(self, term: Json, node: str, staying: list[ModelPod]) -> bool:
        key = term["topologyKey"]
        meant = [pod for pod in staying if _is_meant(term, self.pod, pod)]
        if any(self._label(pod.node, key) == self._label(node, key) for pod in meant):
            return True
        return not meant and _is_meant(term, self.pod, self.pod)

    def _is_same(self, key: str, one: str | None, other: str) -> bool:
        value = self._label(one, key)
        return value is not None and value == self._label(other, key)

    def _label(self, node: str | None, key: str) -> str | None:
        return self.nodes[node]["metadata"]["labels"].get(key) if node else None

    # --- cost ---------------------------------------------------------------------------------------------------------

    def cost(self, pods: Collection[ModelPod], violations: int | None = None) -> Cost:
        """`violations`: where they were counted elsewhere."""
        ordered = self.ordered(pods)
        if not ordered:
            return (0, -_OFFSET, 0, 0, Late(""))
        top = ordered[0].priority
        return (
            len(self.violators(ordered)) if violations is None else violations,
            top,
            sum(pod.priority + _OFFSET for pod in ordered),
            len(ordered),
            Late(min(pod.start for pod in ordered if pod.priority == top)),
        )

    def ordered(self, pods: Collection[ModelPod]) -> list[ModelPod]:
        """Most important first."""
        return sorted(pods, key=lambda pod: (-pod.priority, pod.start))

    def violators(self, pods: list[ModelPod]) -> list[ModelPod]:
        """Those that exceed a budget when all of `pods`, in this order, go (util.go, FilterVictimsWithPDBViolation)."""
        left = [budget["status"]["disruptionsAllowed"] for budget in self._budgets]
        found = []
        for pod in pods:
            for index, budget in enumerate(self._budgets):
                if self._protects(budget, pod):
                    left[index] -= 1
                    if left[index] < 0:
                        found.append(pod)
                        break
        return found

    def _protects(self, budget: Json, pod: ModelPod) -> bool:
        labels = budget["spec"]["selector"].get("matchLabels", {})
        return (
            (bool(labels) or self._as_evicted)
            and budget["metadata"]["namespace"] == pod.namespace
            and labels.items() <= pod.labels.items()
            and pod.name not in budget["status"].get("disruptedPods", {})
        )

    # --- choices on one node --------------------------------------------------------------------------------------------

    def greedy(self, node: str) -> tuple[list[str], int] | None:
        """What kube-scheduler takes there, and the violations that it counts (SelectVictimsOnNode).

        All that may go, then reprieve: those that exceed a budget before the others, the most important first.
        """
        lower = self.ordered([pod for pod in self.pods_of(node) if pod.priority < self.pod.priority])
        gone = {pod.name for pod in lower}
        if not lower or not self.fits(node, gone):
            return None
        violators = self.violators(lower)
        victims = []
        for pod in violators + [pod for pod in lower if pod not in violators]:
            gone.discard(pod.name)
            if not self.fits(node, gone):
                gone.add(pod.name)
                victims.append(pod)
        return [pod.name for pod in self.ordered(victims)], sum(pod in violators for pod in victims)

    def plans(self, node: str, free: frozenset[str] = frozenset()) -> Iterator[list[ModelPod]]:
        """All minimal sets of victims, with `free` (pods that go anyway) gone."""
        lower = [pod for pod in self.pods_of(node) if pod.priority < self.pod.priority and pod.name not in free]
        found: list[set[str]] = []
        for number in range(len(lower) + 1):
            for some in itertools.combinations(lower, number):
                names = {pod.name for pod in some}
                if not any(smaller <= names for smaller in found) and self.fits(node, names | free):
                    found.append(names)
                    yield list(some)

    def best(self, node: str, free: frozenset[str] = frozenset(), *, respect: bool = False) -> Plan | None:
        """The best of all sets on a node. `respect`: of those that exceed no budget."""
        every = [(self.cost(pods), sorted(pod.name for pod in pods)) for pods in self.plans(node, free)]
        return min((plan for plan in every if not (respect and plan[0][0])), default=None)

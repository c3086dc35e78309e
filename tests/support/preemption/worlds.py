"""Random worlds: 2 to 6 nodes of 1 to 8 cards, nearly always without room for the pod that waits.

A seed always gives the same world; the cases of tests/conformance/preempt_cases.jsonl are those of the seeds 1 to 300.
Each has a few themes (`THEMES`). A twentieth fits at once, above a third has no solution. All names begin with the name of
the world, all nodes have the label `world` with that name and the pod that waits selects it, so that many worlds can be put
into one cluster.
"""

from __future__ import annotations

import random
from typing import Any, Final

from tests.support.preemption.model import CARD, Model

Json = dict[str, Any]

HOST: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
_APPS: Final = ("web", "db", "job")
_PRIORITIES: Final = (-10, 0, 1, 100, 500, 1000)
THEMES: Final = {
    "pdb": 0.5,
    "cpu": 0.35,
    "terminating": 0.15,
    "ports": 0.15,
    "anti": 0.12,
    "symmetric": 0.1,
    "affinity": 0.05,
    "nodes": 0.25,
    "never": 0.07,
    "full": 0.12,
    "unstarted": 0.08,
    "memory": 0.12,
    "fits": 0.04,
    "label-less": 0.1,
}
"""Theme → how many worlds have it."""
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def random_world(seed: int, prefix: str = "w") -> Json:
    """Return the world of this seed."""
    for attempt in range(50):
        drawn = _World(seed, attempt, prefix)
        world = {
            "name": drawn.name,
            "themes": drawn.themes,
            "nodes": drawn.nodes,
            "pods": drawn.pods,
            "pdbs": drawn.budgets,
            "pod": drawn.waiting,
        }
        model = Model(world)
        if any(model.fits(node) for node in model.nodes) == drawn.has("fits"):
            break
    return world


def container(cards: int, cpu: str, memory: int, port: int | None = None) -> Json:
    limits = {"cpu": cpu, "memory": f"{memory}Gi", **({CARD: str(cards)} if cards else {})}
    ports = [{"containerPort": port, "hostPort": port, "protocol": "TCP"}] if port else []
    resources = {"requests": limits, "limits": limits}
    return {"name": "main", "image": "app:1", "resources": resources, **({"ports": ports} if ports else {})}


class _World:
    """The order of draws is part of what a seed means."""

    def __init__(self, seed: int, attempt: int, prefix: str) -> None:
        draws = self._draws = random.Random(f"preempt {seed} {attempt}")
        self.name = f"{prefix}{seed}"
        self.themes = sorted(theme for theme, share in THEMES.items() if draws.random() < share)
        self.nodes: list[Json] = []
        self.pods: list[Json] = []
        self.budgets: list[Json] = []
        levels = sorted(draws.sample(_PRIORITIES, draws.choice([2, 3, 3, 4])))
        # An instant when many pods started makes ties on the start time.
        self._instants = [draws.randrange(8000) for _ in range(draws.choice([2, 4, 12, 40]))]
        count = draws.choice([2, 3, 3, 4, 4, 5, 6])
        zones = draws.choice([1, 2, 2, 3])
        size = draws.choice([1, 2, 4, 4, 8, 8, None])
        for number in range(count):
            self._add_node(number, size or draws.randint(1, 8), number % zones)
        lower = levels if draws.random() < 0.2 else levels[:-1] or levels
        self._priority = draws.choice([levels[-1]] * 3 + levels + [2000])
        for node in self.nodes:
            self._fill(node, lower if draws.random() < 0.75 else levels)
        if "fits" not in self.themes and draws.random() < 0.3:
            draws.shuffle(self.pods)
        self._add_budgets()
        self.waiting = self._waiting_pod()

    def has(self, theme: str) -> bool:
        return theme in self.themes

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _add_node(self, number: int, cards: int, zone: int) -> None:
        draws, name = self._draws, f"{self.name}-n{number}"
        cpus = draws.choice([2, 2, 3]) if self.has("cpu") else 16
        room = {
            "cpu": str(max(2, cards * cpus)),
            "memory": f"{max(1, cards) * (6 if self.has('memory') else 64)}Gi",
            "pods": str(draws.randint(2, 5)) if self.has("full") and draws.random() < 0.6 else "110",
            CARD: str(cards),
        }
        spec: Json = {}
        if self.has("nodes"):
            if draws.random() < 0.25:
                effect = draws.choice(["NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule"])
                spec["taints"] = [{"key": "dedicated", "value": "team", "effect": effect}]
            if draws.random() < 0.1:
                spec["unschedulable"] = True
        labels = {HOST: name, ZONE: f"{self.name}-z{zone}", "world": self.name}
        labels["disk"] = draws.choice(["ssd", "ssd", "hdd"])
        ready = [{"type": "Ready", "status": "True"}]
        status = {"allocatable": room, "capacity": room, "conditions": ready}
        meta = {"name": name, "labels": labels}
        self.nodes.append({"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": status})

    # --- pods that run ------------------------------------------------------------------------------------------------

    def _fill(self, node: Json, levels: list[int]) -> None:
        draws, name = self._draws, node["metadata"]["name"]
        room = node["status"]["allocatable"]
        cards, cpu, memory, slots = (
            int(room[CARD]),
            int(room["cpu"]) * 1000,
            int(room["memory"][:-2]),
            int(room["pods"]),
        )
        spare = 0 if draws.random() < 0.85 else draws.choice([1, 1, 2])
        may_have_none = any(map(self.has, ("cpu", "ports", "full", "memory")))
        ports: set[int | None] = set()
        most, tries = 11, 0
        while tries < 24 and most and slots:
            tries += 1
            asked = draws.choice([1, 1, 1, 2, 2, 3, 4]) if draws.random() < 0.85 else 0
            asked_cpu = draws.choice([500, 1000, 1500, 2000, 3000]) if self.has("cpu") else 500
            asked_memory = draws.choice([1, 2, 4]) if self.has("memory") else 1
            too_much = asked > cards - spare or asked_cpu > cpu or asked_memory > memory
            if too_much or (not asked and not may_have_none):
                continue
            cards, cpu, memory = cards - asked, cpu - asked_cpu, memory - asked_memory
            slots, most = slots - 1, most - 1
            port = None
            if self.has("ports") and draws.random() < 0.5:
                port = draws.choice([8080, 9090])
                port = None if port in ports else port
                ports.add(port)
            self._add_pod(name, container(asked, f"{asked_cpu}m", asked_memory, port), draws.choice(levels))
        # What is left of the cards goes to pods that need little else.
        while cards > spare and slots and cpu >= 100 and memory and draws.random() < 0.97:
            asked = draws.randint(1, min(4, cards - spare))
            cards, cpu, memory, slots = cards - asked, cpu - 100, memory - 1, slots - 1
            self._add_pod(name, container(asked, "100m", 1), draws.choice(levels))

    def _add_pod(self, node: str, main: Json, priority: int) -> None:
        draws, name = self._draws, f"{self.name}-p{len(self.pods)}"
        app = draws.choice(_APPS)
        labels = {} if self.has("label-less") and draws.random() < 0.5 else {"app": app}
        spec: Json = {"nodeName": node, "priority": priority, "containers": [main], "terminationGracePeriodSeconds": 30}
        if draws.random() < 0.1:
            # What a victim may do itself does not matter.
            spec["preemptionPolicy"] = "Never"
        if self.has("symmetric") and draws.random() < 0.3:
            term = {"labelSelector": {"matchLabels": {"role": "preemptor"}}}
            term["topologyKey"] = draws.choice([HOST, HOST, ZONE])
            spec["affinity"] = {"podAntiAffinity": {_REQUIRED: [term]}}
        status: Json = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        may_be_unstarted = self.has("unstarted") and all("startTime" in pod["status"] for pod in self.pods)
        if not (may_be_unstarted and draws.random() < 0.2):
            status["startTime"] = _time(draws.choice(self._instants))
        namespace = self.name if draws.random() < 0.85 else f"{self.name}-b"
        meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels}
        if self.has("terminating") and draws.random() < 0.2:
            meta |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
        self.pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status})

    # --- the others ---------------------------------------------------------------------------------------------------

    def _add_budgets(self) -> None:
        draws = self._draws
        if not self.has("pdb"):
            return
        for app in draws.sample(_APPS, draws.choice([1, 1, 2, 3])):
            namespace = self.name if draws.random() < 0.8 else f"{self.name}-b"
            pods = [pod["metadata"] for pod in self.pods]
            pods = [meta for meta in pods if meta["labels"].get("app") == app and meta["namespace"] == namespace]
            allowed = min(draws.choice([0, 0, 1, 1, 2]), len(pods))
            status: Json = {"disruptionsAllowed": allowed, "currentHealthy": len(pods)}
            status |= {"desiredHealthy": len(pods) - allowed, "expectedPods": len(pods)}
            ending = [meta["name"] for meta in pods if "deletionTimestamp" in meta]
            if ending and draws.random() < 0.6:
                # The API server has counted these already.
                status["disruptedPods"] = dict.fromkeys(ending, "2026-01-01T00:00:00Z")
            selector = {"matchLabels": {"app": app}}
            self.budgets.append(
                {
                    "apiVersion": "policy/v1",
                    "kind": "PodDisruptionBudget",
                    "metadata": {"name": f"{self.name}-{app}", "namespace": namespace},
                    "spec": {"minAvailable": len(pods) - allowed, "selector": selector},
                    "status": status,
                }
            )

    def _waiting_pod(self) -> Json:
        draws, name = self._draws, f"{self.name}-x"
        most = max(int(node["status"]["allocatable"][CARD]) for node in self.nodes)
        cards = min(draws.choice([1, 1, 1, 2, 2, 3, 4, 4, 8]), most if draws.random() < 0.95 else 99)
        if self.has("fits"):
            cards = 1
            first = self.nodes[0]["metadata"]["name"]
            self.pods = [pod for pod in self.pods if pod["spec"]["nodeName"] != first]
        cpu = draws.choice([500, 1000, 2000, 3000, 4000]) if self.has("cpu") else 500
        memory = draws.choice([1, 4, 8]) if self.has("memory") else 1
        selector = {"world": self.name}
        spec: Json = {"priority": self._priority, "nodeSelector": selector}
        spec["containers"] = [container(cards, f"{cpu}m", memory, 8080 if self.has("ports") else None)]
        if self.has("never"):
            spec["preemptionPolicy"] = "Never"
        if self.has("nodes"):
            if draws.random() < 0.5:
                selector["disk"] = draws.choice(["ssd", "ssd", "hdd"])
            if draws.random() < 0.4:
                spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
        affinity = {}
        if self.has("anti"):
            affinity["podAntiAffinity"] = {_REQUIRED: [self._term(HOST, HOST, ZONE)]}
        if self.has("affinity"):
            affinity["podAffinity"] = {_REQUIRED: [self._term(HOST, ZONE)]}
        if affinity:
            spec["affinity"] = affinity
        meta = {"name": name, "namespace": self.name, "uid": f"uid-{name}", "labels": {"role": "preemptor"}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"}}

    def _term(self, *keys: str) -> Json:
        app = self._draws.choice(_APPS)
        return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": self._draws.choice(keys)}


def _time(hours: int) -> str:
    return f"2025-{1 + hours // 672 % 12:02d}-{1 + hours // 24 % 28:02d}T{hours % 24:02d}:00:00Z"

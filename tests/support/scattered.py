"""Nodes with a few cards, pods scattered over them, as documents; and all moves of them, tried one by one."""

from itertools import combinations, permutations
from typing import NamedTuple

from msgspec.structs import replace

from controller.decide import AllowedNodes, Decision, decide
from controller.insight.defrag.cells import cells_of
from controller.insight.defrag.plan import _Planner, _quiet
from controller.insight.simulation import SimulationSettings
from controller.scoring.policies import DevicePolicy, Policies
from tests.cards import CLASS, DRIVER, card, request
from tests.support.manifests import device_class, documents

NOW = "2026-11-14T22:00:00Z"
PACKED = SimulationSettings(policies=Policies(node_policy="binpack", device_policy=DevicePolicy(("binpack",))))


def owner(kind="ReplicaSet"):
    return [{"apiVersion": "apps/v1", "kind": kind, "name": "service", "uid": "service", "controller": True}]


class Scattered:
    """`cards`: of each node, the GiB of each of its cards."""

    def __init__(self, **cards):
        self.cards = cards
        self.raws = [device_class(CLASS)]
        for node, sizes in cards.items():
            offered = {"cpu": "8", "memory": "64Gi", "pods": "110"}
            ready = [{"type": "Ready", "status": "True"}]
            labels = {"kubernetes.io/hostname": node}
            self.raws.append(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": node, "labels": labels},
                    "status": {"allocatable": offered, "conditions": ready},
                }
            )
            devices = [card(index, memory=f"{size}Gi") for index, size in enumerate(sizes)]
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
            self.raws.append(
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceSlice",
                    "metadata": {"name": f"{node}-cards"},
                    "spec": spec,
                }
            )

    def run(
        self, name, node, devices, size, *, cpu="1", owners=None, claimed="", annotations=None, labels=None, **spec
    ):
        """Run a pod with a part of these cards of a node, in GiB of each. `claimed`: a claim of another pod in its place."""
        asked = request(count=len(devices), memory=f"{size}Gi", cores="0")
        if not claimed:
            consumed = {"memory": f"{size}Gi", "cores": "0", "shares": "1"}
            results = [
                {
                    "request": "gpu",
                    "driver": DRIVER,
                    "pool": node,
                    "device": f"gpu-{index}",
                    "shareID": f"{name}-{index}",
                    "consumedCapacity": consumed,
                }
                for index in devices
            ]
            self.raws.append(
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaim",
                    "metadata": {"name": f"{name}-gpus", "namespace": "default"},
                    "spec": {"devices": {"requests": [asked]}},
                    "status": {"allocation": {"devices": {"results": results}}},
                }
            )
        pod = self._pod(name, claimed or f"{name}-gpus", cpu, annotations, labels, {"nodeName": node, **spec})
        pod["metadata"]["ownerReferences"] = owner() if owners is None else owners
        pod["status"] = {"phase": "Running", "startTime": NOW, "conditions": [{"type": "Ready", "status": "True"}]}
        self.raws.append(pod)

    def wait(self, name, count, size, *, cpu="1", annotations=None, labels=None, **spec):
        """Let a pod wait that asks for parts of cards, in GiB."""
        asked = request(count=count, memory=f"{size}Gi", cores="0")
        self.raws.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": f"{name}-gpus", "namespace": "default"},
                "spec": {"devices": {"requests": [asked]}},
            }
        )
        self.raws.append(self._pod(name, f"{name}-gpus", cpu, annotations, labels, spec))

    def protect(self, allowed, name="budget", **labels):
        self.raws.append(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"selector": {"matchLabels": labels}},
                "status": {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2},
            }
        )

    def documents(self):
        return documents(*self.raws)

    def _pod(self, name, claimed, cpu, annotations, labels, spec):  # noqa: PLR0917 (one caller for each kind)
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "default",
                "annotations": annotations or {},
                "labels": labels or {},
            },
            "spec": {
                "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}, "claims": [{"name": "gpus"}]}}],
                "resourceClaims": [{"name": "gpus", "resourceClaimName": claimed}],
                **spec,
            },
        }


def fewest_moves(found, goal, settings=PACKED):
    """The least number of moves that reaches the goal, by trying all of them in all orders; None: none does.

    Every pod moves once at most, to where it is decided then. What is held: any set of cells of which enough are free at
    the end; for a pod that waits any node, or any devices of one.
    """
    tried = _AllMoves(found, goal, settings)
    choices = tried.places() if goal.pod else tried.choices()
    for total in range(len(tried.movables) + 1):
        for sequence in permutations(tried.movables, total):
            uids = {each.uid for each in sequence}
            if any(each.must <= uids and tried.reached(sequence, each) for each in choices):
                return total
    return None


class _Choice(NamedTuple):
    """What is held, what must be free at the end, and the pods that must leave for that."""

    nodes: set = frozenset()
    devices: frozenset = frozenset()
    cells: set = frozenset()
    must: set = frozenset()


class _AllMoves:
    def __init__(self, found, goal, settings):
        planner = _Planner(found.documents(), settings, goal, _quiet)
        self.found, self.goal, self.state = found, goal, planner.state
        self.inventory, self.movables = planner.state.view.inventory, planner.movables.pods
        self.options = replace(settings.options, says_why=False, report_nodes=1)

    def places(self):
        rows = range(self.inventory.nodes.size)
        choices = [_Choice(nodes={row}) for row in rows]
        for node in self.found.cards:
            own = [self.inventory.devices.device(row).id for row in self.inventory.rows_on(node)]
            some = [each for number in range(len(own) + 1) for each in combinations(own, number)]
            choices += [_Choice(devices=frozenset(each)) for each in some]
        return choices

    def choices(self):
        cells = self.cells(self.movables)
        many = len(cells.free) + (self.goal.nodes or self.goal.devices)
        return [
            _Choice(
                {cell.node for cell in chosen if cell.is_node},
                frozenset(device for cell in chosen if not cell.is_node for device in cell.devices),
                {cell.name for cell in chosen},
                {each.uid for cell in chosen for each in cell.tenants},
            )
            for chosen in combinations([*cells.free, *cells.candidates], many)
        ]

    def cells(self, movables=()):
        nodes = bool(self.goal.nodes)
        return cells_of(self.inventory, movables, nodes=nodes, least=self.goal.least if nodes else 1)

    def reached(self, sequence, choice):
        size = self.inventory.nodes.size
        allowed = AllowedNodes.of_rows({*range(size)} - choice.nodes, size)
        with self.inventory.trial() as trial:
            for movable in sequence:
                trial.remove(movable.uid, movable.claims)
                request = replace(movable.request, allowed_nodes=allowed, masked_devices=choice.devices)
                answer = decide(self.inventory, request, self.options)
                if not isinstance(answer, Decision):
                    return False
                trial.place(request.pod, answer.node, answer.holdings)
            if self.goal.pod:
                return isinstance(decide(self.inventory, self.state.unit.members[0], self.options), Decision)
            return choice.cells <= {cell.name for cell in self.cells().free}

"""What hami-dra costs the API server for pods without devices, part by part: `throughput.py
--plain`.

On one warm control plane small batches of such pods live their lives in turn: without hami-dra
(`NOTHING`), with its policies and webhook configurations only, with its running programs only, and
with all of it. In each round every one of these states has one batch, in an order of the round's
own, so that what else the machine does meets all of them alike. What counts are the differences to
`NOTHING` within the rounds.

A life: created as by a ReplicaSet, bound by kube-scheduler, four writes of its status and three
events as by kubelet, deleted. Nobody but the control plane and hami-dra watches: a JSON watch of
this program would share its encoding with those of hami-dra, and hide what they cost. What the API
server does in each state while nothing happens (leases) is measured while warming up and taken off.
Twenty rounds take a quarter of an hour on two idle cores.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hack.bench.rounds import interval, orders, quartiles
from hack.bench.throughput_cluster import CREATORS, DRIVER, NAMESPACE, PODS, owner_of_pods, settle
from hack.controlplane.api import Object
from hack.controlplane.cluster import ControlPlane
from hack.installation import Installation

EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
PROGRAMS = ("controller", "webhook")
WARMING = 2
"""Rounds."""
IDLE_SECONDS = 10
RULES = ("Policy", "PolicyBinding", "WebhookConfiguration")
"""Kinds that end so are evaluated when somebody writes an object."""


@dataclass(frozen=True)
class State:
    """What of hami-dra is there. RBAC, namespaces and classes always are: nobody evaluates them for a pod."""

    rules: bool = False
    """Policies, their bindings and webhook configurations."""
    programs: bool = False
    """Controller and webhook run, and watch."""


NOTHING = "without hami-dra"
STATES: Mapping[str, State] = {
    NOTHING: State(),
    "policies and webhooks": State(rules=True),
    "controller and webhook": State(programs=True),
    "all of hami-dra": State(rules=True, programs=True),
}


@dataclass(frozen=True)
class Batch:
    """CPU seconds of one batch, and how long it took."""

    apiserver: float
    programs: float
    """Of hami-dra."""
    seconds: float


@dataclass(frozen=True)
class Cost:
    """CPU time for one pod, in microseconds."""

    apiserver: float
    programs: float
    """Of hami-dra."""


class Switch:
    """Brings a control plane from one state to another."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._hami = Installation(plane)
        self._hami.install()
        self._rules = [item for item in self._hami.applied if item["kind"].endswith(RULES)]
        self._state = State(rules=True)

    def to(self, state: State) -> None:
        """Return once the API server acts on the new state and has nothing else to do. Raises TimeoutError."""
        hami, before = self._hami, self._state
        self._state = state
        for item in self._rules if state.rules != before.rules else ():
            if state.rules:
                hami.api.apply(item)
            else:
                hami.api.remove(item)
        hami.wait_for("policies and webhooks in force or not", lambda: self._in_force() == {state.rules})
        if state.programs and not before.programs:
            hami.start_webhook()
            hami.start_controller("--manage", DRIVER)
        elif before.programs and not state.programs:
            for program in hami.programs.values():
                program.process.stop()
        if state.programs:
            hami.wait_for("a controller that decides", hami.is_deciding, seconds=300)
        settle(self._plane)

    def remove(self) -> None:
        self._hami.remove()

    def _in_force(self) -> set[bool]:
        """Whether mutating policies, validating ones, and webhooks are evaluated; once they agree, one element."""
        return {self._hami.is_gating(), self._hami.is_refusing_tolerations(), self._hami.is_asking_webhook()}


def plain_pod(number: int, owner: Object) -> Object:
    """A pod as a ReplicaSet creates them."""
    return {
        "metadata": {
            "name": f"web-{number:05d}",
            "labels": {"app": "web", "pod-template-hash": "5d4f8c7b9"},
            "ownerReferences": [owner],
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/web:1.2.3",
                    "ports": [{"containerPort": 8080}],
                    "env": [{"name": "LOG_LEVEL", "value": "info"}],
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
                }
            ]
        },
    }


def statuses() -> list[Object]:
    """What kubelet writes of one pod: being prepared, running, ready, terminated."""
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    steps = [
        ("Pending", waiting, False),
        ("Running", running, False),
        ("Running", running, True),
        ("Succeeded", ended, False),
    ]
    return [
        {
            "status": {
                "phase": phase,
                "hostIP": "10.0.0.1",
                "podIP": "10.1.0.1",
                "conditions": [
                    {"type": kind, "status": str(ready)} for kind in ("Initialized", "Ready", "ContainersReady")
                ],
                "containerStatuses": [
                    {
                        "name": "main",
                        "image": "registry.example.com/web:1.2.3",
                        "imageID": "",
                        "ready": ready,
                        "restartCount": 0,
                        "state": container,
                    }
                ],
            }
        }
        for phase, container, ready in steps
    ]


def events_of(name: str) -> list[Object]:
    """What kubelet reports about one pod."""
    return [
        {
            "metadata": {"name": f"{name}.{reason.lower()}"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": NAMESPACE, "name": name},
            "reason": reason,
            "message": f"{reason} what the container main needs",
            "source": {"component": "kubelet", "host": "node-00000"},
            "type": "Normal",
            "count": 1,
        }
        for reason in ("Pulled", "Created", "Started")
    ]


class Lives:
    """Batches of pods on one furnished control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._api = plane.api
        self._owner = owner_of_pods(plane)
        self._statuses = statuses()

    def batch(self, count: int) -> Batch:
        """Raises TimeoutError where pods are not bound."""
        pods = [plain_pod(number, self._owner) for number in range(count)]
        before, start = self._plane.cpu_seconds(), time.monotonic()
        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(lambda each: self._api.create(PODS, each), pods))
            self._api.wait_for("all pods bound", self._are_bound, seconds=300, every=0.5)
            list(pool.map(self._run, [each["metadata"]["name"] for each in pods]))
        seconds = time.monotonic() - start
        spent = {name: after - before[name] for name, after in self._plane.cpu_seconds().items()}
        self._api.delete(EVENTS)
        return Batch(spent["kube-apiserver"], sum(spent.get(name, 0.0) for name in PROGRAMS), seconds)

    def _are_bound(self) -> bool:
        return not self._api.list(PODS, fieldSelector="spec.nodeName=", limit="1")

    def _run(self, name: str) -> None:
        for status, event in zip(self._statuses, [None, *events_of(name)], strict=True):
            if event:
                self._api.create(EVENTS, event)
            self._api.patch(f"{PODS}/{name}/status", status, "strategic")
        self._api.delete(f"{PODS}/{name}", gracePeriodSeconds=0)


def measured(plane: ControlPlane, pods: int, rounds: int) -> dict[str, list[Cost]]:
    """Return the costs in each state, one for each round; interrupted, of the rounds that are done.

    The first rounds warm up and are left out.
    """
    lives, switch = Lives(plane), Switch(plane)
    idle: dict[str, list[float]] = {name: [] for name in STATES}
    found: dict[str, list[Cost]] = {name: [] for name in STATES}
    try:
        for number, order in enumerate(orders(list(STATES), rounds + WARMING), start=1 - WARMING):
            for name in order:
                switch.to(STATES[name])
                lives.batch(max(pods // 5, 1))  # so that all that a state needs is compiled and cached
                batch = lives.batch(pods)
                if number < 1:
                    settle(plane)
                    idle[name].append(idle_cpu(plane))
                    continue
                background = statistics.mean(idle[name]) * batch.seconds
                found[name].append(Cost(1e6 * (batch.apiserver - background) / pods, 1e6 * batch.programs / pods))
            said = ", ".join(f"{name} {costs[-1].apiserver:.0f}" for name, costs in found.items() if costs)
            print(f"  round {number} of {rounds}: {said or 'warming up'}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    switch.remove()
    done = min(map(len, found.values()))
    return {name: costs[:done] for name, costs in found.items()}


def idle_cpu(plane: ControlPlane) -> float:
    """Return the share of a CPU that the API server uses now."""
    apiserver = plane.components["kube-apiserver"]
    before, start = apiserver.cpu_seconds(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    return (apiserver.cpu_seconds() - before) / (time.monotonic() - start)


def print_costs(found: Mapping[str, Sequence[Cost]]) -> None:
    print(
        "CPU time of the API server for one pod, us: median [quartiles]; difference within the rounds [95 % interval]"
    )
    base = [each.apiserver for each in found[NOTHING]]
    for name, costs in found.items():
        values = [each.apiserver for each in costs]
        said = f"  {name:<24} {quartiles(values, 0)}"
        if name != NOTHING:
            said += f"; {interval([value - other for value, other in zip(values, base, strict=True)], 0)}"
        if STATES[name].programs:
            said += f"; hami-dra's own {quartiles([each.programs for each in costs], 0)}"
        print(said)

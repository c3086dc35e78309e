"""One replay of a trace through the real thing: `decide` on an Inventory of simulated slices,
claims assumed and given back.

Called by `packing.py`, one call for each policy, seed and load. Node names begin with a permutation
that the seed decides, so that ties go to a fixed order which is not that of the file (as the FGD
artefact has it). Same trace, policy and seed: same answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
import numpy as np

from controller.decide import Decision, Options, PodClaim, SchedulingRequest, decide, without_trace
from controller.inventory.inventory import Inventory
from controller.inventory.model import DeviceId
from controller.scoring.policies import (
    DevicePolicy,
    Policies,
    parse_device_policy,
    parse_node_policy,
    parse_packing_weights,
)
from controller.scoring.ranking import rank_nodes
from hack.bench.packing_fgd import FgdRanker
from hack.bench.packing_trace import CARD, WIDE, Job, Machine, Trace
from hami_dra.api import names
from hami_dra.api.core import Container, Node, Pod
from hami_dra.api.meta import ObjectMeta
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceSlice

FGD: Final = "fgd"
DRIVER: Final = "nvidia.hami.io"
_MEMORY: Final = 16_000
"""MB of every card: the trace speaks of parts of a card, not of memory."""
_CLASS: Final = "card"
_SAMPLED: Final = 25
"""Events between two looks at a cluster that is in motion."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How one row of the table decides."""

    name: str
    policies: Policies
    first_fit: bool = False
    fgd: bool = False
    """Nodes and cards by `hack.bench.packing_fgd` in place of `fair-share`."""


def policy_of(text: str) -> Policy:
    """`NODE[/DEVICE][:WEIGHTS]`, or `first-fit`; NODE may be `fgd`. `binpack` and `spread` are
    meant on both axes. Raises InvalidPolicy.
    """
    plain, _, weights = text.partition(":")
    node, _, device = plain.partition("/")
    if plain == names.FIRST_FIT:
        return Policy(text, Policies(), first_fit=True)
    fgd = node == FGD
    node = names.FAIR_SHARE if fgd else parse_node_policy(node, f"--policies {text}")
    if not device and node in {names.BINPACK, names.SPREAD}:
        device = node
    policies = Policies(node_policy=node)
    if device:
        keys = parse_device_policy(device, f"--policies {text}")
        policies = Policies(node_policy=node, device_policy=DevicePolicy(keys, origin="--policies"))
    if weights:
        packing = parse_packing_weights(weights, f"--policies {text}", policies.packing)
        policies = Policies(node_policy=node, device_policy=policies.device_policy, packing=packing)
    return Policy(text, policies, fgd=fgd)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Jobs come, none leaves."""

    allocated: float
    """Percent of all cards' capacity at the end."""
    placed: int
    """Jobs."""
    offered: int
    roomy: int
    """Nodes that would still take a job of eight cards when half of the capacity had been asked for."""


@dataclass(frozen=True, slots=True)
class Churn:
    """Jobs come and go, the load is held."""

    rejected: float
    """Percent of the cards' demand that found no node when it came."""
    roomy: float
    """As in `Arrival`, on average."""
    events: int
    """Jobs that came; the second half of them was measured."""


def arrival(trace: Trace, policy: Policy, seed: int, load: float = 1.3) -> Arrival:
    cluster = Cluster(trace, policy, seed)
    half, offered, allocated, placed, count, roomy = trace.capacity // 2, 0, 0, 0, 0, -1
    for job in trace.arrivals(seed, load):
        count += 1
        offered += job.demand
        if cluster.place(job) is not None:
            allocated += job.demand
            placed += 1
        if roomy < 0 and offered >= half:
            roomy = cluster.roomy()
    return Arrival(100.0 * allocated / trace.capacity, placed, count, max(roomy, 0))


def churn(
    trace: Trace, policy: Policy, seed: int, *, load: float, events: int, cluster: Cluster | None = None
) -> Churn:
    """Jobs are drawn from the trace, one an event; before it comes random ones leave until the load
    is not passed with it, and one after each that found no node: a policy that cannot reach the
    load would be stuck. The second half of the events is measured.
    `cluster`: an empty one, for who wants it afterwards.
    """
    cluster = cluster or Cluster(trace, policy, seed)
    chance = random.Random(seed)
    most = load * trace.capacity
    running: list[tuple[int, Job]] = []
    held = 0

    def come(job: Job) -> bool:
        nonlocal held
        number = cluster.place(job, dropped=True)
        if number is None:
            return False
        running.append((number, job))
        held += job.demand
        return True

    while held < most:
        job = chance.choice(trace.jobs)
        if held + job.demand > most or not come(job):
            break
    asked = refused = 0
    roomy: list[int] = []
    came = True
    for event in range(events):
        job = chance.choice(trace.jobs)
        while running and (held + job.demand > most or not came):
            came = True
            place = chance.randrange(len(running))
            running[place], running[-1] = running[-1], running[place]
            number, gone = running.pop()
            cluster.leave(number)
            held -= gone.demand
        came = come(job)
        if 2 * event >= events:
            asked += job.demand
            refused += 0 if came else job.demand
            if event % _SAMPLED == 0:
                roomy.append(cluster.roomy())
    return Churn(100.0 * refused / max(asked, 1), float(np.mean(roomy)) if roomy else 0.0, events)


class Cluster:
    """Machines, and the jobs on them."""

    def __init__(self, trace: Trace, policy: Policy, seed: int) -> None:
        self.inventory = Inventory()
        self._policies = policy.policies
        self.fgd = FgdRanker(self.inventory) if policy.fgd else None
        self._options = Options(first_fit=policy.first_fit, report_nodes=1, rank_nodes=self.fgd or rank_nodes)
        self._wide_cpu = trace.wide_cpu
        self.running: dict[int, tuple[Pod, ResourceClaim | None, Decision]] = {}
        self.machines: list[tuple[Node, ResourceSlice | None]] = []
        self.last: Decision | None = None
        """Of the job that was placed last."""
        self._numbers = 0
        order = list(range(len(trace.machines)))
        random.Random(seed).shuffle(order)
        for rank, machine in zip(order, trace.machines, strict=True):
            node, cards = _furniture(machine, f"n{rank:06}-{machine.name}")
            self.machines.append((node, cards))
            self.inventory.node_changed(None, node)
            if cards is not None:
                self.inventory.slice_changed(None, cards)
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        body = {"metadata": {"name": _CLASS}, "spec": {"selectors": [selector]}}
        self.device_class = msgspec.convert(body, DeviceClass)
        self.inventory.class_changed(None, self.device_class)

    def place(self, job: Job, *, dropped: bool = False) -> int | None:
        """A number for `leave`; None where no node takes the job: then it is `dropped`, or stays pending for ever."""
        number = self._numbers = self._numbers + 1
        pod, claim = self.pod_of(job, number)
        self.publish(pod, claim)
        claims = (PodClaim("cards", claim),) if claim is not None else ()
        answer = decide(
            self.inventory, SchedulingRequest(pod=pod, claims=claims, policies=self._policies), self._options
        )
        if not isinstance(answer, Decision):
            if answer.error:
                raise SystemExit(f"{job}: {answer.error}")
            if dropped:
                self._withdraw(pod, claim)
            return None
        self.inventory.usage.assume(answer.holdings)
        self.inventory.assume_pod(pod, answer.node)
        self.running[number] = pod, claim, without_trace(answer)
        self.last = answer
        return number

    def pod_of(self, job: Job, number: int) -> tuple[Pod, ResourceClaim | None]:
        spec, claim_spec = _specs(job)
        pod = Pod(metadata=ObjectMeta(name=f"p{number}", namespace="trace", uid=f"p{number}"), spec=spec)
        claim = None
        if claim_spec is not None:
            metadata = ObjectMeta(name=f"c{number}", namespace="trace", uid=f"c{number}")
            claim = ResourceClaim(metadata=metadata, spec=claim_spec)
            entry = msgspec.structs.replace(spec.resource_claims[0], resource_claim_name=claim.metadata.name)
            pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(spec, resource_claims=(entry,)))
        return pod, claim

    def leave(self, number: int) -> None:
        pod, claim, _ = self.running.pop(number)
        if claim is not None:
            self.inventory.forget(claim.metadata.uid)
        self._withdraw(pod, claim)

    def move(self, number: int, node: str, devices: Sequence[str]) -> None:
        """Put a job elsewhere: on these cards of a node, as many as it has."""
        pod, claim, decision = self.running[number]
        assert claim is not None
        (holdings,) = decision.holdings.values()
        there = [
            msgspec.structs.replace(each, device=DeviceId(DRIVER, node, device))
            for each, device in zip(holdings, devices, strict=True)
        ]
        self.inventory.usage.assume({claim.metadata.uid: tuple(there)})
        self.inventory.assume_pod(pod, node)

    def publish(self, pod: Pod, claim: ResourceClaim | None) -> None:
        if claim is not None:
            self.inventory.claim_changed(None, claim)
        self.inventory.pod_changed(None, pod)
        if self.fgd is not None:
            self.fgd.shapes.add(pod, (claim,) if claim is not None else ())

    def _withdraw(self, pod: Pod, claim: ResourceClaim | None) -> None:
        self.inventory.pod_changed(pod, None)
        if claim is not None:
            self.inventory.claim_changed(claim, None)
        if self.fgd is not None:
            self.fgd.shapes.remove(pod)

    def roomy(self) -> int:
        """Nodes with eight idle cards and the CPU of the median job that wants as many."""
        devices, nodes = self.inventory.devices, self.inventory.nodes
        idle = devices.node[: devices.size][devices.slots_used[: devices.size] == 0]
        cards = np.bincount(idle[idle >= 0], minlength=nodes.size)
        return int(((cards >= WIDE) & (nodes.offers("cpu") - nodes.used("cpu") >= self._wide_cpu)).sum())


def _furniture(machine: Machine, name: str) -> tuple[Node, ResourceSlice | None]:
    offered = {"cpu": f"{machine.cpu}m", "memory": f"{machine.memory}Mi", "pods": "1000"}
    status = {"allocatable": offered, "conditions": [{"type": "Ready", "status": "True"}]}
    node = msgspec.convert({"metadata": {"name": name, "uid": name}, "status": status}, Node)
    if not machine.cards:
        return node, None
    spec = {
        "driver": DRIVER,
        "nodeName": name,
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        "devices": [_card(index, machine.model) for index in range(machine.cards)],
    }
    item = {"metadata": {"name": f"{name}-slice", "uid": f"{name}-slice"}, "spec": spec}
    return node, msgspec.convert(item, ResourceSlice)


def _card(index: int, model: str) -> dict[str, Any]:
    def capacity(value: str, default: str, step: str, least: str = "0") -> dict[str, Any]:
        policy = {"default": default, "validRange": {"min": least, "step": step, "max": value}}
        return {"value": value, "requestPolicy": policy}

    return {
        "name": f"gpu-{index}",
        "allowMultipleAllocations": True,
        "attributes": {"hami.io/index": {"int": index}, "hami.io/productName": {"string": model}},
        "capacity": {
            "memory": capacity(f"{_MEMORY}M", f"{_MEMORY}M", "1M"),
            "cores": capacity("100", "100", "1"),
            "shares": capacity("1000", "1", "1", "1"),
        },
    }


@cache
def _specs(job: Job) -> tuple[Any, Any]:
    """(PodSpec, ResourceClaimSpec or None). A part of a card is as much of its memory, exactly, and
    the cores rounded down.
    """
    requests = {"cpu": f"{job.cpu}m", "memory": f"{job.memory}Mi"}
    entries = [{"name": "cards", "resourceClaimName": "?"}] if job.cards else []
    pod = {"spec": {"containers": [{"name": "main", "resources": {"requests": requests}}], "resourceClaims": entries}}
    spec = msgspec.convert(pod, Pod).spec
    assert isinstance(spec.containers[0], Container)
    if not job.cards:
        return spec, None
    exactly: dict[str, Any] = {"deviceClassName": _CLASS, "allocationMode": "ExactCount", "count": job.cards}
    if job.milli < CARD:
        part = {"memory": f"{_MEMORY * job.milli // CARD}M", "cores": str(job.milli // 10)}
        exactly["capacity"] = {"requests": part}
    if job.models:
        listed = ", ".join(json.dumps(model, ensure_ascii=False) for model in job.models)
        expression = f'device.attributes["hami.io"].productName in [{listed}]'
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    claim = {"spec": {"devices": {"requests": [{"name": "card", "exactly": exactly}]}}}
    return spec, msgspec.convert(claim, ResourceClaim).spec

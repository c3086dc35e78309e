"""A trial answers like a cluster in which the pods were never there, and leaves everything as it was."""

import random
import re

import msgspec
import numpy as np
import pytest

from controller.cluster.incremental.node_scores import NodeScores
from controller.cluster.nodes.nodes import NodeColumns
from controller.cluster.pods.pods import PodBook
from controller.decide import Decision, decide, without_trace
from controller.inventory.columns import DeviceColumns
from controller.inventory.inventory import Inventory
from controller.inventory.ledger import DeviceUsage, Ledger
from controller.inventory.model import Device, DeviceId
from controller.inventory.quotas import QuotaBook
from controller.inventory.usage_columns import SharedCounters, UsageColumns
from hami_dra.kube.store import Index
from tests.cards import DRIVER, allocated, card, device_class, node, slice_of
from tests.property.test_inventory_counters import published
from tests.support.assumed import assume
from tests.support.examples import examples
from tests.support.gang_requests import OPTIONS, member
from tests.support.quotas import quota_object

ROLES = ("web", "db")
ZONE = "zone"


BOOKS = (NodeColumns, NodeScores, DeviceColumns, Ledger, UsageColumns, SharedCounters, QuotaBook, PodBook)


def term(role):
    return {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"role": role}}}


def wanting(draw, name):
    """A pod that asks for devices, and for what else a node may run out of, or pods may disagree about."""
    spec = {"labels": {"role": draw.choice(ROLES)}}
    container = {"name": "main", "resources": {"requests": {"cpu": draw.choice(["500m", "2", "5"])}}}
    if draw.random() < 0.2:
        container["ports"] = [{"hostPort": draw.choice([80, 443]), "containerPort": 80}]
    if draw.random() < 0.2:
        spec["volumes"] = [{"name": "v", "gcePersistentDisk": {"pdName": draw.choice("ab")}}]
    if draw.random() < 0.3:
        kind = draw.choice(["podAffinity", "podAntiAffinity"])
        near = {"requiredDuringSchedulingIgnoredDuringExecution": [term(draw.choice(ROLES))]}
        spec["affinity"] = {kind: near}
    if draw.random() < 0.2:
        constraint = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **term(draw.choice(ROLES))}
        spec["topologySpreadConstraints"] = [constraint]
    amounts = draw.choice([{}, {"memory": "4Gi", "cores": "30"}, {"memory": "9Gi", "cores": "0"}])
    return member(
        name,
        draw.choice([1, 1, 2]),
        node_policy=draw.choice(["binpack", "spread"]),
        spec={"containers": [container], **spec},
        **amounts,
    )


def beginning():
    inventory = Inventory()
    inventory.class_changed(None, device_class())
    for number in range(4):
        name = f"n{number}"
        inventory.node_changed(None, node(name, labels={ZONE: "ab"[number % 2]}))
        inventory.slice_changed(None, slice_of(name, [card(index) for index in range(2)]))
    inventory.node_changed(None, node("cut", labels={ZONE: "a"}))
    for each in published("cut"):
        inventory.slice_changed(None, each)
    inventory.quota_changed(None, quota_object({"nvidia.com/gpu": 12}))
    return inventory


def run(inventory, request, answer, *, bound):
    """Let a pod run: bound, with its claims observed, or only assumed."""
    for entry in answer.allocations:
        if bound:
            inventory.claim_changed(None, allocated(entry.claim, entry.allocation))
        else:
            inventory.claim_changed(None, entry.claim)
            assume(inventory, entry.claim.metadata.uid, entry.allocation)
    if bound:
        spec = msgspec.structs.replace(request.pod.spec, node_name=answer.node)
        inventory.pod_changed(None, msgspec.structs.replace(request.pod, spec=spec))
    else:
        inventory.pod_changed(None, request.pod)
        inventory.assume_pod(request.pod, answer.node)


def claims_of(request):
    return [entry.claim.metadata.uid for entry in request.claims]


def answers(inventory, questions):
    """What becomes of the pods; of several pods that are in the way, any may be named."""
    found = []
    for each in questions:
        answer = without_trace(decide(inventory, each, OPTIONS))
        if isinstance(answer, Decision):
            found.append(answer)
        else:
            said = re.sub("Pod default/p[0-9]+", "a pod", answer.message)
            found.append((said, answer.reasons, answer.nodes, answer.node_counts))
        found.append(inventory.rules.node_fit(each.pod).codes.tolist())
    return found


def state_of(inventory):
    """Columns and books by value: all but what is computed from them, which `answers` reads."""
    parts = ("nodes", "devices", "usage", "usage_columns", "quotas", "_pods")
    return {name: remembered(getattr(inventory, name), {}) for name in parts}


def remembered(of, seen):
    if isinstance(of, np.ndarray):
        return of.dtype.str, of.shape, of.tobytes()
    if isinstance(of, dict):
        return {key: remembered(value, seen) for key, value in of.items()}
    if isinstance(of, list) and all(type(each) is not Device for each in of):
        return [remembered(each, seen) for each in of]
    if isinstance(of, set):
        return frozenset(of)
    if isinstance(of, Index):
        return {value: sorted(of.keys(value)) for value in of._keys}
    if isinstance(of, DeviceUsage):
        return remembered(msgspec.structs.asdict(of), seen)
    if not isinstance(of, BOOKS) or id(of) in seen:
        return of
    seen[id(of)] = of
    return {name: remembered(value, seen) for name, value in vars(of).items() if name not in {"version", "_listeners"}}


def differences(one, other, path=""):
    if isinstance(one, dict) and isinstance(other, dict):
        return [each for key in {**one, **other} for each in differences(one.get(key), other.get(key), f"{path}.{key}")]
    return [] if one == other else [f"{path}: {one!r:.200} -> {other!r:.200}"]


@pytest.mark.parametrize("seed", range(examples(60)))
def test_a_trial_is_a_cluster_without_these_pods_and_leaves_no_trace(seed):
    draw = random.Random(seed)
    inventory, running = beginning(), []
    for number in range(draw.randint(2, 12)):
        request = wanting(draw, f"p{number}")
        if isinstance(answer := decide(inventory, request, OPTIONS), Decision):
            run(inventory, request, answer, bound=(bound := draw.random() < 0.7))
            running.append((request, answer, bound))
    questions = [wanting(draw, f"q{number}") for number in range(4)]
    gone = draw.sample(running, draw.randint(0, len(running)))
    before, state = answers(inventory, questions), state_of(inventory)

    with inventory.trial() as trial:
        for request, _, _ in gone:
            trial.remove(request.pod.metadata.uid, claims_of(request))
        without = beginning()
        for each in running:
            if each not in gone:
                run(without, each[0], each[1], bound=each[2])
        assert answers(inventory, questions) == answers(without, questions)

        held = [DeviceId(DRIVER, f"n{number}", "gpu-0") for number in draw.sample(range(4), 2)]
        trial.hold(held)
        moved = draw.sample(gone, min(len(gone), 2))
        for request, _, _ in (*moved, *[(each, None, None) for each in questions[:2]]):
            if isinstance(answer := decide(inventory, request, OPTIONS), Decision):
                chosen = {each.device for entry in answer.holdings.values() for each in entry}
                assert chosen.isdisjoint(held)
                trial.place(request.pod, answer.node, answer.holdings)
                if draw.random() < 0.3:
                    trial.take_back(request.pod.metadata.uid)
        with inventory.trial() as inner:
            for request, _, _ in running:
                inner.remove(request.pod.metadata.uid, claims_of(request))
            answers(inventory, questions)
        answers(inventory, questions)

    assert answers(inventory, questions) == before
    assert differences(state, state_of(inventory)) == []


def test_a_pod_that_is_taken_back_is_as_it_was_on_the_trial():
    inventory = beginning()
    moving = member("moving", 2)
    answer = decide(inventory, moving, OPTIONS)
    run(inventory, moving, answer, bound=True)
    with inventory.trial() as trial:
        trial.remove(moving.pod.metadata.uid, claims_of(moving))
        nothing = dict(inventory.usage.uses())
        trial.place(moving.pod, answer.node, answer.holdings)
        assert dict(inventory.usage.uses()) != nothing
        trial.take_back(moving.pod.metadata.uid)
        assert dict(inventory.usage.uses()) == nothing
    assert {device.device for device in inventory.usage.uses()} == {"gpu-0", "gpu-1"}

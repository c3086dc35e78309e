"""S1, S2, N1: objects that are as heavy as is accepted, in every text, list and map, alone and in pairs, hold up nobody.

The whole controller and the real `decide` run on the memory cluster. What cannot be interrupted is one callback of the event
loop: each is timed by the CPU that it takes. `make soak` plays it at 5,000 nodes beside 1,000 such objects of each field: 20
minutes of CPU.
"""

import asyncio
import gc
import random
import time
from collections import defaultdict
from functools import cache

import msgspec
import pytest

from controller.cli.heap import collect_in_pieces
from controller.decide import decide
from hami_dra.api import kinds
from hami_dra.kube.protocol import ClusterError
from tests.hostile.test_accepted_maximum import LENGTHS, OPERATORS, evil
from tests.support import large_objects
from tests.support.examples import SOAK
from tests.support.harness import claim, gpu_slice, node, play, pod
from tests.support.large_objects import HOST, merged

NODES, OBJECTS = (5_000, 1_000) if SOAK else (100, 30)
MOST_IN_ONE_PIECE, MOST_UNTIL_PLACED = 0.25, 2.0
"""Seconds of CPU."""
ZONES = 10
DISK = "disk"
RUNNING = "w0000"
"""Stands for the node of every other pod."""
LEAST = {
    "Pod": {
        "spec": {
            "nodeName": RUNNING,
            "containers": [{"name": "main"}],
            "resourceClaims": [{"name": "card", "resourceClaimName": "never"}],
            "schedulerName": "default-scheduler",
            "priority": 0,
        },
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "x" * 20, "message": "x" * 80}],
        },
    },
    "ResourceClaim": {"spec": {"devices": {}}},
    "ResourceClaimTemplate": {"spec": {"spec": {"devices": {}}}},
    "PersistentVolumeClaim": {"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "late"}},
    "PodGroup": {"spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}},
}
FIRST = "n0000"
_NOT_OURS = ("kube/embedded/", "tests/")


class Pieces:
    """The longest piece of work of each task of the controller."""

    def __init__(self):
        self.longest = defaultdict(float)

    def install(self, monkeypatch):
        run = asyncio.events.Handle._run

        def timed(handle):
            began = time.process_time()
            run(handle)
            spent = time.process_time() - began
            name = owner(handle)
            self.longest[name] = max(self.longest[name], spent)

        monkeypatch.setattr(asyncio.events.Handle, "_run", timed)

    def worst(self):
        found = {name: spent for name, spent in self.longest.items() if not any(each in name for each in _NOT_OURS)}
        return max(found.items(), key=lambda each: each[1], default=("", 0.0))


def owner(handle):
    task = getattr(handle._callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return repr(handle._callback)[:80]
    code = getattr(task.get_coro(), "cr_code", None)
    return f"{code.co_filename}:{code.co_qualname}" if code is not None else repr(task.get_coro())


@cache
def largest(places):
    """The object as the API server stores it, with the least that its kind needs; a pod waits, or runs on a node."""
    kind = places[0].kind
    where = {"namespace": "evil"} if kind.namespaced else {}
    stored = {"creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "123456", "generation": 1}
    rest = {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {"name": FIRST, "uid": "u" * 36, **stored, **where},
    }
    return large_objects.largest(places, FIRST, merged(rest, LEAST.get(kind.name, {})))


def renamed(value, name):
    """The object again with other texts: no two are alike."""
    if isinstance(value, dict):
        return {renamed(key, name): renamed(each, name) for key, each in value.items()}
    if isinstance(value, list):
        return [renamed(each, name) for each in value]
    return value.replace(FIRST, name) if isinstance(value, str) else value


def objects(places, number):
    """The objects of one attack: one that is as large as may be, and a pod that refers to it."""
    name = f"n{number:04}"
    kind = places[0].kind
    body = renamed(largest(tuple(places)), name)
    body["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    del body["metadata"]["resourceVersion"]
    if kind is kinds.POD:
        if "nodeName" in body["spec"] and body["spec"]["nodeName"] == RUNNING:
            body["spec"]["nodeName"] = f"w{number % NODES}" if number % 2 else ""
        yield kind, body
        return
    yield kind, body
    yield kinds.POD, refers(kind, name)


def refers(kind, name):
    body = pod(f"user-{name}", claims=["never"])
    body["metadata"]["namespace"] = name if kind is kinds.NAMESPACE else "evil"
    if kind is kinds.RESOURCE_CLAIM:
        body["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": name}]
    elif kind is kinds.RESOURCE_CLAIM_TEMPLATE:
        body["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimTemplateName": name}]
    elif kind is kinds.PERSISTENT_VOLUME_CLAIM:
        body["spec"]["volumes"] = [{"name": DISK, "persistentVolumeClaim": {"claimName": name}}]
    elif kind is kinds.POD_GROUP:
        body["spec"]["schedulingGroup"] = {"podGroupName": name}
    return body


@pytest.fixture(autouse=True)
def garbage_is_collected_as_in_the_controller():
    """With Python's defaults a collection reads all nodes time and again: 0.2 s at 5,000 nodes."""
    before = gc.get_threshold()
    collect_in_pieces()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


async def fill(scene, attacks):
    for each in attacks:
        for kind, body in each:
            try:
                await scene.add(kind, body)
            except ClusterError:  # an API server refuses it, too
                break
        await asyncio.sleep(0)


def story_of(attacks, pieces, waits, nodes):
    async def story(scene):
        scene.clock.cpu = time.process_time
        await scene.add(kinds.NAMESPACE, *({"metadata": {"name": name}} for name in ("evil", "shop")))
        for number in range(nodes):
            labels = {HOST: f"w{number}", "zone": f"z{number % ZONES}"}
            await scene.add(kinds.NODE, node(f"w{number}", labels=labels))
            await scene.add(kinds.RESOURCE_SLICE, gpu_slice(f"w{number}", cards=1))
        never = claim("never", 999)
        never["metadata"]["namespace"] = "evil"
        await scene.add(kinds.RESOURCE_CLAIM, never)
        await scene.sleep(5)
        gc.freeze()
        pieces.longest.clear()
        await fill(scene, attacks)
        await scene.sleep(10)
        for number in range(3):
            mine = claim(f"honest-{number}", 1)
            body = pod(f"honest-{number}", claims=[f"honest-{number}"])
            body["metadata"]["labels"] = {"app": f"shop-{number}"}
            for each in (mine, body):
                each["metadata"]["namespace"] = "shop"
            await scene.add(kinds.RESOURCE_CLAIM, mine)
            await scene.add(kinds.POD, body)
            began = time.process_time()

            async def is_placed(name=f"honest-{number}"):
                return (await scene.cluster.get(kinds.RESOURCE_CLAIM, name, "shop")).status.allocation is not None

            await scene.until(is_placed, seconds=120, step=0.01)
            waits.append(time.process_time() - began)

        stored = (await scene.cluster.list(kinds.POD)).items
        assert sum(bool(each.spec.unreadable) for each in stored) < len(stored) / 2

    return story


def attack(monkeypatch, attacks, nodes=NODES):
    pieces, waits = Pieces(), []
    pieces.install(monkeypatch)
    play(
        story_of(attacks, pieces, waits, nodes),
        nodes=0,
        scheduler=False,
        decide=decide,
        probe=False,
        quiet_time=0.0,
    )
    assert pieces.worst()[1] < MOST_IN_ONE_PIECE, pieces.worst()
    assert max(waits) < MOST_UNTIL_PLACED, waits


def fields():
    """One list of places for each field of two levels: `spec.affinity`, `metadata.labels`."""
    found = defaultdict(list)
    for place in large_objects.ALL:
        if place.path.startswith(("spec.", "metadata.labels")):
            found[place.kind.resource, ".".join(place.path.replace("[]", "").split(".")[:2])].append(place)
    return found


def mixed(seed, count):
    """Fields alone and pairs of fields of one kind, in turns; half of them of pods."""
    chance = random.Random(seed)
    by_kind = [[place for place in large_objects.ALL if place.kind is kind] for kind in large_objects.TENANTS]
    pods = next(places for places in by_kind if places[0].kind is kinds.POD)
    for number in range(count):
        yield objects(chance.sample(chance.choice([pods, chance.choice(by_kind)]), 1 + number % 2), number)


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("seed", range(10 if SOAK else 1))
def test_objects_of_every_field_at_once_hold_up_nobody(seed, monkeypatch):
    attack(monkeypatch, mixed(seed, OBJECTS))


QUICK_FIELDS = [("pods", "spec.affinity"), ("persistentvolumeclaims", "spec.selector")]


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("field", fields() if SOAK else QUICK_FIELDS, ids=" ".join)
def test_many_objects_of_one_field_hold_up_nobody(field, monkeypatch):
    places = fields()[field]
    chance = random.Random(0)
    attack(monkeypatch, (objects([chance.choice(places)], number) for number in range(OBJECTS)))


def pods_at_the_limit(count, nodes, operator, length):
    """Pods with as many terms as are read, every other one on a node."""
    room = {"preemptionPolicy": "x" * 1_000}  # for what is stored besides
    first = msgspec.to_builtins(evil(FIRST, operator, LENGTHS[length], **LEAST["Pod"]["spec"], **room))
    for number in range(count):
        body = renamed(first, f"n{number:04}")
        body["spec"] |= {"preemptionPolicy": "", "nodeName": f"w{number % nodes}" if number % 2 else ""}
        yield [(kinds.POD, body)]


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(("nodes", "count"), [(60, 200), (5_000, 1_000)] if SOAK else [(20, 10)])
@pytest.mark.parametrize("length", LENGTHS if SOAK else ["many terms"])
@pytest.mark.parametrize("operator", OPERATORS if SOAK else ["DoesNotExist"])
def test_many_pods_with_terms_at_the_limit_hold_up_nobody(nodes, count, operator, length, monkeypatch):
    """Pieces of 0.17 to 0.24 s were the collection of garbage among 100,000 objects."""
    attack(monkeypatch, pods_at_the_limit(count, nodes, operator, length), nodes)

"""N2, N3, S1, S2: whatever a tenant writes is weighed where it is decoded; what is too heavy is refused by name, and costs nothing.

`tests.support.large_objects` finds the fields by the schema: one that is added to a Struct is tried by itself.
"""

import tracemalloc
from pathlib import Path

import msgspec
import pytest

from controller.cluster.pod_resources import pod_requests
from controller.insight.manifests import gather
from controller.inventory import quotas
from controller.inventory.inventory import Inventory
from hami_dra.api import kinds, sharing, weight
from hami_dra.api.core import PodSpec, ResourceQuota
from hami_dra.kube.decoding import read_added, read_object, read_page
from hami_dra.kube.documents import read_documents
from tests.cards import node
from tests.support.examples import SOAK, examples
from tests.support.large_objects import ALL, TENANTS, base, largest

KIB, MIB = 1 << 10, 1 << 20
MUCH = MIB if SOAK else 150 * KIB
"""Bytes of one field; much above every limit."""
ROOT = Path(__file__).parents[2]
MANY_LABELS = {f"label-{number}": "x" * 60 for number in range(3_000)}


def test_every_kind_that_tenants_write_is_weighed():
    assert {kind.name for kind in TENANTS} == {
        "Pod", "ResourceClaim", "ResourceClaimTemplate", "PersistentVolumeClaim", "PodGroup", "ResourceQuota", "Namespace",
        "PodDisruptionBudget",
    }  # fmt: skip
    assert len(ALL) > 500


@pytest.mark.parametrize("kind", TENANTS, ids=lambda kind: kind.resource)
def test_an_object_with_one_large_field_is_reduced_to_what_names_it(kind):
    """Each text, list and map of the kind's Structs in turn: what is kept is small, and says why."""
    dropped = []
    for place in (place for place in ALL if place.kind is kind):
        item, problem = read_object(kind, place.body("evil", MUCH))
        most = (
            80 * KIB if place.path.startswith("status.reservedFor") else 32 * KIB
        )  # 256 pods, which nobody else writes
        assert weight.weight(item) * weight.GRAIN < most, place
        assert item.metadata.name == "evil" or place.path == "metadata.name"
        if not problem:
            dropped.append(place.path)
        else:
            assert problem.startswith("too large: "), place
            assert len(problem) < 200
    unread = ("metadata.annotations", "metadata.ownerReferences", "spec.metadata.")
    assert all(path.startswith(unread) for path in dropped), dropped


@pytest.mark.parametrize("kind", TENANTS, ids=lambda kind: kind.resource)
def test_memory_of_large_objects_is_bounded_by_object_and_of_those_that_are_gone_by_bytes(kind):
    """Before: 1.24 MiB for ever for each pod that came and went, 1.6 to 3.6 for each that stays."""
    few = 20 if SOAK else 3
    found = [place for place in ALL if place.kind is kind]
    for place in found if SOAK else found[:: len(found) // 2]:
        bodies = [place.body(f"evil-{number}", MUCH) for number in range(few)]
        kept, gone = memory_of(kind, bodies)
        assert gone < 32 * MIB, place
        assert kept / few < 64 * KIB, place


def memory_of(kind, bodies):
    """Bytes while the objects are there, and afterwards."""
    sharing.forget()
    tracemalloc.start()
    items = [read_object(kind, body)[0] for body in bodies]
    kept, _ = tracemalloc.get_traced_memory()
    del items
    gone, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept, gone


@pytest.mark.parametrize("path", ["metadata.labels", "spec.nodeSelector", "spec.affinity.podAntiAffinity"])
def test_a_pod_just_below_the_limit_costs_what_the_limit_says(path):
    """75 KiB with hundreds of short labels: tables of Python, at 11 KB of JSON."""
    place = next(each for each in ALL if each.kind is kinds.POD and each.path.startswith(path))
    body = msgspec.json.encode(largest([place], "evil-00", base(kinds.POD, "evil-00")))
    kept, gone = memory_of(kinds.POD, [body.replace(b"evil-00", f"evil-{number:02}".encode()) for number in range(20)])
    assert kept / 20 < weight.MOST_WEIGHT * weight.GRAIN
    assert gone < MIB


def test_parts_that_come_and_go_are_bounded_by_bytes_and_not_by_their_number():
    """Each pod has tolerations of its own, as heavy as is shared at all."""
    sharing.forget()
    for number in range(examples(600)):
        own = [{"key": f"{number}-{each}".ljust(200, "x"), "operator": "Exists"} for each in range(30)]
        body = {**base(kinds.POD, "evil"), "spec": {"tolerations": own}}
        _, problem = read_object(kinds.POD, msgspec.json.encode(body))
        assert not problem
    parts = tuple(sharing._known.items())
    assert 0 < sum(weight.weight(part) for part in parts) * weight.GRAIN <= 9 * MIB
    sharing.forget()


# --- what is kept -------------------------------------------------------------------------------------------------------------


def large(kind, **parts):
    """The stub of an object with thousands of labels and these parts."""
    body = {**base(kind, "evil"), **parts}
    body["metadata"] = {**body["metadata"], "labels": MANY_LABELS}
    item, problem = read_object(kind, msgspec.json.encode(body))
    assert problem.startswith("too large: metadata.labels has ")
    return item


def container(name, cpu, **more):
    return {"name": name, "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}, **more}


def test_a_running_pod_that_is_too_large_still_fills_its_node():
    spec = {
        "nodeName": "n0",
        "containers": [container("a", "3"), container("b", "2", ports=[{"containerPort": 1, "hostPort": 8080}])],
        "initContainers": [container("c", "1", restartPolicy="Always"), container("d", "1")],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
    }
    item = large(kinds.POD, spec=spec, status={"phase": "Running"})
    full = msgspec.convert({**base(kinds.POD, "evil"), "spec": spec}, kinds.POD.type)
    found, exact = pod_requests(item), pod_requests(full)
    assert all(found[name] >= exact[name] for name in exact)
    assert (found["cpu"], item.status.phase, item.spec.resource_claims[0].resource_claim_name) == (
        7000,
        "Running",
        "gpu",
    )
    inventory = Inventory()
    allocatable = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    inventory.node_changed(None, node("n0", allocatable=allocatable))
    inventory.pod_changed(None, item)
    for cpu, ports, fits in (("1", [], True), ("2", [], False), ("1", [{"containerPort": 1, "hostPort": 8080}], False)):
        asked = {**base(kinds.POD, "honest"), "spec": {"containers": [container("a", cpu, ports=ports)]}}
        assert inventory.rules.node_fit(msgspec.convert(asked, kinds.POD.type)).mask.tolist() == [fits]


def test_an_allocated_claim_that_is_too_large_still_holds_its_devices():
    result = {"request": "r", "driver": "gpu.x", "pool": "n0", "device": "gpu-0", "consumedCapacity": {"memory": "1Gi"}}
    pods = [{"resource": "pods", "name": f"p{number}", "uid": f"u{number}"} for number in range(256)]
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": pods}
    item = large(kinds.RESOURCE_CLAIM, spec={"devices": {"requests": [{"name": "r"}]}}, status=status)
    assert [each.device_id for each in item.results] == ["gpu.x/n0/gpu-0"]
    assert item.results[0].consumed_capacity == {"memory": "1Gi"}
    assert len(item.status.reserved_for) == 256
    assert item.spec.unreadable


def test_a_volume_claim_that_is_too_large_keeps_its_volume():
    spec = {"volumeName": "pv", "storageClassName": "disk", "accessModes": ["ReadWriteOncePod"]}
    item = large(kinds.PERSISTENT_VOLUME_CLAIM, spec=spec, status={"phase": "Bound"})
    assert (item.spec.volume_name, item.spec.storage_class_name, item.status.phase) == ("pv", "disk", "Bound")
    assert item.spec.access_modes == ("ReadWriteOncePod",)


def test_a_quota_that_is_too_large_still_limits_devices():
    item = large(kinds.RESOURCE_QUOTA, spec={"hard": {"pods": "5", "limits.nvidia.com/gpu": "4"}})
    assert item.spec.hard == {"limits.nvidia.com/gpu": "4"}


# --- honest objects -----------------------------------------------------------------------------------------------------------


def honest_objects():
    files = [path for folder in ("examples", "manifests", "tests/fixtures") for path in (ROOT / folder).rglob("*.yaml")]
    for path in files:
        try:
            found = gather(read_documents([path]))
        except Exception:  # noqa: BLE001 (some fixtures are broken on purpose)
            continue
        yield from ((item.kind, item.object) for item in found.items)


def test_real_objects_are_far_below_every_limit():
    found = [(kind, item) for kind, item in honest_objects() if kind in TENANTS]
    assert len(found) > 50
    parts = sorted(weight.weight(item) / kind.most_weight for kind, item in found)
    assert parts[len(parts) // 2] < 0.02
    assert parts[-1] < 0.07


def test_an_ordinary_object_is_not_weighed(monkeypatch):
    """The length that it was sent in is enough, or that of what is read of it."""
    monkeypatch.setattr(weight, "weight", None)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
    spec = {
        "containers": [container("main", "1")],
        "tolerations": [
            {"key": f"node.kubernetes.io/{what}", "operator": "Exists"} for what in ("not-ready", "unreachable")
        ],
    }
    body = {**base(kinds.POD, "web"), "spec": spec}
    body["metadata"] |= {"ownerReferences": [owner], "labels": {"app": "web"}, "managedFields": [{"a": "x" * 20_000}]}
    assert read_object(kinds.POD, msgspec.json.encode(body))[1] == ""
    page = {"metadata": {"resourceVersion": "5"}, "items": [body] * 3}
    assert not read_page(kinds.POD, msgspec.json.encode(page)).broken
    line = msgspec.json.encode({"type": "ADDED", "object": body}) + b"\n"
    assert [problem for _, problem in read_added(kinds.POD, line * 3)] == [""] * 3


def test_lines_of_one_answer_are_weighed_each_by_itself():
    few = {**base(kinds.POD, "few"), "spec": {}}
    many = {**base(kinds.POD, "many"), "spec": {"nodeSelector": MANY_LABELS}}
    lines = [msgspec.json.encode({"type": "ADDED", "object": item}) + b"\n" for item in (few, many, few)]
    found = read_added(kinds.POD, b"".join(lines))
    assert [bool(problem) for _, problem in found] == [False, True, False]
    assert found[1][0].spec == PodSpec(containers=found[1][0].spec.containers, unreadable=found[1][1])


# --- many of them -------------------------------------------------------------------------------------------------------------


def test_each_quota_is_read_when_it_changes_and_not_when_another_one_does(monkeypatch):
    """1,000 quotas as large as is accepted in one namespace took more than ten minutes: each event read them all."""
    read, limits_of = [], quotas.limits_of
    monkeypatch.setattr(quotas, "limits_of", lambda quota: read.append(quota.metadata.name) or limits_of(quota))
    inventory = Inventory()

    def stored(number, amount):
        hard = {"limits.nvidia.com/gpu": str(amount)} | {f"limits.evil.com/{number}-{each}": "1" for each in range(50)}
        return msgspec.convert({**base(kinds.RESOURCE_QUOTA, f"q{number}"), "spec": {"hard": hard}}, ResourceQuota)

    items = [stored(number, number) for number in range(100)]
    for each in items:
        inventory.quota_changed(None, each)
    inventory.quota_changed(items[7], stored(7, 70))
    inventory.quota_changed(items[8], None)
    assert len(read) == 101
    found = {each.quota: each.grains for each in inventory.quotas.limits("evil")}
    assert len(found) == 99
    assert found["q7"] * 9 == found["q9"] * 70 > 0

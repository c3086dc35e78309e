"""L1: no amount that the API server stores overflows, wraps or turns negative, alone or in a sum, wherever amounts are added.

Amounts of pods, nodes, cards, counters, claims, allocations and quotas are drawn from the extremes, for one machine of each
vendor. Whatever they are, a decision ends, and explanation, overview, metrics and quota lines can be written and hold no negative figure.
"""

import copy
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from controller.cluster.incremental.saturation import CARD_MOST, MOST, saturated, sums
from controller.cluster.pod_resources import pod_requests
from controller.decide import Decision, Options, PodClaim, SchedulingRequest, Unschedulable, decide
from controller.insight.explain.explain import explain
from controller.inventory.inventory import Inventory
from controller.reconcile.observability.collectors.cards import CardGauges
from controller.reconcile.observability.collectors.figures import PackingFigures, QuotaFigures
from controller.reconcile.observability.collectors.pods import PodGauges
from controller.reconcile.observability.usage import UsageCollector
from controller.reconcile.runtime.informers import allocated_devices
from controller.scoring.policies import DevicePolicy, Policies
from controller.views.overview.card_table import CardTable
from controller.views.overview.read import overview
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.api.resource import DeviceClass, ResourceSlice
from hami_dra.kube.store import Store
from tests.cards import claim, node, pod, request
from tests.support.quotas import quota_object

AMOUNTS = (
    *("0", "1", "1n", "100m", "1Gi", "40Gi", "7E", "8E", "7Ei", "8Ei", "1e18", "1e19", "1e400"),
    *("9223372036854775807", "9223372036854775808", "4611686018427387904", "281474976710656"),
    *("-1", "-8E", "-9223372036854775808", "-1e400"),
)
amounts = st.sampled_from(AMOUNTS)
resources = st.dictionaries(st.sampled_from(["cpu", "memory", "example.com/thing"]), amounts, max_size=3)
containers = st.lists(
    st.builds(lambda requests, limits: {"requests": requests, "limits": limits}, resources, resources),
    min_size=1,
    max_size=4,
)
pods = st.tuples(containers, st.lists(resources, max_size=2), st.none() | resources, resources, st.booleans())
NODE_POLICIES = ("binpack", "spread", "fair-share")
DEVICE_POLICIES = ("binpack", "spread", "topology-aware", "mutex")
MACHINES = {
    "a2-ultragpu-2g-mig": "nvidia-vgpu.hami.io",
    "g5.12xlarge": "nvidia-vgpu.hami.io",
    "c500-8": "metax-sgpu.hami.io",
    "p800-oam-8": "kunlunxin-vxpu.hami.io",
    "s60-8": "enflame-vgcu.hami.io",
    "inf2.48xlarge": "neuron-core.hami.io",
}


def shipped(path):
    return [item for item in yaml.safe_load_all(Path(path).read_text()) if item]


SLICES = {name: shipped(f"resourceslices/{name}.yaml") for name in MACHINES}
CLASSES = {name: shipped(f"deviceclasses/{name}.yaml") for name in set(MACHINES.values())}


def pod_of(name, parts, **spec):
    containers, init, whole, overhead, sidecar = parts
    always = {"restartPolicy": "Always"} if sidecar else {}
    spec["containers"] = [{"name": f"c{number}", "resources": each} for number, each in enumerate(containers)]
    spec["initContainers"] = [
        {"name": f"i{number}", "resources": {"requests": each}, **always} for number, each in enumerate(init)
    ]
    if whole is not None:
        spec["resources"] = {"requests": whole}
    return pod(name, overhead=overhead, **spec)


# --- sums ------------------------------------------------------------------------------------------------------------


@given(pods)
def test_what_a_pod_asks_for_is_between_nothing_and_the_most(parts):
    assert all(0 <= amount <= MOST for amount in pod_requests(pod_of("p", parts)).values())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, MOST)), max_size=50))
def test_sums_by_group_are_exact_until_they_are_saturated(entries):
    group, values = (np.array([entry[side] for entry in entries], dtype=np.int64) for side in (0, 1))
    expected = [saturated(sum(value for of, value in entries if of == number)) for number in range(4)]
    assert sums(group, values, 4) == expected


def test_two_containers_that_ask_for_all_the_memory_there_can_be():
    inventory = Inventory()
    inventory.node_changed(None, node("n1"))
    greedy = pod("p", containers=[{"name": name, "resources": {"requests": {"memory": "8E"}}} for name in "ab"])
    assert not inventory.rules.node_fit(greedy).mask.any()


def test_a_full_node_is_full_however_much_its_pods_ask_for():
    """Ten pods of 2^62 each: their sum is beyond an int64, and must not be free again."""
    inventory = Inventory()
    inventory.node_changed(None, node("n1"))
    for number in range(10):
        containers = [{"name": "main", "resources": {"requests": {"memory": "4611686018427387904"}}}]
        inventory.pod_changed(None, pod(f"p{number}", containers=containers, nodeName="n1"))
    modest = pod("p", containers=[{"name": "main", "resources": {"requests": {"memory": "1Mi"}}}])
    assert not inventory.rules.node_fit(modest).mask.any()


# --- whole clusters --------------------------------------------------------------------------------------------------


def distorted(draw, found):
    """A slice with some of its amounts replaced."""
    found = copy.deepcopy(found)
    spec = found["spec"]
    capacities = [each["capacity"] for each in spec.get("devices", ())[:8]]
    counters = [each["counters"] for each in spec.get("sharedCounters", ())]
    counters += [used["counters"] for each in spec.get("devices", ()) for used in each.get("consumesCounters", ())]
    for _ in range(draw(st.integers(0, 6))):
        table = draw(st.sampled_from(capacities + counters[:20]))
        table[draw(st.sampled_from(sorted(table)))]["value"] = draw(amounts)
    return msgspec.convert(found, ResourceSlice)


@st.composite
def node_views(draw):
    """An inventory, the claims in it and the class to ask."""
    machine = draw(st.sampled_from(sorted(MACHINES)))
    inventory, claims = Inventory(), Store(device=allocated_devices)
    for each in CLASSES[MACHINES[machine]]:
        inventory.class_changed(None, msgspec.convert(each, DeviceClass))
    inventory.node_changed(None, node(machine, allocatable={"pods": "10", **draw(resources)}))
    devices = []
    for found in SLICES[machine]:
        made = distorted(draw, found)
        devices += [(made.spec.driver, made.spec.pool.name, each.name) for each in made.spec.devices]
        inventory.slice_changed(None, made)
    for number in range(draw(st.integers(0, 3))):
        inventory.pod_changed(None, pod_of(f"old-{number}", draw(pods), nodeName=machine))
    for number in range(draw(st.integers(0, 4))):
        driver, pool, device = draw(st.sampled_from(devices[:3]))
        result = {"request": "gpu", "driver": driver, "pool": pool, "device": device}
        if draw(st.booleans()):
            consumed = {name: draw(amounts) for name in ("memory", "cores", "shares")}
            result |= {"shareID": str(number), "consumedCapacity": consumed}
        held = claim(f"held-{number}", allocation={"devices": {"results": [result]}})
        inventory.claim_changed(None, held)
        claims.put(held)
    if draw(st.booleans()):
        keys = ("nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/gpu")
        inventory.quota_changed(None, quota_object({key: draw(amounts) for key in keys}))
    return inventory, claims, MACHINES[machine]


@pytest.mark.filterwarnings("error")
@settings(max_examples=60, deadline=None)
@given(node_views(), pods, st.data())
def test_no_amount_breaks_a_decision_or_what_is_said_of_it(node_view, parts, data):
    inventory, claims, class_name = node_view
    wanted = [
        request(
            f"gpu-{number}",
            class_name=class_name,
            count=data.draw(st.integers(1, 2)),
            **{name: data.draw(amounts) for name in ("memory", "cores")},
        )
        for number in range(data.draw(st.integers(1, 2)))
    ]
    policies = Policies(
        node_policy=data.draw(st.sampled_from(NODE_POLICIES)),
        device_policy=DevicePolicy((data.draw(st.sampled_from(DEVICE_POLICIES)),)),
    )
    scheduling_request = SchedulingRequest(pod_of("new", parts), (PodClaim("gpu", claim("new", wanted)),), policies)
    assert isinstance(decide(inventory, scheduling_request, Options()), Decision | Unschedulable)
    msgspec.json.encode(explain(inventory, scheduling_request, Options()))
    msgspec.json.encode(overview(inventory, claims, ()))
    for line in inventory.quotas.lines():
        assert min(line.used, line.hard) >= 0
    for name in ("slots", "cores", "memory"):
        for kind in ("total", "used"):
            column = getattr(inventory.devices, f"{name}_{kind}")[: inventory.devices.size]
            assert ((column >= 0) & (column <= CARD_MOST)).all()
    assert all(figure >= 0 for figure in exposed(inventory, claims))


def exposed(inventory, claims):
    """Every figure that /metrics would have."""
    table, also = CardTable(inventory), frozenset(NameSet)
    registry = CollectorRegistry()
    for each in (PackingFigures(table), UsageCollector(inventory.usage.uses), QuotaFigures(inventory, also)):
        registry.register(each)
    text = generate_latest(registry).decode()
    text += "".join(CardGauges(table, also).blocks())
    text += "".join(PodGauges(table, claims, lambda _: None, also).blocks())
    return [float(line.rpartition(" ")[2]) for line in text.splitlines() if line and not line.startswith("#")]

"""Requests share the codes of devices as they are published: each says what one says that was made just now.

Devices are published, changed, tainted and removed, nodes come and go, and the caches keep one or two entries.
"""

import random
from unittest.mock import patch

import msgspec
import numpy as np
import pytest

from controller.allocation import prefilter
from controller.allocation.ownership import Scope
from controller.allocation.prefilter import RequestColumns
from controller.decide import Options, PodClaim, SchedulingRequest
from controller.decide.problems import inputs_of, requested_devices_of
from controller.inventory.inventory import Inventory
from controller.scoring.policies import Policies
from hami_dra.api.core import Pod
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from tests.cards import DRIVER, node
from tests.support.examples import examples

OPTIONS = Options(managed=frozenset({DRIVER}))
SELECTORS = ('device.attributes["hami.io"].index == 1', 'device.attributes["hami.io"].productName == "A"')


def device(dice, number):
    return {
        "name": f"gpu-{number}",
        "allowMultipleAllocations": dice.random() < 0.8,
        "attributes": {"hami.io/index": {"int": number}, "hami.io/productName": {"string": dice.choice("AB")}},
        "capacity": {
            "memory": {"value": dice.choice(["16Gi", "80Gi"])},
            "cores": {"value": "100"},
            "shares": {"value": "4"},
        },
        "taints": [
            {"key": dice.choice("ab"), "value": dice.choice("12"), "effect": "NoSchedule"}
            for _ in range(dice.choice([0, 0, 1, 2]))
        ],
    }


def published(dice, name, generation):
    devices = [device(dice, number) for number in range(dice.randint(0, 4))]
    where = {"allNodes": True} if name == "network" else {"nodeName": name}
    pool = {"name": name, "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "pool": pool, "devices": devices, **where}
    return msgspec.convert({"metadata": {"name": name, "uid": name}, "spec": spec}, ResourceSlice)


def asked(dice, number):
    exactly = {"deviceClassName": "ours", "count": 1, "capacity": {"requests": {}}}
    for name, amounts in (("memory", ["1Gi", "17Gi", "100Gi", "-1"]), ("cores", ["10", "101"])):
        if dice.random() < 0.7:
            exactly["capacity"]["requests"][name] = dice.choice(amounts)
    if dice.random() < 0.4:
        exactly["selectors"] = [{"cel": {"expression": dice.choice(SELECTORS)}}]
    if dice.random() < 0.5:
        exactly["tolerations"] = [{"key": "a", "value": dice.choice("12")}, {"key": "b", "operator": "Exists"}]
    name = {"name": f"asks-{number}", "namespace": dice.choice(["one", "two"]), "uid": f"asks-{number}"}
    body = {"metadata": name, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    pod = msgspec.convert({"metadata": name, "spec": {"containers": []}}, Pod)
    return SchedulingRequest(pod, (PodClaim("gpu", msgspec.convert(body, ResourceClaim)),), Policies())


def check(inventory, request):
    managed, _ = inputs_of(inventory, request, OPTIONS)
    ((group, (shared,)),) = requested_devices_of(inventory, request, managed, Scope(OPTIONS.managed, vendor_rules=True))
    preferences = request.policies.preferences_of(group.alternatives[0].claim_key, "gpu")
    fresh = RequestColumns(inventory, group.alternatives[0], shared._scope, shared._ignored, preferences)
    with patch.object(prefilter._AllPublished, "get", lambda _self, _key, make: make()):
        fresh.refresh()
    devices, nodes = inventory.devices.size, inventory.nodes.size
    assert fresh.codes[:devices].tolist() == shared.codes[:devices].tolist()
    assert fresh.fitting[:nodes].tolist() == shared.fitting[:nodes].tolist()
    assert fresh.network_attached == shared.network_attached
    for name in ("codes", "owned", "possible", "per_node", "of_class", "anywhere"):
        assert np.array_equal(getattr(fresh._as_idle(), name), getattr(shared.idle(), name)), name


@pytest.mark.parametrize("seed", range(examples(12)))
def test_shared_codes_are_those_of_a_request_that_was_made_just_now(monkeypatch, seed):
    dice = random.Random(seed)
    for name, sizes in (("_PUBLISHED_KEPT", [1, 2]), ("_IDLE_KEPT", [1, 2]), ("_STATES_KEPT", [1, 256])):
        monkeypatch.setattr(prefilter, name, dice.choice(sizes))
    inventory, nodes, slices = Inventory(), {}, {}
    body = {
        "metadata": {"name": "ours"},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    }
    inventory.class_changed(None, msgspec.convert(body, DeviceClass))
    requests = [asked(dice, number) for number in range(10)]
    for step in range(50):
        name = dice.choice(["n0", "n1", "n2", "network"])
        if dice.random() < 0.3 and name != "network":
            new = None if name in nodes and dice.random() < 0.5 else node(name)
            inventory.node_changed(nodes.get(name), new)
            nodes = {key: each for key, each in (nodes | {name: new}).items() if each is not None}
        else:
            new = None if name in slices and dice.random() < 0.3 else published(dice, name, step + 1)
            inventory.slice_changed(slices.get(name), new)
            slices = {key: each for key, each in (slices | {name: new}).items() if each is not None}
        for request in dice.sample(requests, 4):
            check(inventory, request)

"""Numbers of nodes that look alike: kept by difference they say the same as made anew, whatever happens in between."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.allocation.features import FeatureGates
from controller.allocation.prefilter import prefilter_of
from controller.allocation.request import prepare
from controller.allocation.scope import Scope
from controller.decide.likeness import NO_SAY, Likeness, likeness_of
from controller.inventory.inventory import Inventory
from hami_dra.api.core import Node
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from hami_dra.discovery.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.vendors.registry import VENDORS

MACHINES = ("v100-pairs-8", "c500-8", "p800-oam-8", "a2-ultragpu-2g-mig")
NODES = [f"n{number}" for number in range(4)]
ANY = {"metadata": {"name": "any"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}
WANTED = [("any", {}), ("any", {"memory": "8Gi", "cores": "10"})]

step = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(NODES), st.sampled_from(MACHINES)),
    st.tuples(st.just("withdraw"), st.sampled_from(NODES), st.just("")),
    st.tuples(st.just("take"), st.sampled_from(NODES), st.integers(0, 7)),
    st.tuples(st.just("leave"), st.sampled_from(NODES), st.integers(0, 7)),
    st.tuples(st.just("label"), st.sampled_from(NODES), st.sampled_from(["", "inf2.48xlarge", "trn1.32xlarge"])),
    st.tuples(st.just("gone"), st.sampled_from(NODES), st.just("")),
    st.tuples(st.just("look"), st.just(""), st.just("")),
)


class Cluster:
    def __init__(self):
        self.inventory = Inventory()
        self.inventory.class_changed(None, msgspec.convert(ANY, DeviceClass))
        self.nodes, self.slices = {}, {}
        for name in NODES:
            self.publish(name, MACHINES[0])
            self.label(name, "")

    def publish(self, name, kind):
        self.withdraw(name, "")
        self.slices[name] = []
        for number, body in enumerate(slice_bodies(machine_pools(machine(kind, name)))):
            body["metadata"] = {"name": f"slice-{name}-{number}", "uid": f"{name}-{kind}-{number}"}
            new = msgspec.convert(body, ResourceSlice)
            self.inventory.slice_changed(None, new)
            self.slices[name].append(new)

    def withdraw(self, name, _):
        for old in self.slices.pop(name, ()):
            self.inventory.slice_changed(old, None)

    def label(self, name, value):
        status = {"allocatable": {"cpu": "8", "pods": "9"}, "conditions": [{"type": "Ready", "status": "True"}]}
        metadata = {"name": name, "uid": name, "labels": {"node.kubernetes.io/instance-type": value}}
        new = msgspec.convert({"metadata": metadata, "status": status}, Node)
        self.inventory.node_changed(self.nodes.get(name), new)
        self.nodes[name] = new

    def gone(self, name, _):
        if name in self.nodes:
            self.inventory.node_changed(self.nodes.pop(name), None)

    def take(self, name, card):
        devices = [
            (each.spec.driver, device.name) for each in self.slices.get(name, ()) for device in each.spec.devices
        ]
        if card >= len(devices):
            return
        driver, device = devices[card]
        result = {"request": "r", "driver": driver, "pool": name, "device": device, "shareID": "s"}
        result["consumedCapacity"] = {"memory": "9Gi", "cores": "20", "shares": "1"}
        allocation = {"devices": {"results": [result]}}
        self.inventory.assume(f"{name}/{card}", allocation)

    def leave(self, name, card):
        self.inventory.forget(f"{name}/{card}")

    def looks(self, request):
        """Per vendor and node what a likeness says, kept and made anew."""
        device_class, capacity = request
        exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 2}
        exactly["capacity"] = {"requests": capacity}
        body = {"metadata": {"name": "c", "namespace": "d", "uid": "c"}}
        body["spec"] = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        claim = msgspec.convert(body, ResourceClaim)
        problem = prepare(
            [claim], self.inventory.classes, features=FeatureGates(), admin_namespaces=frozenset(), ignored_taints=set()
        )
        (view,) = problem.claims[0].requests[0].alternatives
        column = prefilter_of(self.inventory).columns(view, Scope(None), problem.ignored_taints)
        for vendor in VENDORS:
            fresh = Likeness(self.inventory, vendor, column)
            fresh.refresh()
            yield said(likeness_of(self.inventory, vendor, column)), said(fresh)


def said(likeness):
    found = []
    for number in likeness.number.tolist():
        if number == NO_SAY:
            found.append(None)
        else:
            alike = likeness[number]
            found.append((alike.layout, alike.cells.tobytes(), alike.states.tobytes(), alike.parts))
    return found


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(step, max_size=25))
def test_kept_as_made_anew(steps):
    cluster = Cluster()
    for what, name, value in [*steps, ("look", "", "")]:
        if what == "look":
            for request in WANTED:
                for kept, fresh in cluster.looks(request):
                    assert kept == fresh
        else:
            getattr(cluster, what)(name, value)

"""A small cluster that changes in every way that clusters do, for tests of what is kept by difference."""

import msgspec

from controller.inventory.inventory import Inventory
from hami_dra.api.core import Node
from hami_dra.api.resource import DeviceClass, ResourceSlice
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from tests.support.assumed import assume

MACHINES = ("v100-pairs-8", "c500-8", "p800-oam-8", "a2-ultragpu-2g-mig")
NODES = [f"n{number}" for number in range(4)]


class ChangingCluster:
    """A few nodes of several vendors, fed to an inventory; every method is a change that a test may make at any time."""

    def __init__(self, classes=None):
        """`classes`: DeviceClasses beside `any`, name → CEL expression."""
        self.inventory = Inventory()
        for name, expression in {"any": "true", **(classes or {})}.items():
            body = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
            self.inventory.class_changed(None, msgspec.convert(body, DeviceClass))
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
        assume(self.inventory, f"{name}/{card}", allocation)

    def leave(self, name, card):
        self.inventory.forget(f"{name}/{card}")

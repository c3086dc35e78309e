"""Claims made to be hard: `decide` ends on any number of nodes, and says what to do."""

from controller.decide import Decision, Demand, Options, PodClaim, Refusal, decide
from controller.inventory.inventory import Inventory
from hami_dra.api.core import Node, Pod
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from tests.support.allocation import DRIVER, GPU, claim, device, exactly, parse, slice_of

RACKS = [device(f"gpu-{index}", rack=index // 16, serial=index) for index in range(128)]


def furnished(nodes):
    inventory = Inventory()
    allocatable = {"cpu": "64", "memory": "1Ti", "pods": "110"}
    for name in (f"node-{number}" for number in range(nodes)):
        status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
        inventory.node_changed(None, parse({"metadata": {"name": name, "uid": name}, "status": status}, Node))
        local = slice_of(*RACKS, name=f"slice-{name}", pool=name, nodeName=name)
        inventory.slice_changed(None, parse(local, ResourceSlice))
    inventory.class_changed(None, parse(GPU, DeviceClass))
    return inventory


def asked(inventory, *claims):
    pod = parse({"metadata": {"name": "pod", "namespace": "ns", "uid": "pod"}}, Pod)
    parsed = [parse(each, ResourceClaim) for each in claims]
    return decide(inventory, Demand(pod, tuple(PodClaim(each.metadata.name, each) for each in parsed)), Options())


def of_one_rack(count):
    together = [{"matchAttribute": f"{DRIVER}/rack"}]
    return [claim(exactly(count=6), name=f"claim-{index}", constraints=together) for index in range(count)]


def test_a_search_without_end_on_every_node_ends_with_a_word_about_it():
    """Eight racks hold two such claims each; no count shows that a seventeenth is too many."""
    inventory = furnished(8)
    answer = asked(inventory, *of_one_rack(17))
    assert isinstance(answer, Refusal)
    assert "given up after" in answer.message
    assert "simplify the claim: fewer requests, or constraints that fewer devices can meet" in answer.message
    assert isinstance(asked(inventory, *of_one_rack(16)), Decision)


def test_many_nodes_where_a_short_search_finds_nothing_do_not_use_up_the_effort():
    inventory = furnished(40)
    answer = asked(inventory, claim(exactly(count=17), constraints=[{"matchAttribute": f"{DRIVER}/rack"}]))
    assert isinstance(answer, Refusal)
    assert answer.message == "no available node, 40 nodes do not meet"

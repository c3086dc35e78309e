"""Claims made to be hard: `decide` ends on any number of nodes, and says what to do."""

from controller.decide import Decision, Options, PodClaim, SchedulingRequest, Unschedulable, decide
from controller.decide.companions import grouped
from controller.inventory.inventory import Inventory
from controller.inventory.selector_budget import Heartbeat
from hami_dra.api.core import Node, Pod
from hami_dra.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from tests.support.allocation import DRIVER, GPU, alternative, claim, device, exactly, first_of, parse, slice_of

RACKS = [device(f"gpu-{index}", rack=index // 16, serial=index) for index in range(128)]


def furnished(nodes):
    inventory = Inventory()
    for number in range(nodes):
        add_node(inventory, f"node-{number}", RACKS)
    inventory.class_changed(None, parse(GPU, DeviceClass))
    return inventory


def add_node(inventory, name, devices):
    allocatable = {"cpu": "64", "memory": "1Ti", "pods": "110"}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    inventory.node_changed(None, parse({"metadata": {"name": name, "uid": name}, "status": status}, Node))
    local = slice_of(*devices, name=f"slice-{name}", pool=name, nodeName=name)
    inventory.slice_changed(None, parse(local, ResourceSlice))


def asked(inventory, *claims, **options):
    pod = parse({"metadata": {"name": "pod", "namespace": "ns", "uid": "pod"}}, Pod)
    entries = tuple(PodClaim(each.metadata.name, each) for each in (parse(raw, ResourceClaim) for raw in claims))
    return decide(inventory, SchedulingRequest(pod, entries, **options), Options())


def of_one_rack(count):
    together = [{"matchAttribute": f"{DRIVER}/rack"}]
    return [claim(exactly(count=6), name=f"claim-{index}", constraints=together) for index in range(count)]


def test_a_search_without_end_on_every_node_ends_with_a_word_about_it():
    """Eight racks hold two such claims each; no count shows that a seventeenth is too many."""
    inventory = furnished(8)
    answer = asked(inventory, *of_one_rack(17))
    assert isinstance(answer, Unschedulable)
    assert "given up after" in answer.message
    assert "simplify the claim: fewer requests, or constraints that fewer devices can meet" in answer.message
    assert isinstance(asked(inventory, *of_one_rack(16)), Decision)


def test_a_pod_of_very_many_requests_is_refused_before_anything_is_prepared():
    """One full claim is decided on; what a turn of a decision costs before its search grows with their number."""
    inventory = furnished(1)
    requested = [first_of(f"r{number}", *[alternative(f"a{rank}") for rank in range(8)]) for number in range(32)]
    full = claim(*requested, name="full")
    assert isinstance(asked(inventory, full), Decision)
    answer = asked(inventory, full, claim(exactly(), name="one-more"))
    assert isinstance(answer, Unschedulable)
    assert "have 257 requests, with each alternative counted; hami-dra decides on at most 256" in answer.error


def test_a_search_without_end_on_the_nominated_node_leaves_the_other_nodes():
    inventory = furnished(1)
    wide = [device(f"gpu-{index}", rack=index // 64, serial=index) for index in range(128)]
    add_node(inventory, "roomy", wide)
    claims = of_one_rack(17)
    assert asked(inventory, *claims).node == "roomy"
    assert asked(inventory, *claims, preferred_node="node-0").node == "roomy"


def test_a_search_without_end_on_the_nominated_node_of_many_ends_with_a_word_about_it():
    answer = asked(furnished(8), *of_one_rack(17), preferred_node="node-5")
    assert isinstance(answer, Unschedulable)
    assert "given up after" in answer.message


def test_many_nodes_where_a_short_search_finds_nothing_do_not_use_up_the_effort():
    inventory = furnished(40)
    answer = asked(inventory, claim(exactly(count=17), constraints=[{"matchAttribute": f"{DRIVER}/rack"}]))
    assert isinstance(answer, Unschedulable)
    assert answer.message == (
        "no node fits: needs 17 devices with the same gpu.example.com/rack (matchAttribute) on one node; "
        "the most a node has is 16 (node-0). Ask for fewer devices, or drop the constraint"
    )


def test_companions_that_fit_nowhere_cost_no_column_for_each_resource_that_they_name(monkeypatch):
    """32 of them with 300 names each, on 5,000 nodes, took 0.4 s in one piece."""
    inventory = furnished(2)
    names = [{f"evil.com/{number}-{each}": "1" for each in range(50)} for number in range(10)]
    others = [{"name": "x", "resources": {"requests": each}} for each in names]
    pods = [
        parse({"metadata": {"name": f"p{n}", "namespace": "ns", "uid": f"p{n}"}, "spec": {"containers": [each]}}, Pod)
        for n, each in enumerate(others)
    ]
    columns, left, beats = [], inventory.rules.left, []
    monkeypatch.setattr(inventory.rules, "left", lambda *given: columns.append(given[1]) or left(*given))
    with inventory.verdicts.within(Heartbeat(lambda: beats.append(None))):
        answer = asked(inventory, claim(exactly(), name="shared"), companions=grouped(pods))
    assert isinstance(answer, Decision)
    assert len(answer.left_out) == len(pods)
    assert columns == []
    assert len(beats) >= len(pods), "each is a step of its own"

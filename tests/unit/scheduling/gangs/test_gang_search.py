"""decide_gang: all members or none, and the inventory as before. Pure, no cluster."""

from controller.scheduling.decide import Options, PodClaim, SchedulingRequest, Unfinished
from controller.scheduling.gangs import GangDecision, GangKey, GangRequest, GangSearch, GangUnschedulable, decide_gang
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.scoring.policies import DevicePolicy, Policies
from tests.cards import DRIVER, card, claim, device_class, node, pod, request, slice_of

OPTIONS = Options(managed=frozenset({DRIVER}))


def cluster(nodes=2, cards=4, labels=lambda _number: {}, **card_options):
    inventory = Inventory()
    inventory.class_changed(None, device_class())
    for number in range(nodes):
        name = f"n{number}"
        inventory.node_changed(None, node(name, labels=labels(number)))
        inventory.slice_changed(None, slice_of(name, [card(index, **card_options) for index in range(cards)]))
    return inventory


def member(name, count=1, node_policy="binpack", device_policy="binpack", **wanted):
    policies = Policies(node_policy=node_policy, device_policy=DevicePolicy((device_policy,)))
    entry = PodClaim("gpus", claim(f"{name}-gpus", [request(count=count, **wanted)]))
    return SchedulingRequest(pod=pod(name), claims=(entry,), policies=policies)


def gang(*members, least=None, **options):
    key = GangKey("labels", "default", "train")
    return GangRequest(key, tuple(members), len(members) if least is None else least, **options)


def held(inventory):
    return dict(inventory.usage.uses())


def test_all_members_are_placed_and_nothing_stays_assumed():
    inventory = cluster()
    found = decide_gang(inventory, gang(*[member(f"p{number}", 2) for number in range(4)]), OPTIONS)
    assert isinstance(found, GangDecision)
    assert sorted(each.node for _, each in found.placed) == ["n0", "n0", "n1", "n1"]
    assert not held(inventory)


def test_none_is_placed_where_one_finds_no_room():
    inventory = cluster()
    found = decide_gang(inventory, gang(*[member(f"p{number}", 2) for number in range(5)]), OPTIONS)
    assert isinstance(found, GangUnschedulable)
    assert found.placeable == 4
    assert not held(inventory)


def test_elastic_members_are_left_where_they_find_no_room():
    found = decide_gang(cluster(), gang(*[member(f"p{number}", 2) for number in range(5)], least=3), OPTIONS)
    assert isinstance(found, GangDecision)
    assert (len(found.placed), len(found.left)) == (4, 1)


def test_a_search_goes_on_where_it_paused():
    inventory = cluster()
    search = GangSearch(inventory, gang(*[member(f"p{number}", 2) for number in range(4)]), OPTIONS)
    for placed in (1, 2, 3):
        assert isinstance(search.advance(lambda: True), Unfinished)
        assert len(held(inventory)) == 2 * placed
    assert isinstance(search.advance(lambda: True), GangDecision)
    assert not held(inventory)


def test_a_search_that_is_closed_leaves_nothing():
    inventory = cluster()
    search = GangSearch(inventory, gang(*[member(f"p{number}", 2) for number in range(4)]), OPTIONS)
    assert isinstance(search.advance(lambda: True), Unfinished)
    search.close()
    assert not held(inventory)

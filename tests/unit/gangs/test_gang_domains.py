"""Topology of gangs: tightest domain first, required and preferred keys, what a domain lacks. Pure."""

from controller.gangs import UnitDecision, UnitRefusal, decide_gang
from controller.inventory.inventory import Inventory
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools
from tests.cards import device_class, node, slice_of
from tests.support.gang_requests import CLIQUE, OPTIONS, RACK, cluster, gang, held, member, nodes_of, occupy, within

ZONE = "topology.kubernetes.io/zone"


def racks(*sizes, cards=4):
    """Racks r0, r1, ... of so many nodes, numbered through."""
    names = [f"r{number}" for number, size in enumerate(sizes) for _ in range(size)]
    return cluster(len(names), cards, labels=lambda number: {RACK: names[number]})


def cliques(nodes=54, size=18, cards=4):
    return cluster(nodes, cards, labels=lambda number: {CLIQUE: f"c{number // size}"})


def fill(inventory, numbers, cards):
    for number in numbers:
        occupy(inventory, f"n{number:02}", cards)


def placed(inventory, wanted):
    before = held(inventory)
    found = decide_gang(inventory, wanted, OPTIONS)
    assert held(inventory) == before
    assert isinstance(found, UnitDecision), found
    return found


def refused(inventory, wanted):
    before = held(inventory)
    found = decide_gang(inventory, wanted, OPTIONS)
    assert held(inventory) == before
    assert isinstance(found, UnitRefusal), found
    return found


def members(many, count=4):
    return [member(f"p{number:02}", count) for number in range(many)]


def test_the_tightest_clique_that_holds_the_gang_is_taken():
    inventory = cliques()
    fill(inventory, [*range(9), *range(18, 27)], 4)  # c0 and c1 are half full, c2 is empty
    found = placed(inventory, gang(*members(8), topology=(within(CLIQUE),)))
    assert found.domain == f"{CLIQUE}=c0"
    assert [(each.name[-2:], each.fits, each.left) for each in found.domains] == [
        ("c0", 8, 1),
        ("c1", 8, 1),
        ("c2", 8, 10),
    ]
    assert found.steps == 8


def test_a_gang_that_half_full_cliques_cannot_hold_gets_the_empty_one():
    inventory = cliques()
    fill(inventory, [*range(9), *range(18, 27)], 4)
    found = placed(inventory, gang(*members(16), topology=(within(CLIQUE),)))
    assert found.domain == f"{CLIQUE}=c2"
    assert {int(name[1:]) // 18 for name in nodes_of(found)} == {2}


def test_a_refusal_says_which_clique_lacks_how_much():
    inventory = cliques()
    fill(inventory, [*range(9), *range(18, 28), 36, 37, 38], 4)
    found = refused(inventory, gang(*members(16), topology=(within(CLIQUE),)))
    assert found.placeable == 15
    assert found.message == (
        f"15 of 16 members fit at once in one domain of {CLIQUE}, as PodGroup default/train "
        f"spec.schedulingConstraints.topology[0].key requires; {CLIQUE}=c2 has room for 15 of 16 members, 1 too few; "
        f"{CLIQUE}=c0 has room for 9 of 16 members, 7 too few; {CLIQUE}=c1 has room for 8 of 16 members, 8 too few"
    )
    assert found.steps == 16  # one attempt, for the reasons


def test_a_gang_that_no_idle_domain_could_hold_never_fits():
    inventory = cluster(4, 4, labels=lambda number: {RACK: f"r{number // 2}"})
    occupy(inventory, "n00", 1)
    assert refused(inventory, gang(*members(3, 4), topology=(within(RACK),))).message.endswith(
        f"; even idle, the devices of the largest ({RACK}=r0) are enough for 2, so it never will"
    )
    occupy(inventory, "n02", 1)
    assert "never" not in refused(inventory, gang(*members(2, 4), topology=(within(RACK),))).message


def test_cards_of_nodes_without_the_label_do_not_count():
    inventory = cluster(3, 4, labels=lambda number: {RACK: "r0"} if number else {})
    assert nodes_of(placed(inventory, gang(*members(2), topology=(within(RACK),)))) == ["n01", "n02"]
    assert refused(inventory, gang(*members(3), topology=(within(RACK),))).placeable == 2


def test_a_label_that_no_node_has_is_named_with_its_field():
    found = refused(cluster(), gang(*members(2), topology=(within("example.com/typo"),)))
    assert found.message.startswith("no node has the label example.com/typo, which PodGroup default/train spec.")
    assert found.domains == ()


def test_two_required_keys_hold_together():
    labels = [{ZONE: zone, RACK: rack} for zone, rack in ("aa", "ab", "ba", "bb", "bb")]
    inventory = cluster(5, 4, labels=lambda number: labels[number])
    found = placed(inventory, gang(*members(2), topology=(within(RACK), within(ZONE))))
    assert found.domain == f"{RACK}=b,{ZONE}=b"
    assert nodes_of(found) == ["n03", "n04"]


def test_members_that_run_already_fix_the_domain():
    inventory = racks(2, 3)
    wanted = gang(*members(1), topology=(within(RACK),), settled_nodes=("n03",))
    assert placed(inventory, wanted).domain == f"{RACK}=r1"
    fill(inventory, [2, 3, 4], 4)
    assert "with the members that run already" in refused(inventory, wanted).message


def test_a_preferred_key_is_one_domain_where_that_is_possible():
    inventory = racks(3, 2, 4)
    found = placed(inventory, gang(*members(2), topology=(within(RACK, required=False),)))
    assert found.domain == f"{RACK}=r1"


def test_a_preferred_key_is_as_few_domains_as_possible_otherwise():
    inventory = racks(2, 3, 1, 2)
    fill(inventory, [0], 4)
    found = placed(inventory, gang(*members(4), topology=(within(RACK, required=False),)))
    # r1 holds three; of those that hold the fourth r0 and r2 are tightest.
    assert found.domain == f"{RACK}=r0, {RACK}=r1"
    assert len({node for node in nodes_of(found) if node in {"n02", "n03", "n04"}}) == 3


def test_a_preferred_key_keeps_nobody_from_running():
    inventory = racks(1, 1, 1)
    found = placed(inventory, gang(*members(3), topology=(within(RACK, required=False),)))
    assert nodes_of(found) == ["n00", "n01", "n02"]


def test_preferred_keys_are_tried_from_the_narrowest():
    labels = [{ZONE: zone, RACK: rack} for zone, rack in (("a", "1"), ("a", "2"), ("b", "3"), ("b", "4"), ("b", "4"))]
    inventory = cluster(5, 4, labels=lambda number: labels[number])
    preferred = (within(RACK, required=False), within(ZONE, required=False))
    assert placed(inventory, gang(*members(2), topology=preferred)).domain == f"{RACK}=4"
    # Three need a zone; in zone b two racks.
    found = placed(inventory, gang(*members(3), topology=preferred))
    assert nodes_of(found) == ["n02", "n03", "n04"]


def test_elastic_members_prefer_a_domain_that_holds_them_all():
    inventory = racks(2, 4)
    found = placed(inventory, gang(*members(4), least=2, topology=(within(RACK),)))
    assert (found.domain, len(found.left)) == (f"{RACK}=r1", 0)
    found = placed(inventory, gang(*members(6), least=2, topology=(within(RACK),)))
    assert (found.domain, len(found.left)) == (f"{RACK}=r1", 2)


def test_the_next_domain_is_tried_where_the_count_was_too_high():
    """Each node of r0 has room for one worker and for a leader, but not for both."""
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "5"}}}]}
    inventory = racks(2, 3)
    wanted = [member(f"w{number}", 4) for number in range(2)]
    leader = member("leader", 1, spec=spec)
    found = placed(inventory, gang(leader, *wanted, topology=(within(RACK),)))
    assert found.domain == f"{RACK}=r1"
    first, _ = found.domains
    assert (first.name, first.tried, first.problem) == (f"{RACK}=r0", True, "has room for 2 of 3 members, 1 too few")


def test_scores_decide_between_domains_that_are_equally_tight_and_then_names():
    inventory = racks(1, 1, 1)
    fill(inventory, [1], 1)  # three cards fit once on each node
    topology = (within(RACK),)
    packed = gang(member("p", 3, node_policy="binpack"), topology=topology)
    apart = gang(member("p", 3, node_policy="spread"), topology=topology)
    assert placed(inventory, packed).domain == f"{RACK}=r1"
    assert placed(inventory, apart).domain == f"{RACK}=r0"


def test_links_between_cards_decide_before_scores():
    """V100 are linked in pairs, 0 with 1, 2 with 3: of racks with two free cards each, the one whose free
    cards are linked.
    """
    inventory = Inventory()
    inventory.class_changed(None, device_class())
    for number, taken in enumerate([(0, 3), (0, 1), (0, 3)]):
        name = f"n{number:02}"
        inventory.node_changed(None, node(name, labels={RACK: f"r{number}"}))
        for pool in machine_pools(machine("v100-pairs-8", name)):
            inventory.slice_changed(None, slice_of(name, pool.devices))
        for index in (*taken, 4, 5, 6, 7):
            occupy(inventory, name, 1, first=index, memory="16Gi")
    wanted = member("p", 2, device_policy="topology-aware")
    found = placed(inventory, gang(wanted, topology=(within(RACK),)))
    assert found.domain == f"{RACK}=r1"


def test_the_worked_example_of_the_documentation():
    """docs/design/gangs.md, "How a gang is decided"."""
    inventory = cliques()
    fill(inventory, [*range(9), *range(18, 27)], 4)
    fill(inventory, [9], 2)
    leader = member("leader", 1)
    found = placed(inventory, gang(leader, *members(8), topology=(within(CLIQUE),)))
    assert [(each.name[-2:], each.left, each.tried) for each in found.domains] == [
        ("c0", 0, True),
        ("c1", 1, False),
        ("c2", 10, False),
    ]
    assert (found.steps, found.placed[0][1].node) == (9, "n09")
    message = refused(inventory, gang(leader, *members(19), topology=(within(CLIQUE),))).message
    assert message.startswith(f"18 of 20 members fit at once in one domain of {CLIQUE}, as PodGroup ")
    assert f"{CLIQUE}=c2 has room for 18 of 20 members, 2 too few; {CLIQUE}=c1 has room for 10" in message


def test_the_node_of_a_running_member_that_lost_the_label_leaves_no_domain():
    inventory = cluster(4, 4, labels=lambda number: {RACK: f"r{number // 2}"} if number else {})
    found = refused(inventory, gang(*members(1), topology=(within(RACK),), settled_nodes=("n00",)))
    assert found.message == (
        f"a member runs on node n00, which has no label {RACK} any more; PodGroup default/train "
        "spec.schedulingConstraints.topology[0].key requires it; no domain is left for the others. "
        "Label the node again"
    )
    both = gang(*members(1), topology=(within(RACK),), settled_nodes=("n00", "n02"))
    assert "a member runs on node n00" in refused(inventory, both).message
    preferred = gang(*members(1), topology=(within(RACK, required=False),), settled_nodes=("n00",))
    assert placed(inventory, preferred).placed

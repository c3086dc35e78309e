"""Cards with their tenants, nodes, namespaces, and how well they are packed."""

import msgspec
import pytest
from msgspec.structs import replace

from controller.inventory.inventory import Inventory
from controller.views.overview.card_table import CardTable
from controller.views.overview.model import Overview
from controller.views.overview.packing import packing
from controller.views.overview.read import overview
from hami_dra.api import names
from hami_dra.api.resource import DeviceTaintRule
from hami_dra.vendors.profiles import BUILT_IN_PROFILES, DriverProfiles, profile_of
from tests.cards import DRIVER, card, claim, node, pod, slice_of, whole

GIB = 1 << 30


def figures(inventory):
    return packing(CardTable(inventory))


def linked(index, group=1, **extra):
    made = card(index, **extra)
    return made | {"attributes": made["attributes"] | {"hami.io/linkGroup": {"int": group}}}


def share(device, node_name="n1", driver=DRIVER, memory="4Gi", cores="30"):
    consumed = {"memory": memory, "cores": cores, "shares": "1"}
    held = {"request": "gpu", "driver": driver, "pool": node_name, "device": device}
    return {**held, "shareID": f"{device}-{memory}", "consumedCapacity": consumed}


def holding(name, *results, pods=(), namespace="default"):
    found = claim(name, namespace=namespace, allocation={"devices": {"results": list(results)}})
    reserved = [{"resource": "pods", "name": each, "uid": f"pod-{each}"} for each in pods]
    raw = msgspec.json.decode(msgspec.json.encode(found))
    raw["status"]["reservedFor"] = reserved
    return msgspec.json.decode(msgspec.json.encode(raw), type=type(found))


def cluster(*slices, claims=(), nodes=("n1",), profiles=BUILT_IN_PROFILES):
    inventory = Inventory(profiles=profiles)
    for each in nodes:
        inventory.node_changed(None, node(each) if isinstance(each, str) else each)
    for each in slices:
        inventory.slice_changed(None, each)
    for each in claims:
        inventory.claim_changed(None, each)
    return inventory


def rule(key, value="", device="gpu-0", effect="NoSchedule"):
    taint = {"key": key, "value": value, "effect": effect}
    selector = {"driver": DRIVER, "device": device}
    return msgspec.convert(
        {"metadata": {"name": f"rule-{key}"}, "spec": {"taint": taint, "deviceSelector": selector}}, DeviceTaintRule
    )


def mig_card(name="n1", **reach):
    """A card cut into halves, each an exclusive device that draws on the card's counters. Default: of the node of that name."""
    reach = reach or {"nodeName": name}
    counters = {"counterSet": "gpu-0", "counters": {"slice": {"value": "2"}}}
    whole_card = card(0) | {"consumesCounters": [counters]}
    halves = []
    for start in range(2):
        draws = {"counterSet": "gpu-0", "counters": {"slice": {"value": "1"}}}
        attributes = card(0)["attributes"] | {"profile": {"string": "3g.8gb"}}
        halves.append(
            {
                "name": f"gpu-0-mig-{start}",
                "attributes": attributes,
                "capacity": {"memory": {"value": "8Gi"}, "cores": {"value": "50"}},
                "consumesCounters": [draws],
            }
        )
    sets = [{"name": "gpu-0", "counters": {"slice": {"value": "2"}}}]
    return (
        slice_of(name, [whole_card, *halves], name=f"{name}-devices", count=2, **reach),
        slice_of(name, name=f"{name}-counters", count=2, sharedCounters=sets, **reach),
    )


# --- packing -------------------------------------------------------------------------------------------------------------


def test_a_cluster_without_cards_has_no_figures():
    assert figures(cluster()) == ()


def test_free_partly_used_and_full_cards_and_how_much_of_what_is_free_is_in_pieces():
    """Free: two whole cards, half of one, none of the last (all cores are taken). Pieces: 0.5 of 2.5 cards."""
    claims = [
        holding("half", share("gpu-0", memory="8Gi", cores="10")),
        holding("cores", share("gpu-1", memory="1Gi", cores="100")),
    ]
    (found,) = figures(cluster(slice_of("n1", [card(index) for index in range(4)]), claims=claims))
    assert (found.driver, found.vendor, found.cards, found.usable_cards) == (DRIVER, "nvidia", 4, 4)
    assert (found.free_cards, found.partly_used_cards, found.full_cards) == (2, 1, 1)
    assert found.free_capacity == 2.5
    assert found.fragmentation == pytest.approx(0.2)
    assert (found.memory_total, found.memory_used) == (64 * GIB, 9 * GIB)
    assert (found.cores_total, found.cores_used, found.shares_total, found.shares_used) == (400, 110, 40, 2)


def test_nothing_free_is_not_fragmented_and_only_pieces_are():
    slices = slice_of("n1", [card(0)])
    (full,) = figures(cluster(slices, claims=[holding("a", share("gpu-0", cores="100"))]))
    (piece,) = figures(cluster(slices, claims=[holding("a", share("gpu-0", cores="1"))]))
    assert (full.fragmentation, full.full_cards) == (0.0, 1)
    assert (piece.fragmentation, piece.partly_used_cards) == (1.0, 1)


def test_islands_are_counted_within_one_island_of_one_node():
    """5 + 3 free cards in two islands of n1, 2 of n2, and cards in no island."""
    n1 = [linked(index, 1) for index in range(5)] + [linked(5 + index, 2) for index in range(3)]
    n2 = [linked(0, 1), linked(1, 1), card(2), card(3)]
    (found,) = figures(cluster(slice_of("n1", n1), slice_of("n2", n2), nodes=("n1", "n2")))
    assert found.free_islands == {2: 2 + 1 + 1, 4: 1, 8: 0}
    assert (found.nodes, found.empty_nodes) == (2, 2)


def test_a_held_card_is_missing_in_its_island_and_its_node_is_not_empty():
    claims = [holding("a", share("gpu-0"))]
    (found,) = figures(cluster(slice_of("n1", [linked(0), linked(1)]), claims=claims))
    assert (found.free_islands[2], found.nodes, found.empty_nodes) == (0, 1, 0)


@pytest.mark.parametrize(
    "away",
    [node(unschedulable=True), node(ready="False"), node(ready="Unknown")],
    ids=["cordoned", "not ready", "unreachable"],
)
def test_cards_of_a_node_that_takes_no_pods_are_not_free(away):
    (found,) = figures(cluster(slice_of("n1", [card(0)]), nodes=(away,)))
    assert (found.cards, found.usable_cards, found.free_cards, found.free_capacity) == (1, 0, 0, 0.0)


def test_cards_are_free_behind_a_node_taint_of_their_own_and_behind_the_fence():
    tainted = node(taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}])
    inventory = cluster(slice_of("n1", [card(0), card(1)]), nodes=(tainted,))
    inventory.taint_rule_changed(None, rule(names.FENCE_TAINT, device="gpu-0"))
    inventory.taint_rule_changed(None, rule(names.XID_TAINT, "xid-79", device="gpu-1"))
    (found,) = figures(inventory)
    assert (found.usable_cards, found.free_cards) == (1, 1)


def test_drivers_are_told_apart_ours_first():
    slices = [
        slice_of("n1", [whole(0)], driver="a.example.com"),
        slice_of("n1", [card(0)], driver="enflame.hami.io"),
        slice_of("n1", [card(0)]),
    ]
    found = figures(cluster(*slices))
    assert [(each.driver, each.vendor) for each in found] == [
        (DRIVER, "nvidia"),
        ("enflame.hami.io", "enflame"),
        ("a.example.com", "a.example.com"),
    ]


def test_a_table_that_is_kept_follows_the_inventory():
    inventory = cluster(slice_of("n1", [linked(0), linked(1)]))
    table = CardTable(inventory)
    assert packing(table)[0].free_islands[2] == 1
    held = holding("a", share("gpu-0"))
    inventory.claim_changed(None, held)
    assert packing(table)[0].free_cards == 1
    inventory.claim_changed(held, None)
    inventory.slice_changed(None, slice_of("n1", [card(0), linked(1)], generation=2))
    inventory.slice_changed(None, slice_of("n2", [linked(index, 7) for index in range(70)]))
    inventory.node_changed(None, node("n2"))
    assert packing(table)[0].free_islands == {2: 35, 4: 17, 8: 8}
    inventory.node_changed(node("n2"), node("n2", unschedulable=True))
    assert packing(table)[0].free_islands[2] == 0
    inventory.node_changed(node("n2"), None)
    assert (packing(table)[0].cards, packing(table)[0].usable_cards) == (72, 2)
    assert packing(table) == figures(inventory)


def test_parts_of_a_card_count_as_the_card():
    held = {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": "gpu-0-mig-1"}
    claims = [holding("a", held, pods=["p"])]
    inventory = cluster(*mig_card(), claims=claims)
    (found,) = figures(inventory)
    assert (found.cards, found.free_cards, found.partly_used_cards) == (1, 0, 1)
    assert (found.memory_used, found.cores_used, found.free_capacity) == (8 * GIB, 50, 0.5)
    (seen,) = overview(inventory, claims, []).cards
    assert (seen.device, seen.parts_used, seen.free, seen.exclusive) == ("gpu-0", 1, False, False)
    (tenant,) = seen.tenants
    assert (tenant.pod, tenant.device, tenant.memory, tenant.whole) == ("p", "gpu-0-mig-1", 8 * GIB, True)


@pytest.mark.parametrize("there", [(), ("n1",), ("n2",), ("n1", "n2")])
def test_parts_count_as_their_own_card_where_nodes_do_not_exist(there):
    held = {"request": "gpu", "driver": DRIVER, "pool": "n2", "device": "gpu-0-mig-1"}
    claims = [holding("a", held, pods=["p"])]
    cards = overview(cluster(*mig_card("n1"), *mig_card("n2"), claims=claims, nodes=there), claims, []).cards
    assert {card.pool: (card.parts_used, len(card.tenants)) for card in cards} == {"n1": (0, 0), "n2": (1, 1)}


def test_parts_count_as_their_own_card_where_several_nodes_reach_it():
    held = {"request": "gpu", "driver": "net.example.com", "pool": "net2", "device": "gpu-0-mig-1"}
    claims = [holding("a", held, pods=["p"])]
    pools = [each for name in ("net1", "net2") for each in mig_card(name, driver="net.example.com", allNodes=True)]
    read = DriverProfiles({"net.example.com": replace(profile_of("net.example.com"), partition="profile")})
    cards = overview(cluster(*pools, claims=claims, profiles=read), claims, []).cards
    assert {card.pool: (card.parts_used, len(card.tenants)) for card in cards} == {"net1": (0, 0), "net2": (1, 1)}


def test_all_memory_and_cores_of_a_shared_card_are_a_whole_card():
    results = [
        {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": f"gpu-{n}", "shareID": f"{n}" * 36,
         "consumedCapacity": {"memory": memory, "cores": cores, "shares": "1"}}
        for n, (memory, cores) in enumerate((("16Gi", "100"), ("16Gi", "0"), ("8Gi", "100")))
    ]  # fmt: skip
    claims = [claim("a", allocation={"devices": {"results": results}})]
    seen = overview(cluster(slice_of("n1", [card(n) for n in range(3)]), claims=claims), claims, [])
    assert [each.tenants[0].whole for each in seen.cards] == [True, False, False]
    assert [each.whole_cards for each in seen.namespaces] == [1]
    assert not seen.cards[0].exclusive


def test_a_part_whose_card_is_not_published_stands_for_itself():
    part = card(0) | {"name": "part"}
    part["attributes"] = part["attributes"] | {"profile": {"string": "1g"}}
    (found,) = figures(cluster(slice_of("n1", [part])))
    assert (found.cards, found.free_cards) == (1, 1)


# --- cards and tenants ---------------------------------------------------------------------------------------------------


def test_a_card_says_what_it_is_and_who_holds_how_much_of_it():
    claims = [
        holding("b", share("gpu-0", memory="2Gi", cores="0"), pods=["two", "one"]),
        holding("a", share("gpu-0"), pods=["zero"]),
    ]
    (seen,) = overview(cluster(slice_of("n1", [linked(0)]), claims=claims), claims, []).cards
    assert (seen.node, seen.driver, seen.vendor, seen.id) == ("n1", DRIVER, "nvidia", f"{DRIVER}/n1/gpu-0")
    assert (seen.uuid, seen.product, seen.index, seen.island) == ("GPU-0", "Tesla T4", 0, 1)
    assert (seen.memory_used, seen.memory_total) == (6 * GIB, 16 * GIB)
    assert (seen.cores_used, seen.cores_total, seen.shares_used, seen.shares_total) == (30, 100, 2, 10)
    first, second = seen.tenants
    assert (first.claim, first.pod, first.memory, first.cores, first.shares) == ("a", "zero", 4 * GIB, 30, 1)
    assert (second.claim, second.pod, second.more_pods) == ("b", "one", ("two",))


def test_where_nobody_is_reserved_the_pods_that_refer_to_the_claim_are_named_unless_they_ended():
    claims = [holding("a", share("gpu-0"))]
    refers = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "a"}], "nodeName": "n1"}
    pods = [pod("here", **refers), pod("done", phase="Succeeded", **refers), pod("elsewhere", namespace="x", **refers)]
    (seen,) = overview(cluster(slice_of("n1", [card(0)]), claims=claims), claims, pods).cards
    assert [(tenant.pod, tenant.more_pods) for tenant in seen.tenants] == [("here", ())]


def test_who_has_all_of_a_card_and_who_only_looks_on():
    plain = {"request": "gpu", "driver": "a.example.com", "pool": "n1", "device": "dev-0"}
    claims = [holding("mine", plain), holding("watch", plain | {"adminAccess": True}, namespace="ops")]
    seen = overview(cluster(slice_of("n1", [whole(0)], driver="a.example.com"), claims=claims), claims, [])
    assert [(each.claim, each.whole, each.admin, each.shares) for each in seen.cards[0].tenants] == [
        ("mine", True, False, 1),
        ("watch", False, True, 0),
    ]
    assert seen.cards[0].exclusive
    assert [(each.namespace, each.claims, each.whole_cards) for each in seen.namespaces] == [("default", 1, 1)]


def test_faults_and_cards_out_of_service():
    inventory = cluster(slice_of("n1", [card(index) for index in range(4)]))
    inventory.taint_rule_changed(None, rule(names.XID_TAINT, "xid-79", "gpu-0", effect="NoExecute"))
    inventory.taint_rule_changed(None, rule(names.CORDON_TAINT, "", "gpu-1"))
    inventory.taint_rule_changed(None, rule("example.com/note", "x", "gpu-2", effect="None"))
    inventory.taint_rule_changed(None, rule(names.FENCE_TAINT, "", "gpu-3"))
    seen = overview(inventory, [], [])
    assert [(each.health, each.cordoned, each.free) for each in seen.cards] == [
        ("xid=xid-79", False, False),
        ("", True, False),
        ("", False, True),
        ("", False, True),
    ]
    assert seen.nodes[0].troubled_cards == 2


def test_nodes_sum_their_cards_and_one_that_is_gone_is_told():
    claims = [holding("a", share("gpu-0"))]
    slices = [slice_of("n1", [card(0), card(1)]), slice_of("gone", [card(0)]), slice_of("off", [card(0)])]
    inventory = cluster(*slices, claims=claims, nodes=("n1", "bare", node("off", unschedulable=True)))
    seen = overview(inventory, claims, [])
    assert [(each.node, each.there, each.ready, each.cordoned) for each in seen.nodes] == [
        ("gone", False, False, False),
        ("n1", True, True, False),
        ("off", True, True, True),
    ]
    n1 = seen.nodes[1]
    assert (n1.cards, n1.free_cards, n1.memory_used, n1.memory_total) == (2, 1, 4 * GIB, 32 * GIB)
    assert (n1.vendors, n1.products) == (("nvidia",), ("Tesla T4",))
    assert seen.nodes[2].troubled_cards == 0  # its node is out of service, not the card


def test_some_nodes_only():
    slices = [slice_of(name, [card(0)]) for name in ("n1", "n2")]
    claims = [holding(f"c-{name}", share("gpu-0", name)) for name in ("n1", "n2")]
    seen = overview(cluster(*slices, claims=claims, nodes=("n1", "n2")), claims, [], nodes={"n2"})
    assert [each.node for each in seen.cards] == ["n2"]
    assert [each.claims for each in seen.namespaces] == [1]
    assert seen.packing[0].cards == 2


def test_namespaces_by_vendor():
    claims = [
        holding("a", share("gpu-0"), share("gpu-1"), pods=["p"], namespace="one"),
        holding("b", share("gpu-0", memory="1Gi"), pods=["p", "q"], namespace="one"),
        holding("c", share("gpu-0", driver="enflame.hami.io"), namespace="one"),
        holding("d", share("gpu-1"), namespace="two"),
    ]
    slices = [slice_of("n1", [card(0), card(1)]), slice_of("n1", [card(0)], driver="enflame.hami.io")]
    found = overview(cluster(*slices, claims=claims), claims, []).namespaces
    assert [(each.namespace, each.vendor, each.pods, each.claims, each.cards) for each in found] == [
        ("one", "nvidia", 2, 2, 2),
        ("one", "enflame", 0, 1, 1),
        ("two", "nvidia", 0, 1, 1),
    ]
    assert found[0].memory == 9 * GIB


def test_devices_that_are_held_and_not_published_are_told():
    claims = [holding("a", share("gpu-7"), pods=["p"])]
    inventory = cluster(slice_of("n1", [card(0)]), claims=claims)
    inventory.slice_changed(None, slice_of("n2", [card(0)], count=3))
    seen = overview(inventory, claims, [])
    assert [(each.device, each.tenants[0].pod) for each in seen.unpublished] == [(f"{DRIVER}/n1/gpu-7", "p")]
    assert list(seen.problems) == [f"pool {DRIVER}/n2"]


def test_a_device_that_several_nodes_reach_is_of_no_node():
    seen = overview(cluster(slice_of("n1", [card(0)], driver="net.example.com", allNodes=True, pool="net")), [], [])
    assert [(each.node, each.free) for each in seen.cards] == [("", True)]
    assert seen.nodes == ()
    assert (seen.packing[0].nodes, seen.packing[0].free_cards) == (0, 1)


def test_json_has_every_field_and_reads_back():
    claims = [holding("a", share("gpu-0"))]
    seen = overview(cluster(slice_of("n1", [linked(0)]), claims=claims), claims, [])
    text = msgspec.json.encode(seen)
    assert msgspec.json.decode(text, type=Overview) == seen
    plain = msgspec.json.decode(text)
    assert plain["packing"][0]["freeIslands"] == {"2": 0, "4": 0, "8": 0}
    assert {"memoryTotal", "health", "cordoned", "tenants"} <= plain["cards"][0].keys()

"""A node that was taken over publishes slices that lie: about node, pool, generation and number of slices. Whatever it says,
in whatever order it is heard, the honest nodes read as if it said nothing.

Before, one slice in another node's pool took that node's cards out of the columns, and a forged generation displaced its
pool (the finding: pods placed on the attacker's node were charged to the honest node's cards).
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from controller.insight.doctor.hardware import slices as examine_slices
from controller.inventory.inventory import Inventory
from controller.inventory.model import DeviceId
from hami_dra.vendors.registry import OWN_DRIVERS
from tests.cards import DRIVER, card, claim, node, slice_of, whole
from tests.support import manifests
from tests.unit.insight.test_doctor import state

HONEST, EVIL = ("n1", "n2"), "evil"
DRIVERS = (DRIVER, "metax.hami.io")
ROLES = ("slots_total", "slots_used", "cores_total", "cores_used", "memory_total", "memory_used", "node")


def allocation(pool, driver=DRIVER):
    taken = {"memory": "2Gi", "cores": "10", "shares": "1"}
    result = {"request": "gpu", "driver": driver, "pool": pool, "device": "gpu-0"}
    return {"devices": {"results": [{**result, "shareID": "s", "consumedCapacity": taken}]}}


def honest():
    """(feed, object) of a cluster with two honest nodes, two drivers each; the first publishes two slices a node."""
    for name in (*HONEST, EVIL):
        yield "node", node(name)
    for name in HONEST:
        yield "slice", slice_of(name, [card(0), card(1)], name=f"{name}-a", count=2, generation=3)
        yield "slice", slice_of(name, [whole(2)], name=f"{name}-b", count=2, generation=3)
        yield "slice", slice_of(name, [card(0)], name=f"{name}-metax", driver="metax.hami.io")
        yield "claim", claim(f"on-{name}", allocation=allocation(name))


@st.composite
def lies(draw):
    """A slice, or None: it is withdrawn."""
    name = f"evil-{draw(st.integers(0, 3))}"
    if draw(st.integers(0, 5)) == 0:
        return name, None
    reach = draw(st.sampled_from([{"nodeName": EVIL}, {"nodeName": EVIL}, {"nodeName": EVIL}, {"allNodes": True}]))
    cards = st.sampled_from([card(0), card(0, memory="80Gi"), card(1), card(7), whole(2)])
    return name, slice_of(
        name=name,
        devices=draw(st.lists(cards, max_size=3, unique_by=lambda each: each["name"])),
        driver=draw(st.sampled_from(DRIVERS)),
        pool=draw(st.sampled_from([*HONEST, *HONEST, EVIL, "elsewhere"])),
        generation=draw(st.sampled_from([1, 2, 3, 4, 999_999, 2**63 - 1])),
        count=draw(st.sampled_from([1, 2, 3, 2**31 - 1])),
        **reach,
    )


def seen(inventory):
    """All that is read of honest nodes and of what is in their pools."""
    columns, usage = inventory.devices, inventory.usage
    cards = {}
    for row in np.flatnonzero(columns.active[: columns.size]).tolist():
        device = columns.device(row).id
        if device.pool in HONEST:
            owner = inventory.nodes.names[int(columns.node[row])]
            figures = [int(getattr(columns, role)[row]) for role in ROLES[:-1]]
            cards[device] = (owner, *figures, usage.shares(device), dict(usage.consumed(device)))
    nodes = {}
    for name in HONEST:
        row = inventory.nodes.index_of(name)
        pools = [
            (pool.driver, pool.name, pool.generation, pool.incomplete, [device.id for device in pool.devices])
            for pool in inventory.pools_on(name)
        ]
        nodes[name] = round(float(inventory.nodes.score[row]), 9), pools, len(inventory.rows_on(name))
    return cards, nodes


@given(
    st.lists(lies(), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_honest_nodes_read_as_without_the_liar(reported, dice, looked_at):
    truth = list(honest())
    without = Inventory()
    for kind, each in truth:
        getattr(without, f"{kind}_changed")(None, each)
    events = [*truth, *(("lie", each) for each in reported)]
    dice.shuffle(events)
    heard, published = Inventory(), {}
    for kind, each in events:
        if kind == "lie":
            name, lie = each
            if lie is not None or name in published:
                heard.slice_changed(published.pop(name, None), lie)
            if lie is not None:
                published[name] = lie
        else:
            getattr(heard, f"{kind}_changed")(None, each)
        if looked_at:
            for name in HONEST:
                heard.pools_on(name)
    assert seen(heard) == seen(without)
    blamed = {what for what in heard.problems if what.startswith("ResourceSlice ")}
    assert blamed == {
        f"ResourceSlice {name}" for name, lie in published.items() if lie.spec.node_name != lie.spec.pool.name
    }


def test_every_driver_of_ours_is_held_to_it_and_no_other():
    inventory = Inventory()
    inventory.node_changed(None, node(EVIL))
    for number, driver in enumerate([*sorted(OWN_DRIVERS), "net.example.com"]):
        forged = slice_of(EVIL, [card(0)], name=f"s{number}", driver=driver, pool="n1")
        inventory.slice_changed(None, forged)
    assert [pool.driver for pool in inventory.pools_on(EVIL)] == ["net.example.com"]
    assert len(inventory.problems) == len(OWN_DRIVERS)


def test_a_forged_slice_that_is_made_right_counts_again():
    inventory = Inventory()
    inventory.node_changed(None, node("n1"))
    forged, right = slice_of("n1", [card(0)], name="s", pool="n2"), slice_of("n1", [card(0)], name="s")
    inventory.slice_changed(None, forged)
    assert inventory.devices.row_of(DeviceId(DRIVER, "n2", "gpu-0")) == -1
    inventory.slice_changed(forged, right)
    assert inventory.problems == {}
    assert inventory.devices.row_of(DeviceId(DRIVER, "n1", "gpu-0")) >= 0


def test_doctor_names_slice_node_and_what_to_do():
    honest_one = slice_of("n2", [card(0)], name="honest")
    forged = slice_of(EVIL, [card(0)], name="forged", pool="n2", generation=999_999)
    (found,) = examine_slices(state(nodes=[node("n2"), node(EVIL)], slices=[honest_one, forged]))
    assert found.object == "ResourceSlice forged"
    assert f"of node {EVIL} and in pool n2" in found.problem
    assert f"node {EVIL}" in found.fix
    assert "kubectl delete resourceslice forged" in found.fix


def test_the_finding_as_simulated():
    """Eight pods on two nodes of four cards: four on each, and none on the attacker's node."""
    (squatted,) = manifests.slices(EVIL, "g4dn.12xlarge")
    squatted["spec"]["pool"] = {"name": "n2", "generation": 999_999, "resourceSliceCount": 1}
    whole_card = {"name": "gpu", "exactly": {"deviceClassName": "vgpu"}}
    report = manifests.simulated(
        manifests.device_class(),
        manifests.template("whole", whole_card),
        *(manifests.node(name) for name in (*HONEST, EVIL)),
        *(manifests.slices(name, "g4dn.12xlarge") for name in HONEST),
        squatted,
        *(manifests.pod(f"p{number}", "template:whole") for number in range(8)),
    )
    assert sorted(placement["node"] for placement in report.placements) == ["n1"] * 4 + ["n2"] * 4

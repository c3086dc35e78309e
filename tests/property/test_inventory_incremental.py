"""However the objects came in, the columns are those of an inventory that saw only the end."""

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.inventory.inventory import Inventory
from controller.inventory.model import DeviceId
from tests.cards import DRIVER, card, claim, node, pod, slice_of, whole

NODES = ["n1", "n2", "n3"]
EXPRESSION = 'device.attributes["hami.io"].?productName.orValue("") == "Tesla T4"'
SPREAD = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "a"}},
        }
    ]
}


def allocation(node_name, index, memory):
    result = {"request": "gpu", "driver": DRIVER, "pool": node_name}
    if index < 2:
        consumed = {"memory": str(memory), "cores": "10", "shares": "1"}
        return {
            "devices": {"results": [{**result, "device": f"gpu-{index}", "shareID": "s", "consumedCapacity": consumed}]}
        }
    return {"devices": {"results": [{**result, "device": f"dev-{index}"}]}}


names = st.sampled_from(NODES)
nodes = st.builds(
    lambda name, zone, cordon, cpu: (
        "node",
        name,
        node(name, labels=zone, unschedulable=cordon, allocatable={"cpu": cpu, "pods": "9"}),
    ),
    names,
    st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}]),
    st.booleans(),
    st.sampled_from(["1", "4"]),
)
devices = st.lists(
    st.sampled_from([card(0), card(1), card(0, memory="8Gi", product="A10G"), whole(2), whole(3)]),
    max_size=4,
    unique_by=lambda each: each["name"],
)
slices = st.builds(
    lambda name, which, content, generation, count: (
        "slice",
        f"{name}-{which}",
        slice_of(name, content, name=f"{name}-{which}", generation=generation, count=count),
    ),
    names,
    st.integers(0, 1),
    devices,
    st.integers(1, 2),
    st.integers(1, 2),
)
claims = st.builds(
    lambda number, name, index, memory, held: (
        "claim",
        f"default/c{number}",
        claim(f"c{number}", allocation=allocation(name, index, memory) if held else None),
    ),
    st.integers(0, 3),
    names,
    st.integers(0, 3),
    st.integers(1, 4).map(lambda gib: gib << 30),
    st.booleans(),
)
pods = st.builds(
    lambda number, name, bound, phase, app: (
        "pod",
        f"default/p{number}",
        pod(
            f"p{number}",
            labels={"app": app},
            phase=phase,
            containers=[{"name": "x", "resources": {"requests": {"cpu": "500m"}}}],
            **({"nodeName": name} if bound else {}),
        ),
    ),
    st.integers(0, 3),
    names,
    st.booleans(),
    st.sampled_from(["", "Running", "Succeeded"]),
    st.sampled_from(["a", "b"]),
)
puts = st.one_of(nodes, slices, claims, pods)
steps = st.lists(
    st.one_of(
        puts,
        st.tuples(st.just("delete"), st.integers(0, 20)),
        st.tuples(st.just("repeat"), st.integers(0, 20)),
        st.tuples(st.just("assume"), st.integers(0, 3), names, st.integers(0, 3)),
        st.tuples(st.just("forget"), st.integers(0, 3)),
    ),
    max_size=30,
)


def feed(inventory, kind, old, new):
    getattr(inventory, f"{kind}_changed")(old, new)


def picture(inventory):
    """Everything that is read, without row numbers."""
    columns, rows = inventory.devices, inventory.nodes
    names_ = [*rows.names, ""]
    cards = {
        str(columns.device(row).id): (
            names_[columns.node[row]] if columns.node[row] >= 0 else int(columns.node[row]),
            bool(columns.exclusive[row]),
            *(int(getattr(columns, role)[row]) for role in ROLES),
            bool(inventory.verdicts.matching(EXPRESSION)[row]),
        )
        for row in range(columns.size)
        if columns.active[row]
    }
    wanting = pod(
        "wanting", labels={"app": "a"}, containers=[{"name": "x", "resources": {"requests": {"cpu": "1"}}}], **SPREAD
    )
    fit = inventory.node_fit(wanting)
    return {
        "cards": cards,
        "nodes": {
            rows.names[row]: (
                round(float(rows.score[row]), 9),
                int(rows.used("cpu")[row]),
                int(fit.codes[row]),
                [(pool.name, pool.generation, pool.incomplete, bool(pool.invalid), [d.id for d in pool.devices])
                 for pool in inventory.pools_on(rows.names[row])],
            )
            for row in range(rows.size)
            if rows.present[row]
        },
        "order": [rows.names[row] for row in np.argsort(rows.rank) if rows.present[row]],
        "problems": inventory.problems,
        "troubled": inventory.troubled_nodes(),
    }  # fmt: skip


ROLES = ("slots_total", "slots_used", "cores_total", "cores_used", "memory_total", "memory_used", "index")


@settings(max_examples=150, deadline=None)
@given(steps)
def test_incremental_equals_fresh(history):
    live = Inventory()
    objects = {}
    assumed = {}
    for step in history:
        if step[0] == "delete" and objects:
            key = sorted(objects)[step[1] % len(objects)]
            feed(live, key[0], objects.pop(key), None)
        elif step[0] == "repeat" and objects:
            key = sorted(objects)[step[1] % len(objects)]
            feed(live, key[0], objects[key], objects[key])
        elif step[0] == "assume":
            assumed[f"claim-c{step[1]}"] = allocation(step[2], step[3], 1 << 30)
            live.assume(f"claim-c{step[1]}", assumed[f"claim-c{step[1]}"])
        elif step[0] == "forget":
            assumed.pop(f"claim-c{step[1]}", None)
            live.forget(f"claim-c{step[1]}")
        elif step[0] in {"node", "slice", "claim", "pod"}:
            kind, name, new = step
            feed(live, kind, objects.get((kind, name)), new)
            objects[kind, name] = new
        picture(live)  # fills the caches that must be mended
    fresh = Inventory()
    for (kind, _), found in sorted(objects.items(), key=lambda entry: entry[0]):
        feed(fresh, kind, None, found)
    for uid, what in assumed.items():
        fresh.assume(uid, what)
    assert picture(live) == picture(fresh)


def test_a_device_that_comes_back_is_as_used_as_before():
    inventory = Inventory()
    inventory.node_changed(None, node())
    published = slice_of("n1", [card(0)])
    inventory.slice_changed(None, published)
    inventory.claim_changed(None, claim(allocation=allocation("n1", 0, 4 << 30)))
    inventory.slice_changed(published, None)
    assert not inventory.devices.active.any()
    inventory.slice_changed(None, published)
    row = inventory.devices.row_of(DeviceId(DRIVER, "n1", "gpu-0"))
    assert inventory.devices.memory_used[row] == 4 << 30


def test_an_assumption_wins_over_what_was_observed_before_it():
    inventory = Inventory()
    inventory.node_changed(None, node())
    inventory.slice_changed(None, slice_of("n1", [card(0), card(1)]))
    rows = [inventory.devices.row_of(DeviceId(DRIVER, "n1", f"gpu-{index}")) for index in (0, 1)]
    open_claim = claim()
    inventory.assume(open_claim.metadata.uid, allocation("n1", 0, 1 << 30))
    inventory.claim_changed(None, open_claim)  # the watch is behind
    assert list(inventory.devices.memory_used[rows]) == [1 << 30, 0]
    inventory.claim_changed(open_claim, claim(allocation=allocation("n1", 0, 1 << 30)))
    inventory.forget(open_claim.metadata.uid)
    assert list(inventory.devices.memory_used[rows]) == [1 << 30, 0]


def test_columns_grow_beyond_their_first_size():
    inventory = Inventory()
    for number in range(200):
        inventory.node_changed(None, node(f"n{number:03}"))
        inventory.slice_changed(None, slice_of(f"n{number:03}", [card(0)]))
    assert inventory.nodes.count == 200
    assert int(inventory.devices.active.sum()) == 200
    assert np.array_equal(np.sort(inventory.nodes.rank), np.arange(200))
    assert msgspec.to_builtins(inventory.nodes.node(7).metadata.name) == "n007"

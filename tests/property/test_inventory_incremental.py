"""However the objects came in, the inventory reads like one that saw only the end."""

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.inventory.inventory import Inventory
from hami_dra.api.resource import DeviceTaintRule
from tests.cards import DRIVER, card, claim, device_class, node, pod, slice_of, whole
from tests.support.assumed import assume

NODES = ["n1", "n2"]
EXPRESSION = 'device.attributes["hami.io"].?productName.orValue("") == "Tesla T4"'
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "a"}},
}
RARELY = st.sampled_from([False, False, False, True])
ROLES = ("slots_total", "slots_used", "cores_total", "cores_used", "memory_total", "memory_used", "index")


def container(cpu):
    return {"name": "x", "resources": {"requests": {"cpu": cpu}}}


def allocation(pool, index, gib):
    """Of a shared card (0 and 1) or of a whole device (2 and 3)."""
    result = {
        "request": "gpu",
        "driver": DRIVER,
        "pool": pool,
        "device": f"gpu-{index}" if index < 2 else f"dev-{index}",
    }
    if index < 2:
        result |= {"shareID": "s", "consumedCapacity": {"memory": f"{gib}Gi", "cores": "10", "shares": "1"}}
    return {"devices": {"results": [result]}}


def rule(name, selector):
    taint = {"key": "broken", "effect": "NoSchedule"}
    spec = {"taint": taint} if selector is None else {"taint": taint, "deviceSelector": selector}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, DeviceTaintRule)


@st.composite
def node_puts(draw):
    name = draw(st.sampled_from(NODES))
    new = node(
        name,
        labels=draw(st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}])),
        unschedulable=draw(RARELY),
        allocatable={"cpu": draw(st.sampled_from(["1", "4"])), "pods": "9"},
    )
    return "node", name, new


@st.composite
def slice_puts(draw):
    """Two slices a node, usually in the node's pool, sometimes in one that several nodes reach."""
    home, which = draw(st.sampled_from(NODES)), draw(st.integers(0, 1))
    name = f"{home}-{which}"
    cards = st.sampled_from([card(0), card(1), card(0, memory="8Gi", product="A10G"), whole(2), whole(3)])
    content = draw(st.lists(cards, max_size=4, unique_by=lambda each: each["name"]))
    reach = draw(st.sampled_from([{}, {"allNodes": True}, {"nodeSelector": zone("a")}])) if draw(RARELY) else {}
    pool = draw(st.sampled_from([home, home, "wide"]))
    new = slice_of(
        home,
        content,
        name=name,
        pool=pool,
        generation=draw(st.integers(1, 2)),
        count=draw(st.integers(1, 2)),
        **reach,
    )
    return "slice", name, new


def zone(value):
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]}]}


@st.composite
def claim_puts(draw):
    """Four names; sometimes a claim is gone and another has its name, and nobody said so."""
    name, reborn = f"c{draw(st.integers(0, 1))}", draw(RARELY)
    held = draw(st.none() | st.tuples(st.sampled_from([*NODES, "wide"]), st.integers(0, 3), st.integers(1, 4)))
    uid = f"claim-{name}-again" if reborn else f"claim-{name}"
    return "claim", name, claim(name, allocation=allocation(*held) if held else None, uid=uid)


@st.composite
def pod_puts(draw):
    name, reborn = f"p{draw(st.integers(0, 1))}", draw(RARELY)
    spec = {"nodeName": draw(st.sampled_from(NODES))} if draw(st.booleans()) else {}
    new = pod(
        name,
        uid=f"pod-{name}-again" if reborn else f"pod-{name}",
        labels={"app": draw(st.sampled_from(["a", "b"]))},
        phase=draw(st.sampled_from(["", "", "Running", "Succeeded"])),
        containers=[container(draw(st.sampled_from(["500m", "1"])))],
        **spec,
    )
    if draw(RARELY):
        meta = msgspec.structs.replace(new.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        new = msgspec.structs.replace(new, metadata=meta)
    return "pod", name, new


rule_puts = st.builds(
    lambda name, selector: ("taint_rule", name, rule(name, selector)),
    st.sampled_from(["r1", "r2"]),
    st.sampled_from([None, {}, {"driver": DRIVER}, {"pool": "n1"}, {"device": "gpu-0"}, {"driver": "other"}]),
)
class_puts = st.builds(
    lambda extended: ("class", "plain", msgspec.structs.replace(device_class("plain"), spec=class_spec(extended))),
    st.sampled_from([None, "example.com/gpu"]),
)


def class_spec(extended):
    return msgspec.structs.replace(device_class("plain").spec, extended_resource_name=extended)


steps = st.lists(
    st.one_of(
        node_puts(),
        slice_puts(),
        slice_puts(),
        claim_puts(),
        pod_puts(),
        rule_puts,
        class_puts,
        st.tuples(st.just("delete"), st.integers(0, 30)),
        st.tuples(st.just("repeat"), st.integers(0, 30)),
        st.tuples(st.just("repeat deletion"), st.integers(0, 30)),
        st.tuples(st.just("assume"), st.integers(0, 1), st.sampled_from(NODES), st.integers(0, 3), st.integers(1, 4)),
        st.tuples(st.just("forget"), st.integers(0, 1)),
        st.tuples(st.just("assume pod"), st.integers(0, 1), st.sampled_from(NODES)),
        st.tuples(st.just("forget pod"), st.integers(0, 1)),
    ),
    min_size=5,
    max_size=40,
)


class Story:
    """A live inventory, and what the world is like."""

    def __init__(self):
        self.live = Inventory()
        self.objects = {}
        self.deleted = []
        self.assumed = {}
        self.assumed_pods = {}

    def tell(self, step):  # noqa: C901 (one case for each thing that can happen)
        match step:
            case ("delete", number) if self.objects:
                key = sorted(self.objects)[number % len(self.objects)]
                self.deleted.append((key, self.objects.pop(key)))
                feed(self.live, key[0], self.deleted[-1][1], None)
            case ("repeat deletion", number) if self.deleted:
                key, old = self.deleted[number % len(self.deleted)]
                # a name can only be heard to be free again where uids tell one bearer from the next
                current = self.objects.get(key)
                if current is None or (key[0] in {"claim", "pod"} and current.metadata.uid != old.metadata.uid):
                    feed(self.live, key[0], old, None)
            case ("repeat", number) if self.objects:
                key = sorted(self.objects)[number % len(self.objects)]
                feed(self.live, key[0], self.objects[key], self.objects[key])
                feed(self.live, key[0], None, self.objects[key])
            case ("assume", number, home, index, gib):
                self.assumed[f"claim-c{number}"] = allocation(home, index, gib)
                assume(self.live, f"claim-c{number}", allocation(home, index, gib))
            case ("forget", number):
                self.assumed.pop(f"claim-c{number}", None)
                self.live.forget(f"claim-c{number}")
            case ("assume pod", number, home):
                current = self.objects.get(("pod", f"p{number}"))
                if current is not None and waits(current):
                    self.assumed_pods[current.metadata.uid] = current, home
                    self.live.assume_pod(current, home)
            case ("forget pod", number):
                uid = f"pod-p{number}"
                self.assumed_pods.pop(uid, None)
                self.live.forget_pod(uid)
            case (("node" | "slice" | "claim" | "pod" | "taint_rule" | "class") as kind, name, new):
                feed(self.live, kind, self.objects.get((kind, name)), new)
                self.objects[kind, name] = new
        self._end_assumptions()

    def _end_assumptions(self):
        """A pod that is bound, finished, gone or another one now is not assumed any more."""
        waiting = {each.metadata.uid for (kind, _), each in self.objects.items() if kind == "pod" and waits(each)}
        for uid in self.assumed_pods.keys() - waiting:
            del self.assumed_pods[uid]

    def fresh(self):
        made = Inventory()
        for (kind, _), each in sorted(self.objects.items(), key=lambda entry: entry[0]):
            feed(made, kind, None, each)
        for uid, what in self.assumed.items():
            assume(made, uid, what)
        for each, home in self.assumed_pods.values():
            made.assume_pod(each, home)
        return made


def waits(each):
    return not each.spec.node_name and each.status.phase != "Succeeded"


def feed(inventory, kind, old, new):
    getattr(inventory, f"{kind}_changed")(old, new)


def picture(inventory):
    """Everything that is read, without row numbers."""
    rows = inventory.nodes
    named = {row: rows.names[row] for row in range(rows.size) if rows.present[row]}
    return {
        "cards": dict(sorted(cards(inventory, named))),
        "nodes": {name: picture_of_node(inventory, row) for row, name in sorted(named.items())},
        "order": [named[row] for row in np.argsort(rows.rank, kind="stable").tolist() if row in named],
        "fit": {name: fits(inventory, row) for row, name in named.items()},
        "count": rows.count,
        "problems": inventory.problems,
        "troubled": inventory.nodes_with_unusable_pools(),
        "drivers": inventory.verdicts.drivers((EXPRESSION,)),
    }


def cards(inventory, named):
    columns = inventory.devices
    for row in np.flatnonzero(columns.active[: columns.size]).tolist():
        device = columns.device(row)
        sample = columns.taint_samples[columns.taint_kind[row]]
        owner = int(columns.node[row])
        usage = inventory.usage
        yield (
            str(device.id),
            (
                named.get(owner, owner),
                device.row == row == columns.row_of(device.id),
                bool(columns.exclusive[row]),
                usage.in_use(device.id),
                usage.shares(device.id),
                dict(usage.consumed(device.id)),
                *(int(getattr(columns, role)[row]) for role in ROLES),
                columns.kind_samples[columns.kind[row]].capacity_kind == device.capacity_kind,
                [] if sample is None else [taint.key for taint in sample.taints],
                [taint.key for taint in device.taints],
                bool(inventory.verdicts.matching(EXPRESSION)[row]),
            ),
        )


def picture_of_node(inventory, row):
    rows = inventory.nodes
    return (
        round(float(rows.score[row]), 9),
        int(rows.used("cpu")[row]),
        int(rows.used("pods")[row]),
        int(rows.offers("cpu")[row]),
        [
            (
                pool.driver,
                pool.name,
                pool.generation,
                pool.incomplete,
                bool(pool.invalid),
                [(device.id, in_row(inventory, device)) for device in pool.devices],
            )
            for pool in inventory.pools_on(rows.names[row])
        ],
    )


def in_row(inventory, device):
    """What can be allocated has a row: scores are read from there."""
    return device.row >= 0 and device.row == inventory.devices.row_of(device.id)


WANTING = (
    pod("even", labels={"app": "a"}, tolerations=[{"operator": "Exists"}], topologySpreadConstraints=[SPREAD]),
    pod("wanting", containers=[container("1")]),
    pod("picky", containers=[{"name": "x", "resources": {"requests": {"example.com/gpu": "1"}}}], nodeSelector={"zone": "a"}),
    pod("hardy", tolerations=[{"operator": "Exists"}]),
)  # fmt: skip


def fits(inventory, row):
    own = [pod(f"p{number}", containers=[container("3500m")]) for number in range(2)]
    return [int(inventory.rules.node_fit(each).codes[row]) for each in (*WANTING, *own)]


BEGINNING = [
    ("node", "n1", node("n1", labels={"zone": "a"}, allocatable={"cpu": "4", "pods": "9"})),
    ("node", "n2", node("n2", labels={"zone": "b"}, allocatable={"cpu": "4", "pods": "9"})),
    ("slice", "n1-0", slice_of("n1", [card(0), card(1)], name="n1-0")),
    ("slice", "n2-0", slice_of("n2", [card(0), whole(2)], name="n2-0")),
    ("claim", "c0", claim("c0", allocation=allocation("n1", 0, 2))),
    ("pod", "p0", pod("p0", labels={"app": "a"}, containers=[container("500m")], nodeName="n1")),
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([[], BEGINNING]), steps, st.booleans())
def test_incremental_equals_fresh(beginning, history, looked_at):
    story = Story()
    for step in (*beginning, *history):
        story.tell(step)
        if looked_at:
            picture(story.live)  # fills the caches that must be mended
    now = picture(story.live)
    assert now == picture(story.fresh())
    usable = [pool for _, _, _, _, pools in now["nodes"].values() for pool in pools if not (pool[3] or pool[4])]
    assert all(there for pool in usable for _, there in pool[5])

"""Ports, spread, affinity and anti-affinity between pods, kept by difference: as if computed from scratch."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.inventory.inventory import Inventory
from controller.reasons.catalogue import CODES
from hami_dra.api.core import Namespace
from tests.cards import node, pod

NODES, NAMESPACES = ["n0", "n1", "n2"], ["default", "other"]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LABELS = st.sampled_from([{}, {"app": "a"}, {"app": "b"}, {"app": "a", "tier": "x"}])
SELECTORS = st.sampled_from(
    [
        {},
        {"matchLabels": {"app": "a"}},
        {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]},
        {"matchExpressions": [{"key": "tier", "operator": "Exists"}]},
    ]
)
KEYS = st.sampled_from(["zone", "host"])


@st.composite
def terms(draw):
    found = {"topologyKey": draw(KEYS), "labelSelector": draw(SELECTORS)}
    scope = draw(st.sampled_from(["own", "named", "selected", "all"]))
    if scope == "named":
        found["namespaces"] = ["other"]
    elif scope != "own":
        found["namespaceSelector"] = {} if scope == "all" else {"matchLabels": {"team": "x"}}
    return found


@st.composite
def specs(draw):
    spec = {}
    near, apart = draw(st.lists(terms(), max_size=1)), draw(st.lists(terms(), max_size=2))
    if near or apart:
        spec["affinity"] = {"podAffinity": {REQUIRED: near}, "podAntiAffinity": {REQUIRED: apart}}
    if draw(st.booleans()):
        port = {"hostPort": draw(st.sampled_from([80, 81])), "hostIP": draw(st.sampled_from(["", "10.0.0.1"]))}
        spec["containers"] = [{"name": "main", "ports": [port]}]
    if draw(st.sampled_from([False, False, True])):
        constraint = {"maxSkew": 1, "topologyKey": draw(KEYS), "whenUnsatisfiable": "DoNotSchedule"}
        spec["topologySpreadConstraints"] = [{**constraint, "labelSelector": draw(SELECTORS)}]
    return spec


@st.composite
def pods(draw, name):
    return pod(name, namespace=draw(st.sampled_from(NAMESPACES)), labels=draw(LABELS), **draw(specs()))


@st.composite
def steps(draw):
    kind = draw(st.sampled_from(["node", "pod", "pod", "pod", "assume", "namespace"]))
    gone = draw(st.sampled_from([False, False, False, True]))
    if kind == "node":
        name = draw(st.sampled_from(NODES))
        labels = {"host": name, **draw(st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}]))}
        return kind, name, None if gone else node(name, labels=labels)
    if kind == "namespace":
        name = draw(st.sampled_from(NAMESPACES))
        labels = draw(st.sampled_from([{}, {"team": "x"}]))
        return kind, name, None if gone else msgspec.convert({"metadata": {"name": name, "labels": labels}}, Namespace)
    name = f"p{draw(st.integers(0, 4))}"
    found = draw(pods(name))
    where = draw(st.sampled_from(NODES))
    if kind == "pod":
        found = msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, node_name=where))
        if draw(st.sampled_from([False, False, True])):
            meta = msgspec.structs.replace(found.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
            found = msgspec.structs.replace(found, metadata=meta)
    return kind, name, None if gone else (found, where)


class Life:
    """An inventory that hears every step, and what is there after each."""

    def __init__(self):
        self.inventory = Inventory()
        self.there = {"node": {}, "namespace": {}, "pod": {}}
        self.assumed = {}

    def step(self, kind, name, new):
        if kind in {"node", "namespace"}:
            old = self.there[kind].pop(name, None)
            if new is not None:
                self.there[kind][name] = new
            if old is not None or new is not None:
                getattr(self.inventory, f"{kind}_changed")(old, new)
            return
        bound = self.there["pod"]
        if kind == "assume" and new is not None and name not in bound:
            self.assumed[name] = new
            self.inventory.assume_pod(*new)
        elif kind == "assume":
            self.assumed.pop(name, None)
            self.inventory.forget_pod(f"pod-{name}")
        else:
            old = bound.pop(name, None)
            if old is not None and (new is None or old.metadata.namespace != new[0].metadata.namespace):
                self.inventory.pod_changed(old, None)
                old = None
            if new is not None:
                bound[name] = new[0]
                self.assumed.pop(name, None)
                self.inventory.pod_changed(old, new[0])

    def afresh(self):
        inventory = Inventory()
        for kind in ("namespace", "pod", "node"):
            for each in self.there[kind].values():
                getattr(inventory, f"{kind}_changed")(None, each)
        for each in self.assumed.values():
            inventory.assume_pod(*each)
        return inventory


def codes(inventory, fit):
    nodes = inventory.nodes
    return {nodes.names[row]: CODES[fit.codes[row]] for row in range(nodes.size) if nodes.present[row]}


@settings(max_examples=150, deadline=None)
@given(st.lists(steps(), min_size=3, max_size=25), st.lists(pods("wanting"), min_size=1, max_size=3), st.data())
def test_verdicts_are_those_from_scratch(life, wanted, data):
    played = Life()
    seen = {}
    for step in life:
        played.step(*step)
        for number, each in enumerate(wanted):
            if not data.draw(st.booleans()):
                continue
            fresh = played.afresh()
            expected = codes(fresh, fresh.rules.node_fit(each))
            assert codes(played.inventory, played.inventory.rules.node_fit(each)) == expected
            shape = played.inventory.rules.shape_fit(each)
            assert shape is not None
            assert codes(played.inventory, shape) == expected
            _rows_that_changed_are_logged(seen, number, shape)
    placed = played.there["pod"]
    for each in placed.values():  # a pod does not stand in its own way
        fresh = played.afresh()
        fresh.pod_changed(each, None)
        expected = codes(fresh, fresh.rules.node_fit(each))
        assert codes(played.inventory, played.inventory.rules.node_fit(each)) == expected


def _rows_that_changed_are_logged(seen, number, shape):
    before = seen.get(number)
    if before is not None and before[0] is shape:
        _, version, earlier = before
        logged = shape.changes.entries(version)
        if logged is not None:
            assert len(earlier) == len(shape.codes)
            changed = {row for row in range(len(earlier)) if earlier[row] != shape.codes[row]}
            assert changed <= set(logged)
    seen[number] = shape, shape.changes.version, shape.codes.copy()

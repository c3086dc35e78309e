"""Node and cards of one MetaX request on random clusters, through simulate, against a slow oracle of the published rules."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.vendors.metax.publish import MetaxPublishing
from tests.support.manifests import node, pod, simulated, slices

CLASSES = MetaxPublishing().device_classes()
PRODUCT = slices("n", "c500-8")[0]
KINDS = {
    "whole": {"metax-tech.com/gpu": 0},
    "exclusive": {"metax-tech.com/sgpu": 0, "metax-tech.com/vmemory": 8},
    "shared": {"metax-tech.com/sgpu": 0, "metax-tech.com/vcore": 30, "metax-tech.com/vmemory": 8},
}


@st.composite
def nodes(draw):
    """(zone of each card, which cards others have)"""
    size = draw(st.integers(1, 8))
    zones = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    return zones, draw(st.sets(st.integers(0, size - 1)))


def points(zones, cards):
    return sum(10 for a, b in combinations(cards, 2) if zones[a] == zones[b] > 0)


def choice(zones, free, count):
    """The cards that the decision tree gives."""
    groups = sorted(([card for card in free if zones[card] == number] for number in sorted(set(zones) - {0})), key=len)
    for group in groups:
        if len(group) >= count:
            return group[:count]
    in_order = [card for group in groups for card in group] + [card for card in free if not zones[card]]
    return sorted(in_order[:count])


def first_key(kind, policy, zones, free, chosen):
    allocated = points(zones, chosen)
    loss = points(zones, free) - allocated - points(zones, [card for card in free if card not in chosen])
    if kind == "exclusive":
        return (10 * allocated - loss,)
    if kind == "whole" and policy == "binpack":
        return (-loss, allocated)
    return (allocated,)


def published(name, zones):
    devices = []
    for number, zone in enumerate(zones):
        device = dict(PRODUCT["spec"]["devices"][number])
        attributes = {"hami.io/index": {"int": number}, "hami.io/uuid": {"string": f"{name}-{number}"}}
        device["attributes"] = attributes | ({"hami.io/linkGroup": {"int": zone}} if zone else {})
        devices.append(device)
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "metax.hami.io", "nodeName": name, "pool": pool, "devices": devices}
    return {"apiVersion": PRODUCT["apiVersion"], "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def objects(found):
    raws = list(CLASSES)
    for number, (zones, busy) in enumerate(found):
        name = f"n{number}"
        raws += [node(name, labels={"name": name}), published(name, zones)]
        if busy:
            uuids = ",".join(f"{name}-{card}" for card in sorted(busy))
            annotations = {"metax-tech.com/use-gpuuuid": uuids}
            limits = {"metax-tech.com/gpu": len(busy)}
            raws.append(pod(f"busy-{name}", limits=limits, annotations=annotations, nodeSelector={"name": name}))
    return raws


@settings(max_examples=80, deadline=None)
@given(
    found=st.lists(nodes(), min_size=1, max_size=3),
    count=st.integers(2, 5),
    kind=st.sampled_from(sorted(KINDS)),
    policy=st.sampled_from(["binpack", "spread"]),
)
def test_the_best_node_and_its_cards(found, count, kind, policy):
    limits = {name: amount or count for name, amount in KINDS[kind].items()}
    wanted = pod("p", limits=limits, annotations={"hami.io/node-scheduler-policy": policy})
    report = simulated(objects(found), wanted)
    ranked = []
    for number, (zones, busy) in enumerate(found):
        free = [card for card in range(len(zones)) if card not in busy]
        if len(free) >= count:
            chosen = choice(zones, free, count)
            full = len(busy) / len(zones)
            key = first_key(kind, policy, zones, free, chosen)
            ranked.append(((*(-part for part in key), full if policy == "spread" else -full, number), chosen))
    if not ranked:
        assert report.unplaced[-1]["pod"] == "default/p"
        return
    (*_, best), chosen = min(ranked)
    entry = next(entry for entry in report.placements if entry["pod"] == "default/p")
    results = entry["claims"][0]["allocation"]["devices"]["results"]
    assert (entry["node"], [result["device"] for result in results]) == (f"n{best}", [f"gpu-{card}" for card in chosen])

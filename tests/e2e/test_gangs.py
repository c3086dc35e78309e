"""Gangs on a real control plane: PodGroups where they are served, labels where not."""

from collections import Counter

import pytest

from hack.controlplane.variants import GANG_ALPHAS, GANGS, GANGS_1_36
from tests.e2e.gang_watch import GangWatcher
from tests.e2e.objects import cpu, device_class, part, pod, request, template
from tests.support.gang_objects import (
    REQUIRED_TOPOLOGY,
    annotated,
    in_labelled_group,
    in_pod_group,
    named,
    pod_group,
)

DGX = "dgx-h100"
NVL72 = "gb200-nvl72"
CLIQUE = "nvidia.com/gpu.clique"
everywhere = pytest.mark.kubernetes("1.37.1", GANGS, "1.36.4", GANGS_1_36)


@pytest.fixture
def gang(request, lab):
    """`gang(name, *members, least=..., topology=...)` creates a group and its pods: all there are, or `least`, run at once."""
    with_pod_groups = request.node.callspec.params["control_plane"] in (GANGS, GANG_ALPHAS, GANGS_1_36)

    def make(name, *members, least=None, topology=""):
        least = least or len(members)
        if with_pod_groups:
            lab.create(pod_group(name, least, version=lab.plane.version, topology_key=topology))
            members = [in_pod_group(each, name) for each in members]
        else:
            members = [in_labelled_group(each, name, least) for each in members]
            if topology:
                members = [annotated(each, {REQUIRED_TOPOLOGY: topology}) for each in members]
        lab.create(*members)
        return [each["metadata"]["name"] for each in members]

    return make


def like(one, gang, count):
    return named(one, *(f"{gang}-{index}" for index in range(count)))


def whole_cards(count=1):
    return request(device_class="nvidia-gpu.hami.io", count=count)


def bound(lab):
    return {each["metadata"]["name"]: each["spec"]["nodeName"] for each in lab.pods() if each["spec"].get("nodeName")}


@everywhere
def test_of_two_gangs_that_do_not_fit_together_one_runs_and_the_other_holds_nothing(lab, gang):
    lab.machines(DGX, "n0")
    lab.create(template("card", whole_cards()))
    with GangWatcher(lab.api, lab.namespace) as watcher:
        first = gang("first", *like(pod(templates=["card"]), "first", 5))
        lab.wait_running(names=first)
        second = gang("second", *like(pod(templates=["card"]), "second", 5))
        lab.hami.wait_for("an event about the second", lambda: any(lab.events(each) for each in second))
        watcher.catch_up()
        assert watcher.most("second") == 0
        lab.delete_pod("first-0")
        for each in first[1:]:
            lab.delete_pod(each)
        lab.wait_running(names=second)
    assert watcher.problems == []
    assert watcher.most("first") == watcher.most("second") == 5


@pytest.mark.kubernetes("1.37.1", GANGS)
def test_members_that_ask_for_different_things(lab, gang):
    lab.machines(DGX, "n0", "n1", "n2")
    lab.create(template("one", whole_cards()), template("eight", whole_cards(8)))
    workers = like(pod(templates=["eight"]), "train-worker", 2)
    lab.wait_running(names=gang("train", *named(pod(templates=["one"]), "train-leader"), *workers))
    assert sorted(len(each.devices) for each in lab.placements()) == [1, 8, 8]


@pytest.mark.kubernetes("1.37.1", GANGS)
def test_a_gang_of_shared_cards_fits_by_memory_or_not_at_all(lab, gang):
    """Three of 7,500 MiB fit on an A10G: 12 on four. CPU is the other axis: two pods a core."""
    lab.machines("g5.12xlarge", "n0", allocatable={"cpu": "16"})
    lab.create(template("part", part("7500Mi")))
    with GangWatcher(lab.api, lab.namespace) as watcher:
        gang("many", *like(pod(templates=["part"]), "many", 13))
        gang("large", *like(pod(templates=["part"], resources=cpu("3")), "large", 6))
        lab.wait_running(names=gang("fits", *like(pod(templates=["part"]), "fits", 12)))
    assert lab.overcommitted() == watcher.problems == []
    assert watcher.most("many") == watcher.most("large") == 0


@pytest.mark.kubernetes("1.37.1", GANG_ALPHAS)
def test_a_gang_of_sixteen_nodes_goes_into_the_tightest_clique(lab, gang):
    """Four cliques of 18 nodes: two have 9 free, one has 17, one all."""
    names = lab.fleet({"machine": NVL72, "count": 72, "name": "nvl-{index:02}"})
    lab.create(template("node", whole_cards(4)))
    busy = [*names[0:9], *names[18:27], names[36]]
    for each in busy:
        lab.create(pod(f"busy-{each}", templates=["node"], nodeSelector={"kubernetes.io/hostname": each}))
    lab.wait_running(len(busy))

    def cliques(members):
        nodes = {each["metadata"]["name"]: each["metadata"]["labels"][CLIQUE] for each in lab.api.list("/api/v1/nodes")}
        return Counter(nodes[node] for name, node in bound(lab).items() if name in members)

    first = gang("first", *like(pod(templates=["node"]), "first", 16), topology=CLIQUE)
    lab.wait_running(names=first)
    assert list(cliques(first).values()) == [16]
    assert {node for name, node in bound(lab).items() if name in first} <= set(names[37:54])
    second = gang("second", *like(pod(templates=["node"]), "second", 10), topology=CLIQUE)
    lab.wait_running(names=second)
    assert {node for name, node in bound(lab).items() if name in second} <= set(names[54:])

    # 28 nodes are free, but no clique has more than 9 of them
    third = gang("third", *like(pod(templates=["node"]), "third", 10), topology=CLIQUE)

    def refusal():
        notes = [event["note"] for name in third for event in lab.events(name, reason="FilteringFailed")]
        return next((note for note in notes if "members fit" in note), None)

    note = lab.hami.wait_for("why the third waits", refusal)
    assert f"9 of 10 members fit at once in one domain of {CLIQUE}" in note
    assert note.count(".1 has room for 9 of 10 members, 1 too few") == 2

    # a label that no node has
    lost = gang("lost", *like(pod(templates=["node"]), "lost", 2), topology="example.com/rock")
    note = lab.wait_event(lost[0], "FilteringFailed", "no node has the label example.com/rock")
    assert "Correct the key, or label the nodes. Run: hami-dra explain " in note
    assert not {*third, *lost} & bound(lab).keys()


@pytest.mark.kubernetes("1.37.1", GANGS)
def test_members_that_must_be_apart_are_bound_at_the_first_attempt(lab, gang):
    """kube-scheduler takes them one by one, and would refuse a second member on a node before each has a first one."""
    lab.machines(DGX, "n0", "n1", "n2", "n3")
    lab.create(template("card", whole_cards()))
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    one = pod(
        templates=["card"], topologySpreadConstraints=[{**spread, "labelSelector": {"matchLabels": {"job": "x"}}}]
    )
    one["metadata"].setdefault("labels", {})["job"] = "x"
    train = gang("train", *like(one, "train", 12))
    lab.wait_running(names=train)
    assert sorted(Counter(bound(lab)[each] for each in train).values()) == [3, 3, 3, 3]
    assert [event["note"] for event in lab.refusals()] == []


def channel(node):
    """What NVIDIA's driver publishes for ComputeDomains on one node."""
    driver = "compute-domain.nvidia.com"
    device = {"name": "channel-0", "attributes": {"type": {"string": "channel"}, "id": {"int": 0}}}
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-channels"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": [device]},
    }


@pytest.mark.kubernetes("1.37.1", GANGS)
def test_members_with_a_compute_domain_run_in_one_clique(lab, gang):
    """Two cliques of three nodes; one node is taken, so that the first has room for two of three members."""
    names = lab.fleet({"machine": NVL72, "count": 6, "name": "nvl-{index}", "cliques": [3, 15]})
    lab.create(*map(channel, names))
    lab.create(
        device_class("compute-domain-default-channel.nvidia.com", "device.driver == 'compute-domain.nvidia.com'")
    )
    lab.create(template("node", whole_cards(4)))
    lab.create(template("channel", request("channel", "compute-domain-default-channel.nvidia.com")))
    lab.create(pod("busy", templates=["node"], nodeSelector={"kubernetes.io/hostname": names[0]}))
    lab.wait_running(names=["busy"])
    train = gang("train", *like(pod(templates=["node", "channel"]), "train", 3))
    lab.wait_running(names=train)
    assert {bound(lab)[each] for each in train} == set(names[3:])


@pytest.mark.kubernetes(GANGS)
def test_members_share_a_claim_of_their_pod_group(lab):
    lab.machines(DGX, "n0", "n1")
    lab.create(template("shared", whole_cards(2)))
    claims = [{"name": "t0", "resourceClaimTemplateName": "shared"}]
    group = lab.create(pod_group("train", 3, claims=claims))
    members = [in_pod_group(each, "train") for each in like(pod(templates=["shared"]), "train", 3)]
    lab.create(*members)
    lab.wait_running(3)
    (claim,) = lab.claims()
    (consumer,) = claim["status"]["reservedFor"]
    assert (consumer["resource"], consumer["uid"]) == ("podgroups", group["metadata"]["uid"])
    assert len(claim["status"]["allocation"]["devices"]["results"]) == 2
    assert len(set(bound(lab).values())) == 1
    # the claim belongs to the group: it outlives the pods, and goes with the group
    for each in bound(lab):
        lab.delete_pod(each)
    lab.hami.wait_for("the pods gone", lambda: not lab.pods())
    assert lab.claims()[0]["status"]["allocation"]
    lab.api.remove(group)
    lab.wait_empty()

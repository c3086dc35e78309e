"""The life of gangs on real clusters: PodGroups of Kubernetes 1.37 and 1.36, and labels where there are none.

What gangs ask for: test_gangs.py. That the other gang holds nothing is read from the watch of claims, event by event, not at the end.
"""

import pytest

from hack.controlplane.variants import GANG_ALPHAS, GANGS, GANGS_1_36
from hack.installation import QUICK
from tests.e2e.gang_watch import GangWatcher
from tests.e2e.holder import Holder
from tests.e2e.objects import cpu, device_class, pod, request, template
from tests.e2e.test_undo import committed_node, lack_cpu
from tests.support.gang_objects import (
    RACK,
    in_coscheduling_group,
    in_labelled_group,
    in_pod_group,
    named,
    pod_group,
    prefers_whole,
    whole_or_halves,
)

BARE = "1.37.1"
pytestmark = pytest.mark.kubernetes(GANGS, BARE, GANGS_1_36)

MACHINE = "dgx-h100"  # eight cards
PARTITIONED = "gpu.example.com"


@pytest.fixture(scope="module")
def hami(control_plane, make_installation):
    """One controller, which also manages the driver of a partitioned GPU where kube-scheduler can be kept off it."""
    installation = make_installation()
    managed = [f"--manage={PARTITIONED}"] if control_plane.version == "1.37.1" else []
    installation.start_controller(*QUICK, *managed)
    installation.start_webhook()
    installation.wait_ready()
    return installation


@pytest.fixture
def has_groups(request):
    return request.node.callspec.params["control_plane"] != BARE


@pytest.fixture
def gang(lab, has_groups):
    """`gang(name, least, pods...)` creates a gang, as a PodGroup where there are such and by labels elsewhere."""

    def create(name, least, *pods):
        if has_groups:
            lab.create(pod_group(name, least, version=lab.plane.version))
            return lab.create(*(in_pod_group(each, name) for each in pods))
        return lab.create(*(in_labelled_group(each, name, least) for each in pods))

    return create


def members(name, count, **options):
    return named(pod(**options), *(f"{name}-{i}" for i in range(count)))


def names_of(pods):
    return [each["metadata"]["name"] for each in pods]


def allocated(lab):
    return [each for each in lab.claims() if "allocation" in each.get("status", {})]


def gated(lab):
    return {each["metadata"]["name"] for each in lab.pods() if each["spec"].get("schedulingGates")}


def test_a_gang_without_room_holds_nothing_also_after_its_gates_are_lifted(lab, gang):
    """kube-scheduler has tried it, too; it runs when there is room."""
    lab.machines(MACHINE, "n0")
    lab.create(template("card", request()))
    first, second = members("a", 5, templates=["card"]), members("b", 5, templates=["card"])
    with GangWatcher(lab.api, lab.namespace) as watcher:
        gang("a", 5, *first)
        lab.wait_running(names=names_of(first))
        gang("b", 5, *second)
        lab.wait_event("b-0", "FilteringFailed", "of 5 members fit")
        # its gates are lifted after the patience, and kube-scheduler has tried it
        lab.api.wait_for("the gates of b lifted", lambda: not gated(lab))
        lab.api.wait_for("kube-scheduler's word", lambda: lab.refusal("b-0"))
        watcher.catch_up()
        assert watcher.most("a") == 5
        assert watcher.most("b") == 0
        for name in names_of(first):
            lab.delete_pod(name)
        lab.wait_running(names=names_of(second))
    assert not watcher.problems


def test_two_gangs_that_come_at_once(lab, gang):
    """Ten pods in any order: five of one gang run, and of the other none holds a card meanwhile."""
    lab.machines(MACHINE, "n0", "n1", allocatable={"cpu": "64"})
    lab.create(template("card", request(count=2)))
    both = [members("a", 5, templates=["card"]), members("b", 5, templates=["card"])]
    with GangWatcher(lab.api, lab.namespace) as watcher:
        for index, pods in enumerate(both):
            gang("ab"[index], 5, *pods)

        def one_runs():
            phases = {each["metadata"]["name"]: each["status"].get("phase") for each in lab.pods()}
            return next((n for n in "ab" if all(phases[f"{n}-{i}"] == "Running" for i in range(5))), None)

        winner = lab.api.wait_for("one gang running", one_runs, seconds=60)
        loser = "b" if winner == "a" else "a"
        lab.wait_event(f"{loser}-0", "FilteringFailed", "of 5 members fit")
        watcher.catch_up()
        assert watcher.most(loser) == 0
        for i in range(5):
            lab.delete_pod(f"{winner}-{i}")
        lab.wait_running(names=[f"{loser}-{i}" for i in range(5)])
    assert not watcher.problems


def test_a_member_that_is_created_again_joins_the_others(lab, gang):
    lab.machines(MACHINE, "n0")
    lab.create(template("card", request()))
    pods = members("train", 4, templates=["card"])
    gang("train", 4, *pods)
    lab.wait_running(4)
    lab.delete_pod("train-2")
    lab.api.wait_for("it gone", lambda: len(lab.pods()) == 3)
    again = members("train", 4, templates=["card"])[2]
    group = lab.pods()[0]
    labels = group["metadata"]["labels"]
    spec = {**again["spec"], **{k: group["spec"][k] for k in ("schedulingGroup",) if k in group["spec"]}}
    lab.create({**again, "metadata": {**again["metadata"], "labels": labels}, "spec": spec})
    lab.wait_running(4)


@pytest.mark.kubernetes(GANGS, BARE)
def test_the_device_of_the_first_member_is_reconsidered(lab, gang):
    """kubernetes#138765, which kube-scheduler alone does not place (test_gangs_control.py): two halves."""
    lab.plane.nodes.create("n0")
    lab.create(*whole_or_halves("n0", PARTITIONED))
    lab.create(device_class("whole-or-half", f"device.driver == {PARTITIONED!r}"))
    lab.create(prefers_whole("rather-whole", "whole-or-half", PARTITIONED))
    gang("train", 2, *members("train", 2, templates=["rather-whole"]))
    lab.wait_running(2)
    devices = [
        result["device"] for claim in lab.claims() for result in claim["status"]["allocation"]["devices"]["results"]
    ]
    assert sorted(devices) == ["half-0", "half-1"]


# --- the controller and kube-scheduler ------------------------------------------------------------------------------------


@pytest.mark.kubernetes(GANGS, BARE)
@pytest.mark.parametrize(
    ("resource", "written"),
    [
        pytest.param("resourceclaims/status", 0, marks=pytest.mark.soak),
        ("resourceclaims/status", 2),
        pytest.param("pods", 0, marks=pytest.mark.soak),
        ("pods", 2),
    ],
)
def test_killed_in_the_middle_of_the_commit(lab, gang, resource, written):
    """Before the first or the third allocation, and before the first or the third gate: the next leader finishes it.

    `make soak` also kills it before the first of each; tests/unit/reconcile/test_gang_crash.py kills it at any write.
    """
    lab.machines(MACHINE, "n0")
    lab.create(template("card", request()))
    process = lab.hami.programs["controller"].process
    pods = members("train", 4, templates=["card"])
    with Holder(lab.plane, resource) as holder:
        holder.arm(after=written)
        gang("train", 4, *pods)
        holder.wait_caught()
        expected = written if resource != "pods" else 4
        lab.hami.wait_for("what passed is stored", lambda: len(allocated(lab)) == expected)
        if resource != "pods":
            assert gated(lab) == set(names_of(pods))
        process.kill()
        holder.drop()
    process.start()
    lab.hami.wait_ready()
    lab.wait_running(names=names_of(pods))
    assert len(allocated(lab)) == len(lab.claims()) == 4
    assert lab.overcommitted() == []


def test_a_node_that_turned_out_not_to_fit_one_member(lab, gang):
    """kube-scheduler refuses it: the member moves to the third node, and the gang runs."""
    lab.machines(MACHINE, "n0", "n1", "n2")
    lab.create(template("eight", request(count=8)))
    pods = members("train", 2, templates=["eight"], resources=cpu("1"))
    with Holder(lab.plane, "pods") as holder:
        holder.arm()
        gang("train", 2, *pods)
        holder.wait_caught()
        node = lab.hami.wait_for("the commit", lambda: committed_node(lab, "train-0", 1))
        lack_cpu(lab, node)
        holder.let_go()
    placed = lab.wait_running(names=names_of(pods), seconds=120)
    assert node not in {each.node for each in placed}
    assert lab.overcommitted() == []


@pytest.mark.soak
@pytest.mark.kubernetes(GANG_ALPHAS)
def test_a_member_that_kube_scheduler_refuses_takes_its_gang_to_another_rack(lab):
    """The PodGroup requires one rack, so the other member cannot stay where it is. kube-scheduler keeps the nominations of a
    PodGroup that it refuses, so these are given a minute longer, as if pods were being evicted for them.
    """
    racks = {"a": {"n0", "n1"}, "b": {"n2", "n3"}}
    for rack, nodes in racks.items():
        lab.machines(MACHINE, *sorted(nodes), labels={RACK: rack})
    lab.create(template("eight", request(count=8)), pod_group("train", 2, topology_key=RACK))
    pods = [in_pod_group(each, "train") for each in members("train", 2, templates=["eight"], resources=cpu("1"))]
    with Holder(lab.plane, "pods") as holder:
        holder.arm()
        lab.create(*pods)
        holder.wait_caught()
        node = lab.hami.wait_for("the commit", lambda: committed_node(lab, "train-0", 1))
        lack_cpu(lab, node)
        holder.let_go()
    (other,) = [nodes for nodes in racks.values() if node not in nodes]
    placed = lab.wait_running(names=names_of(pods), seconds=120)
    assert {each.node for each in placed} == other
    assert lab.overcommitted() == []


# --- what cannot run says why ---------------------------------------------------------------------------------------------


def test_an_incomplete_gang_keeps_its_gates(lab, gang):
    """Past the patience, and it holds nothing; the fourth member completes it."""
    lab.machines(MACHINE, "n0")
    lab.create(template("card", request()))
    pods = members("train", 4, templates=["card"])
    gang("train", 4, *pods[:3])
    lab.wait_event("train-0", "GangIncomplete", "3 of 4 members")
    lab.create(pod("other", templates=["card"]))
    lab.wait_running(names=["other"])
    assert gated(lab) == {"train-0", "train-1", "train-2"}
    kept = lab.pod("train-0")
    group = {k: kept["spec"][k] for k in ("schedulingGroup",) if k in kept["spec"]}
    last = {**pods[3], "spec": {**pods[3]["spec"], **group}}
    last["metadata"] = {**last["metadata"], "labels": kept["metadata"]["labels"]}
    lab.create(last)
    lab.wait_running(names=names_of(pods))


@pytest.mark.kubernetes(GANGS, GANGS_1_36)
def test_a_pod_group_that_is_missing(lab):
    lab.machines(MACHINE, "n0")
    lab.create(template("card", request()))
    lab.create(*(in_pod_group(each, "late") for each in members("late", 2, templates=["card"])))
    note = lab.wait_event("late-0", "InvalidGang", f"PodGroup {lab.namespace}/late does not exist")
    assert "create it" in note
    lab.create(pod_group("late", 2, version=lab.plane.version))
    lab.wait_running(2)


@pytest.mark.kubernetes(BARE)
@pytest.mark.parametrize("least", ["0", "many"])
def test_labels_without_a_number_of_pods(lab, least):
    lab.machines(MACHINE, "n0")
    lab.create(template("card", request()))
    lab.create(*(in_labelled_group(each, "wrong", least) for each in members("wrong", 2, templates=["card"])))
    note = lab.wait_event("wrong-0", "InvalidGang", "pod-group.scheduling.sigs.k8s.io/min-available")
    assert f"'{least}'" in note


@pytest.mark.kubernetes(BARE)
def test_the_label_of_coscheduling_without_its_crd(lab):
    lab.machines(MACHINE, "n0")
    lab.create(template("card", request()))
    lab.create(*(in_coscheduling_group(each, "train") for each in members("train", 2, templates=["card"])))
    note = lab.wait_event("train-0", "InvalidGang", "scheduling.x-k8s.io")
    assert "install the CRD" in note

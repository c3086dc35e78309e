"""A node that turned out not to fit: the pod ends up elsewhere, and no device is lost.

The write that lifts the pod's gate is held, so that the node changes between commit and kube-scheduler's first look.
"""

import pytest

from tests.e2e.holder import Holder
from tests.e2e.lab import T4
from tests.e2e.objects import cpu, part, pod, priority_class, template

pytestmark = pytest.mark.on_1_36


@pytest.fixture
def furnished(lab):
    lab.machines(T4, "n0", "n1")
    lab.create(template("part", part("7500Mi")), template("other", part("3Gi")))
    return lab


@pytest.fixture
def held(furnished):
    """`held(pod)` creates it and returns the node of its commit; the pod is gated until `held.let_go()`."""
    lab = furnished
    with Holder(lab.plane, "pods") as holder:

        def commit(item):
            holder.arm()
            lab.create(item)
            holder.wait_caught()
            name, count = item["metadata"]["name"], len(item["spec"]["resourceClaims"])
            return lab.hami.wait_for("the commit", lambda: committed_node(lab, name, count))

        commit.let_go = holder.let_go
        yield commit


def committed_node(lab, name, count):
    """Where all claims of the pod are allocated; empty while one is not."""
    nodes = []
    for claim in lab.claims():
        if claim["metadata"]["name"].startswith(f"{name}-") and (status := claim.get("status", {})).get("allocation"):
            terms = status["allocation"]["nodeSelector"]["nodeSelectorTerms"]
            nodes += [field["values"][0] for term in terms for field in term["matchFields"]]
    return nodes[0] if len(nodes) == count and len(set(nodes)) == 1 else ""


def lack_cpu(lab, node):
    """A pod that asks for as much shows when kube-scheduler knows."""
    lab.plane.nodes.set_allocatable(node, cpu="100m")
    canary = pod("canary", resources=cpu("1"), nodeSelector={"kubernetes.io/hostname": node})
    lab.create(canary)

    def is_seen():
        if lab.pod("canary")["spec"].get("nodeName"):  # it heard of the pod before it heard of the node
            lab.delete_pod("canary", gracePeriodSeconds=0)
            lab.create(canary)
        return "Insufficient cpu" in lab.refusal("canary")

    lab.hami.wait_for("kube-scheduler to see it", is_seen)
    lab.delete_pod("canary", gracePeriodSeconds=0)


def cordon(lab, node):
    lab.plane.nodes.cordon(node)


def not_ready(lab, node):
    lab.plane.nodes.set_ready(node, "False")


def is_whole(lab, pods):
    """Every claim belongs to a pod, is allocated once, and nothing is over-committed: no device was lost."""
    return len(lab.claims()) == pods and lab.overcommitted() == []


@pytest.mark.parametrize("templates", [["part"], ["part", "other"]], ids=["one claim", "two claims"])
def test_cpu_that_our_view_missed(furnished, held, templates):
    lab = furnished
    node = held(pod("web", templates=templates, resources=cpu("1")))
    lack_cpu(lab, node)
    held.let_go()
    (placement,) = lab.wait_running(names=["web"])
    assert placement.node == ({"n0", "n1"} - {node}).pop()
    assert len(placement.devices) == len(templates)
    assert is_whole(lab, pods=len(templates))


@pytest.mark.parametrize("trouble", [cordon, not_ready])
@pytest.mark.parametrize("templates", [["part"], ["part", "other"]], ids=["one claim", "two claims"])
def test_a_node_that_fails_after_the_commit_is_given_up_at_once(furnished, held, trouble, templates):
    lab = furnished
    node = held(pod("web", templates=templates))
    trouble(lab, node)
    assert lab.wait_event("web", "AllocationUndone", f"allocation on node {node} taken back: node {node} is ")
    held.let_go()
    (placement,) = lab.wait_running(names=["web"])
    assert placement.node == ({"n0", "n1"} - {node}).pop()
    assert len(placement.devices) == len(templates)
    assert is_whole(lab, pods=len(templates))


@pytest.mark.parametrize("trouble", [cordon, not_ready])
def test_kube_scheduler_is_quicker_than_the_undo(furnished, trouble):
    """It hangs, and binds by what it saw before: wherever the pod is, all its devices are there."""
    lab = furnished
    with lab.plane.paused("kube-scheduler"):
        lab.create(pod("web", templates=["part", "other"]))
        node = lab.hami.wait_for("the commit", lambda: committed_node(lab, "web", 2))
        trouble(lab, node)

    def settled():
        bound = lab.pod("web")["spec"].get("nodeName")
        return bound and committed_node(lab, "web", 2) == bound

    lab.hami.wait_for("bound where its devices are", settled)
    assert is_whole(lab, pods=2)
    if node_of(lab) == node:
        lab.plane.nodes.set_ready(node)  # so that its kubelet confirms the deletion


def node_of(lab):
    return lab.pod("web")["spec"]["nodeName"]


def test_what_no_view_models_is_learnt_from_kube_scheduler(furnished):
    """Anti-affinity between pods is not modelled: the first choice is refused, the second one is right."""
    lab = furnished
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": "lonely"}}, "topologyKey": "kubernetes.io/hostname"}
            ]
        }
    }
    lab.create(pod("first", templates=["part"], labels={"app": "lonely"}, affinity=apart))
    lab.wait_running(names=["first"])
    lab.create(pod("second", templates=["part", "other"], labels={"app": "lonely"}, affinity=apart))
    lab.wait_running(names=["first", "second"])
    assert {lab.placement("first").node, lab.placement("second").node} == {"n0", "n1"}
    assert is_whole(lab, pods=3)


def test_no_victim_of_a_preemption_dies_in_vain(furnished, held):
    """Both nodes fill up after the commit. kube-scheduler preempts for the important pod, and that is where it goes."""
    lab = furnished
    lab.create(priority_class("important", 1000))
    held(pod("web", templates=["part", "other"], resources=cpu("40"), priorityClassName="important"))
    for node in ("n0", "n1"):
        lab.create(pod(f"victim-{node}", resources=cpu("60"), nodeName=node, terminationGracePeriodSeconds=0))
    lab.wait_running(names=["victim-n0", "victim-n1"])
    held.let_go()
    lab.wait_running(names=["web"])
    survivors = {item["metadata"]["name"] for item in lab.pods()}
    assert survivors == {"web", "victim-n0", "victim-n1"} - {f"victim-{node_of(lab)}"}
    assert is_whole(lab, pods=2)

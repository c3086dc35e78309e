"""A node that turned out not to fit: the pod ends up elsewhere, and no device is lost.

kube-scheduler is held (SIGSTOP) while the controller commits, so that the node changes between commit and binding.
"""

import pytest

from tests.e2e.lab import T4
from tests.e2e.objects import cpu, part, pod, template

pytestmark = pytest.mark.on_1_36


@pytest.fixture
def held(lab):
    """`held(pod)` creates it, waits for the commit with kube-scheduler held, and returns the node that was chosen."""
    lab.machines(T4, "n0", "n1")
    lab.create(template("part", part("7500Mi")), template("other", part("3Gi")))
    plane = lab.plane

    def commit(item):
        plane.components["kube-scheduler"].pause()
        lab.create(item)
        name, count = item["metadata"]["name"], len(item["spec"]["resourceClaims"])
        return lab.hami.wait_for("the commit", lambda: committed_node(lab, name, count))

    yield commit
    plane.components["kube-scheduler"].resume()


def committed_node(lab, name, count):
    """Where all claims of the pod are allocated; empty while one is not."""
    nodes = []
    for claim in lab.claims():
        if claim["metadata"]["name"].startswith(f"{name}-") and (status := claim.get("status", {})).get("allocation"):
            terms = status["allocation"]["nodeSelector"]["nodeSelectorTerms"]
            nodes += [field["values"][0] for term in terms for field in term["matchFields"]]
    return nodes[0] if len(nodes) == count and len(set(nodes)) == 1 else ""


def release(lab):
    lab.plane.components["kube-scheduler"].resume()


def lack_cpu(lab, node):
    lab.plane.nodes.set_allocatable(node, cpu="100m")


def cordon(lab, node):
    lab.plane.nodes.cordon(node)


def not_ready(lab, node):
    lab.plane.nodes.set_ready(node, "False")


def is_whole(lab, pods):
    """Every claim belongs to a pod, is allocated once, and nothing is over-committed: no device was lost."""
    return len(lab.claims()) == pods and lab.overcommitted() == []


@pytest.mark.parametrize("trouble", [lack_cpu, cordon, not_ready])
@pytest.mark.parametrize("templates", [["part"], ["part", "other"]], ids=["one claim", "two claims"])
def test_a_node_that_fails_after_the_commit_is_given_up_for_another(lab, held, trouble, templates):
    node = held(pod("web", templates=templates, resources=cpu("1")))
    trouble(lab, node)
    release(lab)
    (placement,) = lab.wait_running(names=["web"])
    assert placement.node == ({"n0", "n1"} - {node}).pop()
    assert len(placement.devices) == len(templates)
    assert is_whole(lab, pods=len(templates))
    assert lab.wait_event("web", "AllocationUndone", node)


def test_what_no_view_models_is_learnt_from_kube_scheduler(lab, held):
    """Anti-affinity between pods is not modelled: the first choice is refused, the second one is right."""
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": "lonely"}}, "topologyKey": "kubernetes.io/hostname"}
            ]
        }
    }
    release(lab)
    lab.create(pod("first", templates=["part"], labels={"app": "lonely"}, affinity=apart))
    lab.wait_running(names=["first"])
    lab.create(pod("second", templates=["part", "other"], labels={"app": "lonely"}, affinity=apart))
    lab.wait_running(names=["first", "second"])
    assert {lab.placement("first").node, lab.placement("second").node} == {"n0", "n1"}
    assert is_whole(lab, pods=3)


def test_no_victim_of_a_preemption_dies_in_vain(lab, held):
    """Both nodes fill up after the commit. kube-scheduler preempts for the important pod, and that is where it goes."""
    important = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "important"}}
    lab.create({**important, "value": 1000})
    held(pod("web", templates=["part", "other"], resources=cpu("40"), priorityClassName="important"))
    for node in ("n0", "n1"):
        lab.create(pod(f"victim-{node}", resources=cpu("60"), nodeName=node, terminationGracePeriodSeconds=0))
    lab.wait_running(names=["victim-n0", "victim-n1"])
    release(lab)
    lab.wait_running(names=["web"])
    survivors = {item["metadata"]["name"] for item in lab.pods()}
    assert survivors == {"web", "victim-n0", "victim-n1"} - {f"victim-{lab.placement('web').node}"}
    assert is_whole(lab, pods=2)

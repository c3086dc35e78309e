"""`hami-dra defrag` on a real control plane: the plan is carried out, by hand and by `--execute`, and what it promises comes true."""

import json
import subprocess
import sys

import pytest

from hack.installation import QUICK
from hami_dra.api import names
from tests.e2e.lab import T4
from tests.e2e.objects import budget, deployment, pod, policies, request, template

NODES = ("n0", "n1", "n2")


@pytest.fixture(scope="module")
def hami(make_installation):
    """Its role is that of a controller that moves pods; only one test has such a controller."""
    installation = make_installation(preemption="respect")
    installation.start_controller(*QUICK)
    installation.wait_ready()
    return installation


def defrag(lab, *words, code=0):
    command = [sys.executable, "-m", "controller.cli.main", "defrag", *words, "-o", "json"]
    command += ["--kubeconfig", str(lab.plane.admin_kubeconfig)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == code, ended.stderr
    return json.loads(ended.stdout)


def cordon(lab, node, *, unschedulable):
    lab.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": unschedulable}})


def where(lab):
    """Pod → its node and cards."""
    return {each.pod: (each.node, tuple(each.devices)) for each in lab.placements()}


def carry_out(lab, plan):
    """Cordon, delete the pods in the order of the plan, each once the one before it runs again, and uncordon."""
    assert plan["heldDevices"] == []
    for node in plan["heldNodes"]:
        cordon(lab, node, unschedulable=True)
    for move in plan["moves"]:
        before = where(lab)
        name = move["pod"].removeprefix(f"{lab.namespace}/")
        assert before[name][0] == move["fromNode"]
        lab.delete_pod(name)
        lab.api.wait_for(f"a pod in place of {name}", lambda before=before: {*where(lab)} - {*before})
        (successor,) = {*where(lab)} - {*before}
        lab.wait_running(names=[successor])
        assert where(lab)[successor][0] == move["toNode"]
        assert sorted(where(lab)[successor][1]) == sorted(device.partition("/")[2] for device in move["toDevices"])
        assert {each: place for each, place in where(lab).items() if each != successor}.items() <= before.items()
    for node in plan["heldNodes"]:
        cordon(lab, node, unschedulable=False)


def test_room_for_a_pod_that_waits_is_made_without_losing_one(lab):
    """Six pods of one card on three nodes of four: none has four free cards before, one has after two moves."""
    for node in NODES:
        lab.machines(T4, node)
    lab.create(*(template(name, request(count=count)) for name, count in (("card", 1), ("node", 4))))
    like = pod("service", templates=["card"], annotations=policies("spread", "binpack"))
    lab.create(deployment("service", 6, like), budget("service", "service", 5))
    lab.wait_running(6)
    assert sorted(node for node, _ in where(lab).values()) == sorted(NODES * 2)
    lab.create(pod("whole", templates=["node"]))
    lab.wait_event("whole", "FilteringFailed")

    def is_counted():
        path = f"/apis/policy/v1/namespaces/{lab.namespace}/poddisruptionbudgets/service"
        return lab.api.get(path).get("status", {}).get("disruptionsAllowed") == 1

    lab.api.wait_for("the budget to allow an eviction", is_counted)
    plan = defrag(lab, "--for", f"{lab.namespace}/whole")
    assert (plan["asked"], plan["gained"], len(plan["moves"]), plan["isCut"]) == (1, 1, 2, False)
    assert plan["budgets"] == [{"budget": f"{lab.namespace}/service", "allowed": 1, "moves": 2}]
    carry_out(lab, plan)
    lab.wait_running(7, names=["whole"])
    assert [where(lab)["whole"][0]] == plan["frees"] == plan["heldNodes"]
    assert lab.overcommitted() == []


def test_a_node_is_emptied_as_planned(lab):
    for node in NODES:
        lab.machines(T4, node)
    lab.create(template("card", request(count=1)))
    like = pod("service", templates=["card"], annotations=policies("spread", "binpack"))
    lab.create(deployment("service", 5, like))
    lab.wait_running(5)
    counts = sorted([node for node, _ in where(lab).values()].count(node) for node in NODES)
    assert counts == [1, 2, 2]
    plan = defrag(lab, "--free-nodes", "1", "--execute", "--yes", code=1)
    assert {*plan["stays"].values()} == {'neither it nor its namespace has the label hami.io/movable: "true"'}
    lab.api.patch(f"/api/v1/namespaces/{lab.namespace}", {"metadata": {"labels": {"hami.io/movable": "true"}}})
    plan = defrag(lab, "--free-nodes", "1", "--execute", "--yes")
    assert (plan["gained"], len(plan["moves"])) == (1, 1)
    (emptied,) = plan["frees"]
    assert emptied not in {node for node, _ in where(lab).values()}
    assert len(where(lab)) == 5
    nodes = [lab.api.get(f"/api/v1/nodes/{name}") for name in NODES]
    assert not any(
        each["spec"].get("unschedulable") or "hami.io/defrag" in each["metadata"].get("annotations", {})
        for each in nodes
    )


@pytest.mark.on_1_36
def test_the_controller_makes_room_for_a_pod_that_has_waited(lab):
    """As above, with a budget that lets one pod go at a time: nobody asks for it, and no pod loses its place."""
    for node in NODES:
        lab.machines(T4, node)
    lab.create(*(template(name, request(count=count)) for name, count in (("card", 1), ("node", 4))))
    annotations = policies("spread", "binpack") | {names.MIN_RUNTIME: "0s"}
    like = pod("service", templates=["card"], annotations=annotations, labels={names.MOVABLE: "true"})
    lab.create(deployment("service", 6, like), budget("service", "service", 5))
    lab.wait_running(6)
    assert sorted(node for node, _ in where(lab).values()) == sorted(NODES * 2)
    with lab.other_controller(*QUICK, "--save-after=5s", "--defrag=execute"):
        lab.create(pod("whole", templates=["node"]))
        lab.wait_running(7, names=["whole"], seconds=90)
        lab.api.wait_for("the others to run", lambda: len(where(lab)) == 7, seconds=30)
    node = where(lab)["whole"][0]
    assert node not in {place for name, (place, _) in where(lab).items() if name != "whole"}
    assert "2 pods" in lab.wait_event("whole", "Defragmenting")
    moved = lab.events(reason="Moved")
    assert len(moved) == 2
    assert all("is held for the pod that replaces it" in each["note"] for each in moved)
    assert lab.overcommitted() == []

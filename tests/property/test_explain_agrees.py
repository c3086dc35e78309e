"""`explain` and `simulate` say the same of the same files: whichever pods wait, in any order.

`simulate` places the pods one after the other; `explain` asks for one of them as if no other waited. So `simulate --explain` is
about the pod's own line, and `explain` gives what `simulate` gives for the files without the others.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.insight.explain import explain, with_gang
from controller.insight.simulation import SimulationSettings, question, simulate
from tests.support.gang_objects import in_labelled_group, named
from tests.support.manifests import claim, cluster, documents, part, pod, template

ANNOTATED = "nvidia.com/use-gputype"


def vgpu(gpu=1, **limits):
    return {f"nvidia.com/{name}": amount for name, amount in {"gpu": gpu, **limits}.items()}


def running(name, node, memory):
    """A pod that holds a part of the first card of a node, and its claim."""
    result = {"request": "gpu", "driver": "nvidia.hami.io", "pool": node, "device": "gpu-0", "shareID": f"share-{name}"}
    result["consumedCapacity"] = {"memory": memory, "cores": "0", "shares": "1"}
    held = claim(name, part(memory=memory))
    held["status"] = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": name}],
    }
    own = pod(name, name, nodeName=node)
    return [held, {**own, "metadata": {**own["metadata"], "uid": name}, "status": {"phase": "Running"}}]


GANG = named(in_labelled_group(pod("g", "template:whole"), "train", 3), "g0", "g1", "g2")
LARGE = named(in_labelled_group(pod("h", "template:four"), "large", 3), "h0", "h1", "h2")
PODS = {
    "legacy": [pod("legacy", limits=vgpu(gpumem=3000))],
    "whole": [pod("whole", limits=vgpu(2))],
    "claim": [pod("claim", "template:part")],
    "binpack": [pod("binpack", "template:part", annotations={"hami.io/node-scheduler-policy": "binpack"})],
    "linked": [pod("linked", limits=vgpu(2, gpumem=100), annotations={"hami.io/gpu-topology": "required"})],
    "a type": [pod("type", limits=vgpu(gpumem=100), annotations={ANNOTATED: "T4"})],
    "another type": [pod("a100", limits=vgpu(gpumem=100), annotations={ANNOTATED: "A100"})],
    "too large": [pod("large", limits=vgpu(gpumem=80000))],
    "a label": [pod("label", "template:part", nodeSelector={"pool": "none"})],
    "a shared claim": [claim("both"), pod("one", "both"), pod("two", "both")],
    "a gang": GANG,
    "a gang that never fits": LARGE,
    "another scheduler": [
        {**pod("other", limits=vgpu()), "spec": {**pod("o", limits=vgpu())["spec"], "schedulerName": "x"}}
    ],
    "a misspelt policy": [pod("wrong", limits=vgpu(), annotations={"hami.io/node-scheduler-policy": "pack"})],
}
FIXED = [
    *cluster(),
    template("part", part()),
    template("whole", part("15Gi", "100")),
    template("four", part("15Gi", "100", count=4)),
    *running("tenant-1", "n1", "9Gi"),
    *running("tenant-2", "n2", "1Gi"),
]


def told_by_simulate(files, key):
    """(node, message) of a pod: one of them is empty."""
    report = simulate(documents(*files), SimulationSettings(explained=key))
    found = {each["pod"]: (each["node"], "") for each in report.placements}
    found |= {each["pod"]: ("", each["error"] or each["message"]) for each in report.unplaced}
    if report.explanation is not None:
        own = report.explanation
        assert (own.node, "" if own.node else own.message) == found[key]
    return found[key]


def told_by_explain(files, key):
    asked = question(documents(*files), "pod", key, SimulationSettings())
    if asked.request is None:
        return "", asked.problem
    found = with_gang(explain(asked.inventory, asked.request, asked.options), asked.gang)
    return found.node, "" if found.node else found.message


def pods_in(raws):
    return [f"default/{raw['metadata']['name']}" for raw in raws if raw["kind"] == "Pod"]


@pytest.mark.parametrize("name", PODS)
def test_both_say_the_same_where_no_other_pod_waits(name):
    """Of pods that share a claim, the first: the second finds it allocated."""
    files = [*FIXED, *PODS[name]]
    for key in pods_in(PODS[name])[: 1 if name == "a shared claim" else None]:
        assert told_by_explain(files, key) == told_by_simulate(files, key)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from(sorted(PODS)), min_size=2, max_size=5, unique=True), st.data())
def test_other_pods_that_wait_count_for_simulate_alone(names, data):
    files = [*FIXED, *(raw for name in names for raw in PODS[name])]
    name = data.draw(st.sampled_from(names))
    key = pods_in(PODS[name])[0]
    told_by_simulate(files, key)  # its own explanation agrees
    assert told_by_explain(files, key) == told_by_simulate([*FIXED, *PODS[name]], key)

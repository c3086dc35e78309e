"""kube-scheduler's own cases of preemption by groups of pods, as objects that hami-dra reads.

A case is a line of tests/conformance/podgroup_preemption_cases.jsonl: one CPU there is one whole card here (or two or four,
where pods ask for fractions), and everybody runs before the preemptors come.

    nodes       {name, cards, cpu?, labels?}
    groups      {name, minCount or basic, priority, disruptionMode?, preemptionPolicy?, topologyKey?}
    pdbs        {minAvailable, selector}; all pods that they select are ready
    running     {name, node, cards, priority, group?, labels?, cpu?, podLevelCpu?, hostPort?}
    preemptors  the same without node, in order, with {nodeSelector?, apart?, spread?, preemptionPolicy?}
    nodeScore   what a score plugin of the case says of nodes: hami-dra has none
    expect      {scheduled, preempted, unschedulable, nominated, byWorkloadPreemption}
    ours        {preempted, why}: another choice than upstream's, and why it is right
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controller.insight.simulation import SimulationSettings
from tests.support.preemption.dra_form import in_dra_form
from tests.support.preemption.model import CARD
from tests.support.preemption.planning import name_of, placed_on, simulated
from tests.support.preemption.worlds import HOST

Json = dict[str, Any]

NAMESPACE = "default"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def objects_of(case: Json) -> list[Json]:
    """Return nodes and slices, groups, running pods with their claims, budgets, and the preemptors, which are last."""
    preemptors = [_pod(each) for each in case["preemptors"]]
    world = {
        "nodes": [_node(each) for each in case["nodes"]],
        "pods": [_pod(each) for each in case["running"]] + preemptors[:-1],
        "pdbs": [_budget(each, number, case["running"]) for number, each in enumerate(case.get("pdbs", ()))],
        "pod": preemptors[-1],
    }
    return [*(_group(each) for each in case["groups"]), *in_dra_form(world)]


def _node(each: Json) -> Json:
    room = {"cpu": each.get("cpu", "64"), "memory": "512Gi", "pods": "32", CARD: str(each["cards"])}
    labels = {HOST: each["name"], **each.get("labels", {})}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": each["name"], "labels": labels},
        "spec": {},
        "status": {"allocatable": room, "capacity": dict(room), "conditions": ready},
    }


def _group(each: Json) -> Json:
    policy = {"basic": {}} if each.get("basic") else {"gang": {"minCount": each["minCount"]}}
    spec: Json = {"schedulingPolicy": policy, "priority": each["priority"]}
    if "disruptionMode" in each:
        spec["disruptionMode"] = {each["disruptionMode"]: {}}
    if "preemptionPolicy" in each:
        spec["preemptionPolicy"] = each["preemptionPolicy"]
    if "topologyKey" in each:
        spec["schedulingConstraints"] = {"topology": [{"key": each["topologyKey"]}]}
    meta = {"name": each["name"], "namespace": NAMESPACE}
    return {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": meta, "spec": spec}


def _pod(each: Json) -> Json:
    cards = {CARD: str(each["cards"])} if each["cards"] else {}
    asked = {"cpu": each.get("cpu", "100m"), "memory": "1Gi", **cards}
    main: Json = {"name": "main", "image": "image", "resources": {"requests": asked, "limits": dict(asked)}}
    if port := each.get("hostPort"):
        main["ports"] = [{"containerPort": port, "hostPort": port, "protocol": "TCP"}]
    spec: Json = {"priority": each["priority"], "containers": [main], "terminationGracePeriodSeconds": 0}
    if cpu := each.get("podLevelCpu"):
        spec["resources"] = {"requests": {"cpu": cpu}}
    for field in ("nodeSelector", "preemptionPolicy"):
        if field in each:
            spec[field] = each[field]
    if group := each.get("group"):
        spec["schedulingGroup"] = {"podGroupName": group}
    if apart := each.get("apart"):
        selector = {"matchExpressions": [{"key": apart["label"], "operator": "Exists"}]}
        term = {"labelSelector": selector, "topologyKey": apart["topologyKey"]}
        spec["affinity"] = {"podAntiAffinity": {_REQUIRED: [term]}}
    if spread := each.get("spread"):
        constraint = {key: spread[key] for key in ("maxSkew", "topologyKey", "minDomains")}
        selector = {"matchLabels": spread["label"]}
        spec["topologySpreadConstraints"] = [
            {**constraint, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
        ]
    status: Json = {"phase": "Pending"}
    if "node" in each:
        spec["nodeName"] = each["node"]
        ready = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": ready}
    name = each["name"]
    meta = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "labels": each.get("labels", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def _budget(each: Json, number: int, running: list[Json]) -> Json:
    healthy = sum(each["selector"].items() <= pod.get("labels", {}).items() for pod in running)
    allowed = max(healthy - each["minAvailable"], 0)
    counted = {"currentHealthy": healthy, "desiredHealthy": each["minAvailable"], "expectedPods": healthy}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": f"budget-{number}", "namespace": NAMESPACE},
        "spec": {"minAvailable": each["minAvailable"], "selector": {"matchLabels": each["selector"]}},
        "status": {"disruptionsAllowed": allowed, **counted},
    }


# --- rounds -----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Names of pods after some rounds."""

    scheduled: set[str]
    preempted: set[str]
    waiting: set[str]


def played(case: Json, rounds: int, still: int) -> Outcome:
    """Decide again and again, each time with what the decisions before have changed.

    Raises AssertionError unless nothing changes in `still` further rounds.
    """
    preempted: set[str] = set()
    for _ in range(rounds):
        case, victims = _round(case)
        preempted |= victims
    for number in range(still):
        after, victims = _round(case)
        assert after == case, f"still changes in round {rounds + number + 1}: {sorted(victims)} go"
    names = {part: {pod["name"] for pod in case[part]} for part in ("running", "preemptors")}
    return Outcome(names["running"], preempted, names["preemptors"])


def _round(case: Json) -> tuple[Json, set[str]]:
    """Return the case after one decision for everybody who waits, and who had to go."""
    if not case["preemptors"]:
        return case, set()
    report = simulated(objects_of(case), SimulationSettings(preemption=True, kubernetes=(1, 37)))
    victims = {name_of(victim) for each in report.preemptions or () for victim in each["victims"]}
    nodes = {each["name"]: placed_on(report, each["name"]) for each in case["preemptors"]}
    new = [{**each, "node": nodes[each["name"]]} for each in case["preemptors"] if nodes[each["name"]]]
    kept = [each for each in case["running"] if each["name"] not in victims]
    waiting = [each for each in case["preemptors"] if not nodes[each["name"]]]
    return {**case, "running": kept + new, "preemptors": waiting}, victims

"""kube-scheduler's filters, as the embedded scheduler has them."""

from collections import Counter

import msgspec
import pytest

from hami_dra.api.core import Node, Pod
from hami_dra.api.quantity import NANO
from hami_dra.kube.embedded.fit import amounts, requested, selected, tolerated, unfit


def node(*, labels=None, ready="True", allocatable=None, name="n", **spec):
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": spec,
            "status": {
                "allocatable": allocatable or {"cpu": "4", "memory": "8Gi", "pods": "10"},
                "conditions": [{"type": "Ready", "status": ready}],
            },
        },
        Node,
    )


def pod(**spec):
    return msgspec.convert({"spec": spec}, Pod)


def container(cpu="", **more):
    return {"resources": {"requests": {"cpu": cpu} if cpu else {}}, **more}


def affinity(*terms):
    required = {"nodeSelectorTerms": list(terms)}
    return pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}})


def rule(key, operator, *values):
    return {"key": key, "operator": operator, "values": list(values)}


def why(pod, node, used=None):
    return unfit(pod, requested(pod), node, used or Counter())


@pytest.mark.parametrize(
    ("rules", "fits"),
    [
        ([rule("zone", "In", "a", "b")], True),
        ([rule("zone", "In", "b")], False),
        ([rule("zone", "NotIn", "b")], True),
        ([rule("other", "NotIn", "b")], True),
        ([rule("zone", "Exists")], True),
        ([rule("zone", "DoesNotExist")], False),
        ([rule("size", "Gt", "7")], True),
        ([rule("size", "Lt", "8")], False),
        ([rule("zone", "Gt", "7")], False),
        ([rule("size", "Gt", "seven")], False),
        ([rule("other", "Gt", "7")], False),
        ([rule("zone", "Like", "a")], False),
        ([rule("zone", "In", "a"), rule("size", "In", "9")], False),
    ],
)
def test_node_affinity(rules, fits):
    place = node(labels={"zone": "a", "size": "8"})
    assert selected(affinity({"matchExpressions": rules}), place) is fits


def test_terms_are_alternatives_and_an_empty_one_is_none():
    place = node(labels={"zone": "a"})
    by_name = {"matchFields": [rule("metadata.name", "In", "n")]}
    elsewhere = {"matchExpressions": [rule("zone", "In", "b")]}
    assert selected(affinity(elsewhere, by_name), place)
    assert not selected(affinity({}), place)
    assert not selected(affinity({**by_name, **elsewhere}), place)
    assert selected(pod(nodeSelector={"zone": "a"}), place)
    assert not selected(pod(nodeSelector={"zone": "a", "x": ""}), place)


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "other"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"value": "v"}, True),  # no key is every key; the API server would not let it in
    ],
)
def test_tolerations(toleration, tolerates):
    place = node(taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
    assert tolerated(pod(tolerations=[toleration]).spec.tolerations, place.spec.taints) is tolerates


def test_a_preference_keeps_nobody_away():
    assert why(pod(), node(taints=[{"key": "k", "effect": "PreferNoSchedule"}])) == ""


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (node(), ""),
        (node(ready="Unknown"), "node(s) had untolerated taint(s)"),
        (node(unschedulable=True), "node(s) had untolerated taint(s)"),
        (node(allocatable={"cpu": "1", "pods": "10"}), "Insufficient cpu"),
        (node(allocatable={"cpu": "4", "pods": "0"}), "Too many pods"),
        (node(allocatable={"cpu": "4"}), "Too many pods"),
    ],
)
def test_reasons_are_kube_schedulers(place, reason):
    assert why(pod(containers=[container("2")]), place) == reason


def test_a_cordoned_node_can_be_tolerated():
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    assert why(pod(tolerations=[toleration]), node(unschedulable=True)) == ""


def test_what_is_used_counts_and_unknown_resources_are_missing():
    asking = pod(containers=[container("2")])
    assert why(asking, node(), amounts({"cpu": "2"})) == ""
    assert why(asking, node(), amounts({"cpu": "2001m"})) == "Insufficient cpu"
    card = pod(containers=[{"resources": {"limits": {"nvidia.com/gpu": 1}}}])
    assert why(card, node()) == "Insufficient nvidia.com/gpu"
    assert why(pod(containers=[{"resources": {"requests": {"nvidia.com/gpu": "0"}}}]), node()) == ""


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container("1"), container("500m")]}, 1_500),
        ({"containers": [container("1")], "initContainers": [container("3"), container("2")]}, 3_000),
        ({"containers": [container("1")], "initContainers": [container("1", restartPolicy="Always")]}, 2_000),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("2", restartPolicy="Always"), container("3")],
            },
            5_000,
        ),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("3"), container("2", restartPolicy="Always")],
            },
            3_000,
        ),
        ({"containers": [container("1")], "overhead": {"cpu": "250m"}}, 1_250),
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "3"}}}, 3_000),
        ({"containers": [container("no number")]}, 0),
    ],
    ids=["sum", "init", "sidecar", "init-after-sidecar", "init-before-sidecar", "overhead", "pod", "unreadable"],
)
def test_requests_of_a_pod(spec, cpu):
    wanted = requested(pod(**spec))
    assert wanted["cpu"] == cpu * NANO // 1_000
    assert wanted["pods"] == NANO

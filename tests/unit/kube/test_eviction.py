"""Eviction: what budgets allow, what the memory cluster does with an evicted pod, and how the answers of a server are read."""

import json
from datetime import UTC, datetime

import pytest

from hami_dra.api import kinds
from hami_dra.api.oversized import reduce_budget
from hami_dra.kube.credentials import Access, FixedIdentity
from hami_dra.kube.decoding import read_object
from hami_dra.kube.embedded import EmbeddedControlPlane
from hami_dra.kube.http import HttpCluster
from hami_dra.kube.protocol import Conflict, Invalid, NotFound, Protected, Unavailable
from tests.support.scripted_server import Answer, status
from tests.support.steered_cluster import SteeredCluster

SPACE = "ns"
NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
READY = {"type": "Ready", "status": "True"}


@pytest.fixture
def cluster():
    return SteeredCluster(now=lambda: NOW, graceful=True)


async def running(cluster, name="a", *, ready=True, grace=None, phase="Running", **metadata):
    spec = {"containers": [{"name": "main"}], "nodeName": "node-1"}
    if grace is not None:
        spec["terminationGracePeriodSeconds"] = grace
    body = {"metadata": {"name": name, "labels": {"app": "a"}, **metadata}, "spec": spec}
    await cluster.create(kinds.POD, body, namespace=SPACE)
    conditions = [READY] if ready else []
    patch = {"status": {"phase": phase, "conditions": conditions}}
    return await cluster.patch(kinds.POD, name, patch, namespace=SPACE, subresource="status")


async def budget(cluster, allowed=0, name="budget", *, selector=None, observed=1, policy="", **counted):
    spec = {"selector": {"matchLabels": {"app": "a"}} if selector is None else selector}
    if policy:
        spec["unhealthyPodEvictionPolicy"] = policy
    await cluster.create(kinds.POD_DISRUPTION_BUDGET, {"metadata": {"name": name}, "spec": spec}, namespace=SPACE)
    patch = {"status": {"disruptionsAllowed": allowed, "observedGeneration": observed, **counted}}
    return await cluster.patch(kinds.POD_DISRUPTION_BUDGET, name, patch, namespace=SPACE, subresource="status")


async def is_there(cluster, name="a"):
    return any(pod.metadata.name == name for pod in (await cluster.list(kinds.POD, namespace=SPACE)).items)


# --- memory ----------------------------------------------------------------------------------------------------------


async def test_an_evicted_pod_has_its_grace_and_says_why_it_ends(cluster):
    await running(cluster, grace=40)
    await cluster.evict("a", SPACE)
    raw = await cluster.get_raw(kinds.POD, "a", SPACE)
    assert raw["metadata"]["deletionTimestamp"] == "2030-01-02T03:04:45Z"
    assert raw["metadata"]["deletionGracePeriodSeconds"] == 40
    assert raw["status"]["conditions"] == [
        READY,
        {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastTransitionTime": "2030-01-02T03:04:05Z",
        },
    ]
    assert raw["metadata"]["generation"] == 2


async def test_time_to_end_only_becomes_shorter(cluster):
    await running(cluster)
    await cluster.evict("a", SPACE, grace_period_seconds=20)
    for asked, ends in ((None, 25), (25, 25), (10, 15), (15, 15)):
        await cluster.delete(kinds.POD, "a", namespace=SPACE, grace_period_seconds=asked)
        found = await cluster.get(kinds.POD, "a", SPACE)
        assert found.metadata.deletion_timestamp == f"2030-01-02T03:04:{ends}Z"
    await cluster.delete(kinds.POD, "a", namespace=SPACE, grace_period_seconds=0)
    assert not await is_there(cluster)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_finished_pod_goes_at_once_and_past_its_budget(cluster, phase):
    await running(cluster, phase=phase)
    await budget(cluster)
    await cluster.evict("a", SPACE)
    assert not await is_there(cluster)


async def test_a_pod_without_a_node_goes_at_once_and_past_its_budget(cluster):
    body = {"metadata": {"name": "a", "labels": {"app": "a"}}, "spec": {"containers": [{"name": "main"}]}}
    await cluster.create(kinds.POD, body, namespace=SPACE)
    await budget(cluster)
    await cluster.evict("a", SPACE)
    assert not await is_there(cluster)


async def test_a_pod_that_ends_already_is_evicted_again_past_its_budget(cluster):
    await running(cluster)
    await budget(cluster, 1)
    await cluster.evict("a", SPACE)
    await cluster.evict("a", SPACE)
    assert (await cluster.get(kinds.POD_DISRUPTION_BUDGET, "budget", SPACE)).status.disruptions_allowed == 0


async def test_a_finalizer_holds_an_evicted_pod(cluster):
    await running(cluster, grace=0, finalizers=["hami.io/test"])
    await cluster.evict("a", SPACE)
    assert (await cluster.get(kinds.POD, "a", SPACE)).metadata.deletion_timestamp
    await cluster.patch(kinds.POD, "a", {"metadata": {"finalizers": None}}, namespace=SPACE)
    assert not await is_there(cluster)


async def test_without_its_finalizer_a_pod_still_has_its_grace(cluster):
    await running(cluster, finalizers=["hami.io/test"])
    await cluster.evict("a", SPACE)
    await cluster.patch(kinds.POD, "a", {"metadata": {"finalizers": None}}, namespace=SPACE)
    assert await is_there(cluster)


async def test_a_budget_allows_as_many_as_it_says(cluster):
    for name in "ab":
        await running(cluster, name)
    await budget(cluster, 1, currentHealthy=2, desiredHealthy=1)
    await cluster.evict("a", SPACE)
    spent = (await cluster.get(kinds.POD_DISRUPTION_BUDGET, "budget", SPACE)).status
    assert spent.disruptions_allowed == 0
    assert spent.disrupted_pods == {"a": "2030-01-02T03:04:05Z"}
    with pytest.raises(Protected, match="Cannot evict pod as it would violate"):
        await cluster.evict("b", SPACE)
    assert (await cluster.get(kinds.POD, "b", SPACE)).metadata.deletion_timestamp is None


@pytest.mark.parametrize(
    ("counted", "words"),
    [
        ({"currentHealthy": 1, "desiredHealthy": 1}, "budget needs 1 healthy pods and has 1 currently"),
        ({"currentHealthy": 2, "desiredHealthy": 1}, "budget does not allow evicting pods currently$"),
        ({"observed": 0, "allowed": 1}, "still being processed"),
        ({"allowed": -1}, "is negative"),
        ({"allowed": 1, "disruptedPods": {f"pod-{i}": "x" for i in range(2001)}}, "too many pending evictions"),
    ],
)
async def test_a_budget_says_why_it_refuses(cluster, counted, words):
    await running(cluster)
    await budget(cluster, **counted)
    with pytest.raises(Protected, match=words):
        await cluster.evict("a", SPACE)


async def test_a_pod_under_two_budgets_is_not_evicted_at_all(cluster):
    await running(cluster)
    await budget(cluster, 1)
    await budget(cluster, 1, "second", selector={})
    with pytest.raises(Invalid, match="more than one PodDisruptionBudget"):
        await cluster.evict("a", SPACE)


@pytest.mark.parametrize(
    ("selector", "is_protected"),
    [
        ({}, True),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": []}]}, False),
        ({"matchLabels": {"app": "b"}}, False),
    ],
)
async def test_budgets_select_as_the_server_does(cluster, selector, is_protected):
    await running(cluster)
    await budget(cluster, selector=selector)
    if is_protected:
        with pytest.raises(Protected):
            await cluster.evict("a", SPACE)
    else:
        await cluster.evict("a", SPACE)


@pytest.mark.parametrize(
    ("options", "is_protected"),
    [
        ({}, True),
        ({"policy": "AlwaysAllow"}, False),
        ({"currentHealthy": 1, "desiredHealthy": 1}, False),
        ({"currentHealthy": 0, "desiredHealthy": 1}, True),
    ],
)
async def test_a_pod_that_is_not_ready_may_go_where_its_budget_says_so(cluster, options, is_protected):
    await running(cluster, ready=False)
    await budget(cluster, **options)
    if is_protected:
        with pytest.raises(Protected):
            await cluster.evict("a", SPACE)
    else:
        await cluster.evict("a", SPACE)


async def test_another_pod_of_that_name_stays_although_the_budget_is_charged(cluster):
    await running(cluster)
    await budget(cluster, 1)
    with pytest.raises(Conflict, match="UID in the precondition"):
        await cluster.evict("a", SPACE, uid="00000000-0000-4000-8000-000000000000")
    assert (await cluster.get(kinds.POD, "a", SPACE)).metadata.deletion_timestamp is None
    assert (await cluster.get(kinds.POD_DISRUPTION_BUDGET, "budget", SPACE)).status.disruptions_allowed == 0


async def test_a_cluster_that_is_not_graceful_removes_at_once():
    cluster = SteeredCluster()
    await running(cluster)
    await cluster.evict("a", SPACE)
    assert not await is_there(cluster)
    with pytest.raises(NotFound):
        await cluster.evict("a", SPACE)


async def test_the_embedded_kubelet_ends_an_evicted_pod(cluster):
    node = {"metadata": {"name": "node-1"}, "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "9"}}}
    await cluster.create(kinds.NODE, node)
    async with EmbeddedControlPlane(cluster) as plane:
        await running(cluster)
        await plane.settled()
        await cluster.evict("a", SPACE)
        await plane.settled()
        assert not await is_there(cluster)


def test_a_budget_that_is_too_large_protects_everything():
    body = b'{"metadata":{"name":"a","namespace":"ns"},"spec":{"selector":{"matchLabels":{"app":"a"}}},"status":{"disruptionsAllowed":3}}'
    found = read_object(kinds.POD_DISRUPTION_BUDGET, body)[0]
    assert found.spec.selector.match_labels == {"app": "a"}
    reduce_budget(found, "too large")
    assert found.spec.selector.match_labels == {}
    assert found.status.disruptions_allowed == 0
    assert found.key == "ns/a"


# --- http ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def client(server):
    client = HttpCluster(Access(server.url, FixedIdentity("Bearer s3cret")))
    yield client
    await client.close()


def refused(code, message="The disruption budget b needs 1 healthy pods and has 1 currently", **details):
    return status(code, "TooManyRequests", causes=[{"reason": "DisruptionBudget", "message": message}], **details)


async def test_the_eviction_names_the_pod_and_its_conditions(server, client):
    server.will(Answer({"kind": "Status", "status": "Success", "code": 201}, 201))
    await client.evict("a", SPACE, uid="uid-a", grace_period_seconds=5)
    ((method, path, _, _, body),) = server.seen
    assert (method, path) == ("POST", "/api/v1/namespaces/ns/pods/a/eviction")
    assert json.loads(body) == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "a", "namespace": "ns"},
        "deleteOptions": {"preconditions": {"uid": "uid-a"}, "gracePeriodSeconds": 5},
    }


async def test_a_budget_that_refuses_is_not_asked_again(server, client):
    server.will(refused(429))
    with pytest.raises(Protected, match="evict Pod ns/a eviction: the server says why The disruption budget b needs 1"):
        await client.evict("a", SPACE)
    assert len(server.seen) == 1


async def test_a_budget_with_negative_figures_refuses_too(server, client):
    server.will(refused(403))
    with pytest.raises(Protected):
        await client.evict("a", SPACE)


async def test_a_busy_server_is_asked_again(server, client):
    server.will(status(429, retryAfterSeconds=0), Answer({"kind": "Status", "status": "Success"}, 201))
    await client.evict("a", SPACE)
    assert len(server.seen) == 2


async def test_two_budgets_are_no_failure_of_the_server(server, client):
    words = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    server.will(status(500, message=words))
    with pytest.raises(Invalid, match="more than one"):
        await client.evict("a", SPACE)


@pytest.mark.parametrize(("code", "error"), [(404, NotFound), (409, Conflict), (500, Unavailable)])
async def test_other_refusals_are_those_of_every_write(server, client, code, error):
    server.will(status(code))
    with pytest.raises(error):
        await client.evict("a", SPACE)

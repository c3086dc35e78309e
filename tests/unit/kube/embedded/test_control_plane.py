"""The small Kubernetes in memory: claims from templates, reservations, workloads, binding, running, clearing away."""

from datetime import UTC, datetime

import pytest

from hami_dra.api import kinds
from hami_dra.api.names import DELETE_PROTECTION
from hami_dra.kube.embedded import EmbeddedControlPlane
from hami_dra.kube.protocol import Forbidden, Unavailable
from tests.support.steered_cluster import SteeredCluster

SPACE = "default"


@pytest.fixture
def cluster():
    return SteeredCluster()


@pytest.fixture
async def plane(cluster):
    async with EmbeddedControlPlane(cluster) as plane:
        yield plane


def node(name, *, ready="True", cpu="4", labels=None, **spec):
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def pod_spec(*, cpu="1", template="", claim="", **spec):
    resource_claims = []
    if template:
        resource_claims.append({"name": "gpu", "resourceClaimTemplateName": template})
    if claim:
        resource_claims.append({"name": "shared", "resourceClaimName": claim})
    return {
        "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
        **({"resourceClaims": resource_claims} if resource_claims else {}),
        **spec,
    }


def pod(name, **options):
    return {"metadata": {"name": name, "namespace": SPACE}, "spec": pod_spec(**options)}


CLAIM_SPEC = {"devices": {"requests": [{"name": "card", "exactly": {"deviceClassName": "gpu"}}]}}


def template(name="one-card"):
    meta = {"labels": {"team": "a"}, "annotations": {"hami.io/x": "y"}}
    return {
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"metadata": meta, "spec": CLAIM_SPEC},
    }


def workload(name, *, replicas=None, template_spec=None, **spec):
    body = {
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": template_spec or pod_spec()},
        **spec,
    }
    return {
        "metadata": {"name": name, "namespace": SPACE},
        "spec": body | ({} if replicas is None else {"replicas": replicas}),
    }


def allocation(node_name):
    field = {"key": "metadata.name", "operator": "In", "values": [node_name]}
    return {
        "devices": {"results": [{"request": "card", "driver": "d.io", "pool": node_name, "device": "card-0"}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }


async def allocate(cluster, name, node_name, consumer=None):
    """What our controller writes, in its order."""
    await cluster.patch(kinds.RESOURCE_CLAIM, name, {"metadata": {"finalizers": [DELETE_PROTECTION]}}, namespace=SPACE)
    status = {"allocation": allocation(node_name)}
    if consumer is not None:
        meta = consumer.metadata
        status["reservedFor"] = [{"resource": "pods", "name": meta.name, "uid": meta.uid}]
    await cluster.patch(kinds.RESOURCE_CLAIM, name, {"status": status}, namespace=SPACE, subresource="status")


async def get_pod(cluster, name):
    return await cluster.get(kinds.POD, name, SPACE)


async def pods(cluster):
    listing = await cluster.list(kinds.POD, namespace=SPACE)
    return {item.metadata.name: item.spec.node_name for item in listing.items}


async def claims(cluster):
    return (await cluster.list(kinds.RESOURCE_CLAIM, namespace=SPACE)).items


def condition(pod, kind="PodScheduled"):
    return next((item for item in pod.status.conditions if item.type == kind), None)


# --- scheduling ----------------------------------------------------------------------------------------------------


async def test_pods_without_claims_go_to_the_first_fitting_node_and_run(cluster, plane):
    for name in ("b", "a"):
        await cluster.create(kinds.NODE, node(name))
    for number in range(6):
        await cluster.create(kinds.POD, pod(f"p-{number}"))
    await plane.settled()
    assert sorted((await pods(cluster)).values()) == ["a"] * 4 + ["b"] * 2
    running = await get_pod(cluster, "p-0")
    assert running.status.phase == "Running"
    assert condition(running).status == "True"
    assert condition(running, "Ready").status == "True"


async def test_a_pod_that_fits_nowhere_says_why_and_is_bound_when_there_is_room(cluster, plane):
    await cluster.create(kinds.NODE, node("cordoned", unschedulable=True))
    await cluster.create(kinds.NODE, node("away", ready="False"))
    await cluster.create(kinds.NODE, node("small", cpu="1"))
    await cluster.create(kinds.NODE, node("tainted", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]))
    await cluster.create(kinds.POD, pod("p", cpu="2"))
    await plane.settled()
    waiting = condition(await get_pod(cluster, "p"))
    assert (waiting.status, waiting.reason) == ("False", "Unschedulable")
    assert waiting.message == ("0/4 nodes are available: 1 Insufficient cpu, 3 node(s) had untolerated taint(s).")
    writes = cluster.requests["patch pods/status"]
    await cluster.patch(kinds.NODE, "cordoned", {"metadata": {"annotations": {"a": "b"}}})
    await plane.settled()
    assert cluster.requests["patch pods/status"] == writes
    await cluster.patch(kinds.NODE, "cordoned", {"spec": {"unschedulable": None}})
    await plane.settled()
    assert (await pods(cluster))["p"] == "cordoned"


async def test_room_that_a_finished_pod_leaves_is_used(cluster, plane):
    await cluster.create(kinds.NODE, node("a", cpu="1"))
    await cluster.create(kinds.POD, pod("first"))
    await plane.settled()
    await cluster.create(kinds.POD, pod("second"))
    await plane.settled()
    assert await pods(cluster) == {"first": "a", "second": ""}
    await cluster.patch(kinds.POD, "first", {"status": {"phase": "Succeeded"}}, namespace=SPACE, subresource="status")
    await plane.settled()
    assert (await pods(cluster))["second"] == "a"


async def test_the_urgent_pod_comes_first(cluster, plane):
    await cluster.create(kinds.PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 1000})
    await cluster.create(kinds.POD, pod("a"))
    await cluster.create(kinds.POD, pod("z", priorityClassName="high"))
    await plane.settled()
    await cluster.create(kinds.NODE, node("n", cpu="1"))
    await plane.settled()
    assert await pods(cluster) == {"a": "", "z": "n"}


async def test_gated_foreign_and_preset_pods_are_left_alone(cluster, plane):
    await cluster.create(kinds.NODE, node("a"))
    await cluster.create(kinds.POD, pod("gated", schedulingGates=[{"name": "hami.io/allocation"}]))
    await cluster.create(kinds.POD, pod("foreign", schedulerName="other"))
    await plane.settled()
    assert await pods(cluster) == {"gated": "", "foreign": ""}
    assert condition(await get_pod(cluster, "gated")).reason == "SchedulingGated"
    await cluster.patch(kinds.POD, "gated", {"spec": {"schedulingGates": []}}, namespace=SPACE)
    await plane.settled()
    assert (await pods(cluster))["gated"] == "a"


# --- claims --------------------------------------------------------------------------------------------------------


async def test_a_template_becomes_a_claim_of_the_pod_even_while_it_is_gated(cluster, plane):
    await cluster.create(kinds.POD, pod("p", template="one-card", schedulingGates=[{"name": "g"}]))
    await plane.settled()
    assert await claims(cluster) == ()
    await cluster.create(kinds.RESOURCE_CLAIM_TEMPLATE, template())
    await plane.settled()
    (claim,) = await claims(cluster)
    made = await get_pod(cluster, "p")
    assert claim.metadata.name.startswith("p-gpu-")
    assert claim.metadata.labels == {"team": "a"}
    assert claim.metadata.annotations == {"hami.io/x": "y", "resource.kubernetes.io/pod-claim-name": "gpu"}
    assert claim.metadata.owner_references[0].uid == made.metadata.uid
    assert claim.spec.devices.requests[0].exactly.device_class_name == "gpu"
    assert [status.resource_claim_name for status in made.status.resource_claim_statuses] == [claim.metadata.name]


async def test_an_allocated_claim_binds_its_pod_to_its_node(cluster, plane):
    for name in ("a", "b"):
        await cluster.create(kinds.NODE, node(name))
    await cluster.create(kinds.RESOURCE_CLAIM_TEMPLATE, template())
    await cluster.create(kinds.POD, pod("p", template="one-card"))
    await plane.settled()
    waiting = await get_pod(cluster, "p")
    assert condition(waiting).reason == "Unschedulable"
    (claim,) = await claims(cluster)
    await allocate(cluster, claim.metadata.name, "b", waiting)
    await plane.settled()
    bound = await get_pod(cluster, "p")
    assert (bound.spec.node_name, bound.status.phase) == ("b", "Running")
    (claim,) = await claims(cluster)
    assert [consumer.uid for consumer in claim.status.reserved_for] == [bound.metadata.uid]
    await cluster.delete(kinds.POD, "p", namespace=SPACE)
    await plane.settled()
    assert await claims(cluster) == ()


async def test_pods_that_share_a_claim_are_all_reserved_and_the_last_one_frees_it(cluster, plane):
    await cluster.create(kinds.NODE, node("a"))
    await cluster.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "shared", "namespace": SPACE}, "spec": CLAIM_SPEC})
    for name in ("p", "q"):
        await cluster.create(kinds.POD, pod(name, claim="shared"))
    await allocate(cluster, "shared", "a", await get_pod(cluster, "p"))
    await plane.settled()
    assert await pods(cluster) == {"p": "a", "q": "a"}
    (claim,) = await claims(cluster)
    assert sorted(consumer.name for consumer in claim.status.reserved_for) == ["p", "q"]
    await cluster.delete(kinds.POD, "p", namespace=SPACE)
    await plane.settled()
    (claim,) = await claims(cluster)
    assert [consumer.name for consumer in claim.status.reserved_for] == ["q"]
    assert claim.status.allocation
    await cluster.delete(kinds.POD, "q", namespace=SPACE)
    await plane.settled()
    (claim,) = await claims(cluster)
    assert claim.status.allocation is None
    assert claim.metadata.finalizers == ()


async def test_an_allocation_without_reservation_is_nobodys_to_free(cluster, plane):
    await cluster.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "mine", "namespace": SPACE}, "spec": CLAIM_SPEC})
    await allocate(cluster, "mine", "a")
    await plane.settled()
    (claim,) = await claims(cluster)
    assert claim.status.allocation
    await cluster.delete(kinds.RESOURCE_CLAIM, "mine", namespace=SPACE)
    await plane.settled()
    assert await claims(cluster) == ()


async def test_a_pod_with_a_preset_node_is_reserved_and_runs_when_its_claim_is_allocated(cluster, plane):
    await cluster.create(kinds.NODE, node("a"))
    await cluster.create(kinds.RESOURCE_CLAIM_TEMPLATE, template())
    await cluster.create(kinds.POD, pod("p", template="one-card", nodeName="a"))
    await plane.settled()
    assert (await get_pod(cluster, "p")).status.phase == "Pending"
    (claim,) = await claims(cluster)
    await allocate(cluster, claim.metadata.name, "a")
    await plane.settled()
    assert (await get_pod(cluster, "p")).status.phase == "Running"
    assert [consumer.name for consumer in (await claims(cluster))[0].status.reserved_for] == ["p"]


async def test_a_claim_that_keeps_its_pod_from_the_only_fitting_node_is_given_up(cluster, plane):
    await cluster.create(kinds.NODE, node("a", cpu="1"))
    await cluster.create(kinds.NODE, node("b"))
    await cluster.create(kinds.RESOURCE_CLAIM_TEMPLATE, template())
    await cluster.create(kinds.POD, pod("p", template="one-card", cpu="2"))
    await plane.settled()
    (claim,) = await claims(cluster)
    await allocate(cluster, claim.metadata.name, "a", await get_pod(cluster, "p"))
    await plane.settled()
    (claim,) = await claims(cluster)
    assert claim.status.allocation is None
    assert claim.status.reserved_for == ()
    assert (await pods(cluster))["p"] == ""


# --- workloads -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kinds.DEPLOYMENT, kinds.REPLICA_SET, kinds.STATEFUL_SET], ids=lambda kind: kind.name)
async def test_replicas_are_made_replaced_and_scaled(cluster, plane, kind):
    await cluster.create(kinds.NODE, node("a", cpu="64"))
    await cluster.create(kind, workload("web", replicas=3))
    await plane.settled()
    assert await pods(cluster) == {"web-0": "a", "web-1": "a", "web-2": "a"}
    made = await get_pod(cluster, "web-0")
    assert made.metadata.labels == {"app": "web"}
    assert made.metadata.owner_references[0].kind == kind.name
    await cluster.delete(kinds.POD, "web-1", namespace=SPACE)
    await plane.settled()
    assert sorted(await pods(cluster)) == ["web-0", "web-1", "web-2"]
    await cluster.patch(kind, "web", {"spec": {"replicas": 1}}, namespace=SPACE)
    await plane.settled()
    assert sorted(await pods(cluster)) == ["web-0"]
    await cluster.delete(kind, "web", namespace=SPACE)
    await plane.settled()
    assert await pods(cluster) == {}


async def test_a_job_runs_until_it_is_complete(cluster, plane):
    await cluster.create(kinds.NODE, node("a"))
    await cluster.create(kinds.JOB, workload("work", parallelism=2, completions=3))
    await plane.settled()
    assert sorted(await pods(cluster)) == ["work-0", "work-1"]

    async def finish(name):
        await cluster.patch(kinds.POD, name, {"status": {"phase": "Succeeded"}}, namespace=SPACE, subresource="status")
        await plane.settled()

    await finish("work-0")
    assert sorted(await pods(cluster)) == ["work-0", "work-1", "work-2"]
    await finish("work-1")
    await finish("work-2")
    assert sorted(await pods(cluster)) == ["work-0", "work-1", "work-2"]


async def test_a_daemon_set_has_one_pod_on_every_selected_node(cluster, plane):
    for name, pool in (("a", "gpu"), ("b", "gpu"), ("c", "cpu")):
        await cluster.create(kinds.NODE, node(name, labels={"pool": pool}))
    await cluster.create(kinds.DAEMON_SET, workload("agent", template_spec=pod_spec(nodeSelector={"pool": "gpu"})))
    await plane.settled()
    assert await pods(cluster) == {"agent-a": "a", "agent-b": "b"}
    await cluster.patch(kinds.NODE, "c", {"metadata": {"labels": {"pool": "gpu"}}})
    await cluster.delete(kinds.NODE, "a")
    await plane.settled()
    assert await pods(cluster) == {"agent-b": "b", "agent-c": "c"}


async def test_a_name_that_is_taken_is_passed_over(cluster, plane):
    await cluster.create(kinds.NODE, node("a"))
    await cluster.create(kinds.POD, pod("web-0"))
    await cluster.create(kinds.DEPLOYMENT, workload("web"))
    await plane.settled()
    assert sorted(await pods(cluster)) == ["web-0", "web-1"]


async def test_a_refused_pod_is_tried_again(cluster, plane):
    refusals = 1

    async def refuse_once(admission):
        nonlocal refusals
        if admission.kind == kinds.POD and refusals:
            refusals -= 1
            raise Forbidden("not today")
        return admission.object

    cluster.admission.append(refuse_once)
    await cluster.create(kinds.NODE, node("a"))
    await cluster.create(kinds.DEPLOYMENT, workload("web"))
    async for event in cluster.watch(kinds.POD, resource_version="0"):
        assert event.object.metadata.name == "web-0"
        break


# --- clearing away, and trouble --------------------------------------------------------------------------------------


async def test_pods_of_a_lost_node_and_orphans_are_removed(cluster, plane):
    await cluster.create(kinds.NODE, node("a"))
    await cluster.create(kinds.POD, pod("p"))
    await plane.settled()
    await cluster.delete(kinds.NODE, "a")
    orphan = pod("orphan")
    orphan["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "gone"}]
    await cluster.create(kinds.POD, orphan)
    await plane.settled()
    assert await pods(cluster) == {}


async def test_lost_answers_and_races_change_nothing_in_the_end(cluster, plane):
    cluster.fail_next(Unavailable("lost"), verb="create", kind=kinds.RESOURCE_CLAIM, applied=True)
    cluster.fail_next(Unavailable("refused"), verb="bind")
    meddled = []

    async def meddle(request):
        if request.label == "patch resourceclaims/status" and not meddled:
            meddled.append(request)
            patch = {"metadata": {"labels": {"meddled": "yes"}}}
            await cluster.patch(kinds.RESOURCE_CLAIM, request.name, patch, namespace=SPACE)

    await cluster.create(kinds.NODE, node("a"))
    await cluster.create(kinds.RESOURCE_CLAIM_TEMPLATE, template())
    await cluster.create(kinds.POD, pod("p", template="one-card", nodeName=""))
    while not await claims(cluster):
        await plane.settled()
    (claim,) = await claims(cluster)
    await allocate(cluster, claim.metadata.name, "a")
    cluster.hooks.append(meddle)
    async for event in cluster.watch(kinds.POD, resource_version="0"):
        if event.object.status.phase == "Running":
            break
    assert meddled
    (claim,) = await claims(cluster)
    assert [consumer.name for consumer in claim.status.reserved_for] == ["p"]


async def test_it_carries_on_after_its_watches_are_closed_and_the_history_is_lost(cluster, plane):
    await cluster.create(kinds.NODE, node("a"))
    await plane.settled()
    cluster.pause_watches()
    await cluster.create(kinds.DEPLOYMENT, workload("web", replicas=2))
    cluster.forget_history()
    cluster.close_watches()
    cluster.resume_watches()
    async for event in cluster.watch(kinds.POD, resource_version="0"):
        if event.object.metadata.name == "web-1" and event.object.status.phase == "Running":
            break
    assert await pods(cluster) == {"web-0": "a", "web-1": "a"}


async def test_two_runs_are_the_same():
    """With the same clock: the scheduler takes the oldest pod first, and a real clock may begin a new second in between."""

    async def run():
        cluster = SteeredCluster(seed=7, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
        async with EmbeddedControlPlane(cluster) as plane:
            for name in "abc":
                await cluster.create(kinds.NODE, node(name))
            await cluster.create(kinds.RESOURCE_CLAIM_TEMPLATE, template())
            await cluster.create(
                kinds.DEPLOYMENT, workload("web", replicas=5, template_spec=pod_spec(template="one-card"))
            )
            await cluster.create(kinds.DEPLOYMENT, workload("plain", replicas=5))
            await plane.settled()
        listing = await cluster.list(kinds.POD)
        return [
            (item.key, item.metadata.uid, item.spec.node_name, item.metadata.resource_version) for item in listing.items
        ]

    assert await run() == await run()


async def test_a_pod_made_again_under_its_name_is_not_bound_for_the_earlier_one(cluster, plane):
    await cluster.create(kinds.NODE, node("a"))
    await cluster.create(kinds.RESOURCE_CLAIM_TEMPLATE, template())
    await cluster.create(kinds.POD, pod("p"))
    # the watch shows the first pod; when its binding arrives the second one is there
    raced = []

    async def race(request):
        if request.verb == "bind" and not raced:
            raced.append(request)
            await cluster.delete(kinds.POD, "p", namespace=SPACE)
            await cluster.create(kinds.POD, pod("p", template="one-card"))

    cluster.hooks.append(race)
    await plane.settled()
    assert raced
    assert await pods(cluster) == {"p": ""}


async def test_a_name_that_somebody_takes_at_the_last_moment_is_passed_over(cluster, plane):
    await cluster.create(kinds.NODE, node("a"))
    await plane.settled()
    raced = []

    async def race(request):
        if request.label == "create pods" and not raced:
            raced.append(request)
            await cluster.create(kinds.POD, pod(request.name))

    cluster.hooks.append(race)
    await cluster.create(kinds.DEPLOYMENT, workload("web"))
    await plane.settled()
    assert sorted(await pods(cluster)) == ["web-0", "web-1"]
    assert (await get_pod(cluster, "web-0")).metadata.owner_references == ()

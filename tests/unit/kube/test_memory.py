"""What the memory cluster offers beyond the contract: steering for tests, admission, binding; and its parts."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

import pytest

from hami_dra.api import kinds
from hami_dra.kube.embedded.api_server.rules import apply_patch, merge_patch
from hami_dra.kube.protocol import Conflict, Forbidden, Invalid, NotFound, ServerVersion, Unavailable
from hami_dra.kube.requirements import UnsupportedKubernetes, require_version
from hami_dra.kube.selectors import InvalidSelector, field_predicate, label_predicate
from tests.support.json_patches import PatchError, json_patch
from tests.support.steered_cluster import SteeredCluster

SPACE = "ns"


@pytest.fixture
def cluster():
    return SteeredCluster(now=lambda: datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC))


def named(name, **metadata):
    return {"metadata": {"name": name, **metadata}}


def pod(name, **spec):
    return {"metadata": {"name": name, "namespace": SPACE}, "spec": {"containers": [{"name": "main"}], **spec}}


async def put(cluster, name, **body):
    return await cluster.create(kinds.CONFIG_MAP, {**named(name), **body}, namespace=SPACE)


# --- versions --------------------------------------------------------------------------------------------------------


async def test_an_older_server_serves_no_taint_rules():
    cluster = SteeredCluster(ServerVersion(1, 36, "v1.36.4"))
    await require_version(cluster)
    assert not await cluster.serves(kinds.DEVICE_TAINT_RULE)
    assert await cluster.serves(kinds.RESOURCE_SLICE)
    with pytest.raises(NotFound, match="could not find the requested resource"):
        await cluster.list(kinds.DEVICE_TAINT_RULE)


async def test_a_gate_may_serve_the_beta_rules():
    served = [kinds.DEVICE_TAINT_RULE_V1BETA2]
    cluster = SteeredCluster(ServerVersion(1, 36, "v1.36.4"), served)
    body = {**named("rule"), "spec": {"taint": {"key": "k", "effect": "NoSchedule"}}}
    made = await cluster.create(kinds.DEVICE_TAINT_RULE_V1BETA2, body)
    assert made.api_version == "resource.k8s.io/v1beta2"
    assert not await cluster.serves(kinds.RESOURCE_SLICE)


@pytest.mark.parametrize("version", [ServerVersion(1, 35, "v1.35.1"), ServerVersion(1, 9, "")])
async def test_too_old_a_kubernetes_is_refused_in_one_sentence(version):
    with pytest.raises(UnsupportedKubernetes) as caught:
        await require_version(SteeredCluster(version))
    message = str(caught.value)
    assert "1.36" in message
    assert "consumable capacity" in message
    assert f"this is {version.git_version or '1.9'}." in message
    assert message.count(". ") == 0


async def test_a_newer_major_is_new_enough():
    await require_version(SteeredCluster(ServerVersion(2, 0, "v2.0.0")))


# --- steering --------------------------------------------------------------------------------------------------------


async def test_requests_are_counted_by_verb_and_resource(cluster):
    await put(cluster, "a")
    await cluster.get(kinds.CONFIG_MAP, "a", SPACE)
    await cluster.create(kinds.POD, pod("p"))
    await cluster.patch(kinds.POD, "p", {"status": {"phase": "Failed"}}, namespace=SPACE, subresource="status")
    assert cluster.requests == {
        "create configmaps": 1,
        "get configmaps": 1,
        "create pods": 1,
        "patch pods/status": 1,
    }


async def test_the_next_write_fails_before_or_after_it_took_effect(cluster):
    cluster.fail_next(Unavailable("away"))
    with pytest.raises(Unavailable):
        await put(cluster, "a")
    cluster.fail_next(Unavailable("lost"), applied=True)
    with pytest.raises(Unavailable):
        await put(cluster, "a")
    assert (await cluster.get(kinds.CONFIG_MAP, "a", SPACE)).metadata.name == "a"


async def test_faults_are_picky_and_count(cluster):
    cluster.fail_next(Conflict("busy"), verb="patch", kind=kinds.CONFIG_MAP, name="b", subresource="", times=2)
    await put(cluster, "a")
    await put(cluster, "b")
    await cluster.patch(kinds.CONFIG_MAP, "a", {"data": {"x": "1"}}, namespace=SPACE)
    for _ in range(2):
        with pytest.raises(Conflict, match="busy"):
            await cluster.patch(kinds.CONFIG_MAP, "b", {"data": {"x": "1"}}, namespace=SPACE)
    await cluster.patch(kinds.CONFIG_MAP, "b", {"data": {"x": "1"}}, namespace=SPACE)


async def test_a_hook_may_let_somebody_else_write_first(cluster):
    first = await put(cluster, "a")

    async def race(request):
        if request.verb == "patch" and request.body.get("data") == {"x": "mine"}:
            await cluster.patch(kinds.CONFIG_MAP, "a", {"data": {"x": "theirs"}}, namespace=SPACE)

    cluster.hooks.append(race)
    mine = {"metadata": {"resourceVersion": first.metadata.resource_version}, "data": {"x": "mine"}}
    with pytest.raises(Conflict):
        await cluster.patch(kinds.CONFIG_MAP, "a", mine, namespace=SPACE)


async def test_held_back_events_are_not_lost(cluster):
    seen = []

    async def watch():
        async for event in cluster.watch(kinds.CONFIG_MAP, resource_version="1"):
            seen.append((event.type, event.object.metadata.name))  # noqa: PERF401 (looked at while it grows)

    task = asyncio.create_task(watch())
    await asyncio.sleep(0)
    cluster.pause_watches()
    await put(cluster, "a")
    await put(cluster, "b")
    assert seen == []
    assert cluster.has_undelivered_events
    cluster.resume_watches()
    cluster.close_watches()
    await task
    assert seen == [("ADDED", "a"), ("ADDED", "b")]
    assert not cluster.has_undelivered_events


async def test_watches_may_break(cluster):
    events = cluster.watch(kinds.CONFIG_MAP, resource_version="1")
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    cluster.close_watches(Unavailable("broken off"))
    with pytest.raises(Unavailable, match="broken off"):
        await waiting


async def test_a_watch_from_nowhere_begins_with_what_is_there(cluster):
    await put(cluster, "a")
    async with aclosing(cluster.watch(kinds.CONFIG_MAP, resource_version="")) as events:
        assert (await anext(events)).object.metadata.name == "a"


async def test_a_watch_from_the_future_is_refused(cluster):
    with pytest.raises(Unavailable, match="Too large resource version"):
        await anext(cluster.watch(kinds.CONFIG_MAP, resource_version="99"))


async def test_a_closed_cluster_answers_nobody(cluster):
    await cluster.close()
    with pytest.raises(Unavailable):
        await put(cluster, "a")


async def test_its_clock_is_the_tests(cluster):
    made = await put(cluster, "a")
    assert made.metadata.creation_timestamp == cluster.timestamp() == "2030-01-02T03:04:05Z"


# --- admission -------------------------------------------------------------------------------------------------------


async def test_admission_changes_what_is_created(cluster):
    async def label(admission):
        meta = admission.object["metadata"]
        return {**admission.object, "metadata": {**meta, "labels": {"dry": str(admission.dry_run)}}}

    async def shout(admission):
        labels = {key: value.upper() for key, value in admission.object["metadata"]["labels"].items()}
        return merge_patch(admission.object, {"metadata": {"labels": labels}})

    cluster.admission += [label, shout]
    assert (await put(cluster, "a")).metadata.labels == {"dry": "FALSE"}
    trial = await cluster.create(kinds.CONFIG_MAP, named("b"), namespace=SPACE, dry_run=True)
    assert trial.metadata.labels == {"dry": "TRUE"}


async def test_admission_may_write_itself_and_refuse(cluster):
    async def template_first(admission):
        if admission.kind == kinds.POD:
            body = {**named("made"), "spec": {"spec": {"devices": {}}}}
            await cluster.create(kinds.RESOURCE_CLAIM_TEMPLATE, body, namespace=admission.namespace)
            raise Forbidden("admission webhook denied the request: no")
        return admission.object

    cluster.admission.append(template_first)
    with pytest.raises(Forbidden, match="denied"):
        await cluster.create(kinds.POD, pod("p"))
    assert await cluster.get(kinds.RESOURCE_CLAIM_TEMPLATE, "made", SPACE)
    with pytest.raises(NotFound):
        await cluster.get(kinds.POD, "p", SPACE)


# --- pods ------------------------------------------------------------------------------------------------------------


async def test_binding(cluster):
    await cluster.create(kinds.POD, pod("gated", schedulingGates=[{"name": "g"}]))
    with pytest.raises(Conflict, match="schedulingGates"):
        await cluster.bind("gated", SPACE, "n")
    await cluster.create(kinds.POD, pod("p"))
    await cluster.bind("p", SPACE, "n")
    bound = await cluster.get(kinds.POD, "p", SPACE)
    assert bound.spec.node_name == "n"
    assert [(item.type, item.status) for item in bound.status.conditions] == [("PodScheduled", "True")]
    with pytest.raises(Conflict, match="already assigned"):
        await cluster.bind("p", SPACE, "other")
    await cluster.create(kinds.POD, pod("q"))
    with pytest.raises(Conflict, match="UID"):
        await cluster.bind("q", SPACE, "n", uid=bound.metadata.uid)
    held = pod("held")
    held["metadata"]["finalizers"] = ["hami.io/x"]
    await cluster.create(kinds.POD, held)
    await cluster.delete(kinds.POD, "held", namespace=SPACE)
    with pytest.raises(Conflict, match="deleted"):
        await cluster.bind("held", SPACE, "n")
    with pytest.raises(NotFound):
        await cluster.bind("nobody", SPACE, "n")


async def test_priorities_come_from_classes(cluster):
    await cluster.create(kinds.PRIORITY_CLASS, {**named("high"), "value": 1000})
    assert (await cluster.create(kinds.POD, pod("p", priorityClassName="high"))).spec.priority == 1000
    assert (await cluster.create(kinds.POD, pod("q"))).spec.priority == 0
    with pytest.raises(Invalid, match="no PriorityClass with name nosuch"):
        await cluster.create(kinds.POD, pod("r", priorityClassName="nosuch"))
    await cluster.create(kinds.PRIORITY_CLASS, {**named("usual"), "value": 10, "globalDefault": True})
    usual = await cluster.create(kinds.POD, pod("s"))
    assert (usual.spec.priority, usual.spec.priority_class_name) == (10, "usual")


async def test_limits_stand_for_requests(cluster):
    container = {"name": "main", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}}
    made = await cluster.create(kinds.POD, pod("p", containers=[container]))
    assert made.spec.containers[0].resources.requests == {"cpu": "1", "memory": "1Gi"}


async def test_only_some_of_a_pod_can_change(cluster):
    await cluster.create(kinds.POD, pod("p"))
    for spec in ({"nodeName": "n"}, {"nodeSelector": {"a": "b"}}, {"containers": [{"name": "other"}]}):
        with pytest.raises(Invalid, match=next(iter(spec))):
            await cluster.patch(kinds.POD, "p", {"spec": spec}, namespace=SPACE)
    image = {"containers": [{"name": "main", "image": "new"}], "tolerations": [{"operator": "Exists"}]}
    changed = await cluster.patch(kinds.POD, "p", {"spec": image}, namespace=SPACE)
    assert changed.spec.tolerations[0].operator == "Exists"


# --- the rest --------------------------------------------------------------------------------------------------------


async def test_a_node_brings_its_status_and_keeps_it_apart(cluster):
    body = {**named("n"), "status": {"allocatable": {"cpu": "4"}}}
    assert (await cluster.create(kinds.NODE, body)).status.allocatable == {"cpu": "4"}
    both = {"spec": {"unschedulable": True}, "status": {"allocatable": {"cpu": "8"}}}
    main = await cluster.patch(kinds.NODE, "n", both)
    assert (main.spec.unschedulable, main.status.allocatable) == (True, {"cpu": "4"})
    status = await cluster.patch(kinds.NODE, "n", {"spec": None, **both["status"]}, subresource="status")
    assert status.spec.unschedulable


async def test_a_slice_keeps_its_driver_node_and_pool(cluster):
    spec = {"driver": "d.io", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}
    made = await cluster.create(kinds.RESOURCE_SLICE, {**named("s"), "spec": spec})
    for change in ({"driver": "e.io"}, {"nodeName": "m"}, {"pool": {"name": "q"}}):
        with pytest.raises(Invalid, match="immutable"):
            await cluster.patch(kinds.RESOURCE_SLICE, "s", {"spec": change})
    changed = await cluster.patch(kinds.RESOURCE_SLICE, "s", {"spec": {"pool": {"generation": 2}}})
    assert (made.metadata.generation, changed.metadata.generation) == (1, 2)
    with pytest.raises(NotFound, match="status"):
        await cluster.patch(kinds.RESOURCE_SLICE, "s", {"status": {}}, subresource="status")


async def test_what_does_not_fit_its_kind_is_refused(cluster):
    with pytest.raises(Invalid, match="containers"):
        await cluster.create(kinds.POD, pod("p", containers="none"))
    await cluster.create(kinds.POD, pod("p"))
    with pytest.raises(Invalid, match="phase"):
        await cluster.patch(kinds.POD, "p", {"status": {"phase": 3}}, namespace=SPACE, subresource="status")
    assert (await cluster.get(kinds.POD, "p", SPACE)).status.phase == "Pending"


@pytest.mark.parametrize(
    ("patch", "manager"),
    [
        ({"metadata": "text"}, "m"),
        ({"metadata": None}, ""),
        ({"metadata": {"name": "other"}}, ""),
    ],
)
async def test_a_patch_of_the_wrong_shape_is_refused(cluster, patch, manager):
    await put(cluster, "a")
    with pytest.raises(Invalid):
        await cluster.patch(kinds.CONFIG_MAP, "a", patch, namespace=SPACE, manager=manager)


async def test_apply_to_an_object_that_is_gone_does_not_make_another(cluster):
    patch = {"metadata": {"name": "a", "uid": "gone"}}
    with pytest.raises(Conflict):
        await cluster.patch(kinds.CONFIG_MAP, "a", patch, namespace=SPACE, manager="m")


async def test_an_object_with_two_owners_goes_with_the_second(cluster):
    owners = [await put(cluster, name) for name in ("a", "b")]
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": owner.metadata.name, "uid": owner.metadata.uid}
        for owner in owners
    ]
    await cluster.create(kinds.CONFIG_MAP, named("owned", ownerReferences=references), namespace=SPACE)
    await cluster.delete(kinds.CONFIG_MAP, "a", namespace=SPACE)
    assert await cluster.get(kinds.CONFIG_MAP, "owned", SPACE)
    await cluster.delete(kinds.CONFIG_MAP, "b", namespace=SPACE)
    with pytest.raises(NotFound):
        await cluster.get(kinds.CONFIG_MAP, "owned", SPACE)


async def test_an_owner_that_stays_keeps_nothing_of_what_it_owned(cluster):
    """As a Deployment, whose pods come and go."""
    owner = await put(cluster, "a")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": owner.metadata.uid}
    for number in range(3):
        await cluster.create(kinds.CONFIG_MAP, named(f"owned-{number}", ownerReferences=[reference]), namespace=SPACE)
        await cluster.delete(kinds.CONFIG_MAP, f"owned-{number}", namespace=SPACE)
    assert cluster._state._dependents == {}


async def test_what_is_handed_out_is_not_what_is_stored(cluster):
    body = {**named("a"), "data": {"x": "1"}}
    await cluster.create(kinds.CONFIG_MAP, body, namespace=SPACE)
    body["data"]["x"] = "2"
    raw = await cluster.get_raw(kinds.CONFIG_MAP, "a", SPACE)
    raw["data"]["x"] = "3"
    assert (await cluster.get_raw(kinds.CONFIG_MAP, "a", SPACE))["data"] == {"x": "1"}


async def test_cluster_scoped_objects_have_no_namespace(cluster):
    made = await cluster.create(kinds.NODE, named("n", namespace="ns"), namespace="ns")
    assert made.key == "n"
    assert (await cluster.get(kinds.NODE, "n")).metadata.namespace == ""


async def test_a_name_is_needed(cluster):
    with pytest.raises(Invalid, match="generateName"):
        await cluster.create(kinds.NODE, {"metadata": {}})


# --- patches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # the examples of RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(target, patch, result):
    assert merge_patch(target, patch) == result


@pytest.mark.parametrize(
    ("target", "operations", "result"),
    [  # after the examples of RFC 6902, appendix A
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "q"}], {"foo": ["bar", "q", "baz"]}),
        ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["a"]}], {"foo": ["bar", ["a"]]}),
        ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
        ({"foo": ["a", "b", "c"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["a", "c"]}),
        ({"baz": "q", "foo": "b"}, [{"op": "replace", "path": "/baz", "value": "n"}], {"baz": "n", "foo": "b"}),
        ({"foo": ["a", "b"]}, [{"op": "replace", "path": "/foo/0", "value": "n"}], {"foo": ["n", "b"]}),
        (
            {"foo": {"bar": "b", "waldo": "f"}, "qux": {"corge": "g"}},
            [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
            {"foo": {"bar": "b"}, "qux": {"corge": "g", "thud": "f"}},
        ),
        ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
        ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
        ({"/": 9}, [{"op": "remove", "path": "/~1"}], {}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
        ({"a": 1}, [{"op": "test", "path": "", "value": {"a": 1}}], {"a": 1}),
    ],
)
def test_json_patch(target, operations, result):
    assert json_patch(target, operations) == result


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/missing"},
        {"op": "replace", "path": "/missing", "value": 1},
        {"op": "add", "path": "/missing/deep", "value": 1},
        {"op": "add", "path": "/list/5", "value": 1},
        {"op": "add", "path": "/list/x", "value": 1},
        {"op": "remove", "path": "/list/-"},
        {"op": "remove", "path": "/list/3"},
        {"op": "add", "path": "/text/deep", "value": 1},
        {"op": "test", "path": "/text", "value": "other"},
        {"op": "test", "path": "/missing", "value": None},
        {"op": "copy", "from": "/missing", "path": "/x"},
        {"op": "rename", "path": "/text"},
        {"op": "remove", "path": "text"},
    ],
    ids=str,
)
def test_a_json_patch_that_cannot_be_applied_changes_nothing(operation):
    document = {"list": [1, 2], "text": "t"}
    with pytest.raises(PatchError):
        json_patch(document, [{"op": "add", "path": "/list/-", "value": 3}, operation])
    assert document == {"list": [1, 2], "text": "t"}


def test_apply_merges_objects_and_replaces_lists():
    assert apply_patch({"a": {"b": 1, "c": [1, 2]}}, {"a": {"c": [3], "d": None}}) == {
        "a": {"b": 1, "c": [3], "d": None}
    }


# --- selectors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "matching"),
    [
        ("", ["ab", "a", "none"]),
        ("app=x", ["ab", "a"]),
        ("app==x,tier=1", ["ab"]),
        ("app!=x", ["none"]),
        ("tier", ["ab"]),
        ("!tier", ["a", "none"]),
        ("app in (x, y)", ["ab", "a"]),
        ("tier notin (2,3)", ["ab", "a", "none"]),
        (" app = x , ! tier ", ["a"]),
        ("example.com/role=", ["a"]),
    ],
)
def test_label_selectors(selector, matching):
    labels = {"ab": {"app": "x", "tier": "1"}, "a": {"app": "x", "example.com/role": ""}, "none": None}
    predicate = label_predicate(selector)
    assert [name for name, value in labels.items() if predicate({"metadata": {"labels": value}})] == matching


@pytest.mark.parametrize("selector", ["app in x", "=x", "app=x=y", "app in (x", "!", "app x"])
def test_a_label_selector_that_cannot_be_read(selector):
    with pytest.raises(InvalidSelector, match="label selector"):
        label_predicate(selector)


@pytest.mark.parametrize(
    ("selector", "plural", "raw", "matches"),
    [
        ("spec.nodeName=", "pods", {"spec": {}}, True),
        ("spec.nodeName=n", "pods", {"spec": {"nodeName": "n"}}, True),
        ("spec.nodeName!=n,status.phase=Running", "pods", {"spec": {}, "status": {"phase": "Running"}}, True),
        ("spec.unschedulable=false", "nodes", {"spec": {}}, True),
        ("spec.unschedulable=true", "nodes", {"spec": {"unschedulable": True}}, True),
        ("spec.pool.name=p", "resourceslices", {"spec": {"pool": {"name": "q"}}}, False),
        ("metadata.name==a", "anything", {"metadata": {"name": "a"}}, True),
    ],
)
def test_field_selectors(selector, plural, raw, matches):
    assert field_predicate(selector, plural)(raw) is matches


@pytest.mark.parametrize("selector", ["spec.nodeName=n", "metadata.name", "metadata.uid=u"])
def test_a_field_that_cannot_be_selected_on(selector):
    with pytest.raises(InvalidSelector):
        field_predicate(selector, "configmaps")

"""Whatever happens in whatever order: a local copy ends up equal to the server, and a watch retells history exactly."""

import asyncio
from contextlib import aclosing, suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_dra.api import kinds
from hami_dra.kube.embedded import EmbeddedControlPlane
from hami_dra.kube.embedded.api_server.rules import merge_patch
from hami_dra.kube.protocol import ClusterError, Unavailable
from hami_dra.kube.reflector import Reflector
from tests.support.steered_cluster import SteeredCluster

SPACE = "ns"
FINALIZER = "hami.io/x"
NAMES = st.sampled_from("abcd")
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

WRITES = st.one_of(
    st.tuples(st.just("create"), NAMES, st.booleans(), st.sampled_from([None, *"abcd"])),
    st.tuples(st.just("change"), NAMES, st.sampled_from("123")),
    st.tuples(st.just("release"), NAMES),
    st.tuples(st.just("delete"), NAMES),
)
TROUBLE = st.one_of(
    st.just(("pause",)),
    st.just(("resume",)),
    st.tuples(st.just("close"), st.booleans(), st.booleans()),
    st.just(("forget",)),
    st.just(("bookmark",)),
    st.tuples(st.just("fail"), st.sampled_from(["list", "watch"]), st.integers(1, 5)),
    st.just(("relist",)),
    st.tuples(st.just("settle"), st.integers(1, 60)),
)


async def write(cluster, step):
    """The written object, or None: refused, or nothing to return."""
    match step:
        case ("create", name, held, owner):
            body = {"metadata": {"name": name, "finalizers": [FINALIZER] if held else []}}
            try:
                if owner is not None:
                    found = await cluster.get(kinds.CONFIG_MAP, owner, SPACE)
                    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": found.metadata.uid}
                    body["metadata"]["ownerReferences"] = [reference]
                return await cluster.create(kinds.CONFIG_MAP, body, namespace=SPACE)
            except ClusterError:
                return None
        case ("change", name, value):
            patch = {"data": {"x": value}}
        case ("release", name):
            patch = {"metadata": {"finalizers": None}}
        case ("delete", name):
            with suppress(ClusterError):
                await cluster.delete(kinds.CONFIG_MAP, name, namespace=SPACE)
            return None
    try:
        return await cluster.patch(kinds.CONFIG_MAP, name, patch, namespace=SPACE)
    except ClusterError:
        return None


async def contents(cluster):
    listing = await cluster.list(kinds.CONFIG_MAP)
    return {item.key: item.metadata.resource_version for item in listing.items}


class Replay:
    """Follows the reported changes and insists that each continues where the last one ended."""

    def __init__(self):
        self.objects = {}

    def changed(self, old, new):
        key = (old or new).key
        assert self.objects.get(key) == old
        assert old is None or new is None or old.metadata.uid == new.metadata.uid
        if old is not None and new is not None:
            assert int(old.metadata.resource_version) < int(new.metadata.resource_version)
        if new is None:
            del self.objects[key]
        else:
            self.objects[key] = new

    def synced(self):
        pass


async def turns(number):
    for _ in range(number):
        await asyncio.sleep(0)


async def trouble(cluster, reflector, step):
    match step:
        case ("pause",):
            cluster.pause_watches()
        case ("resume",):
            cluster.resume_watches()
        case ("close", error, drop):
            cluster.close_watches(Unavailable("broken off") if error else None, drop=drop)
        case ("forget",):
            cluster.forget_history()
        case ("bookmark",):
            cluster.send_bookmarks()
        case ("fail", verb, times):
            cluster.fail_next(Unavailable("away"), verb=verb, times=times)
        case ("relist",):
            with suppress(Unavailable):
                await reflector.relist()
        case ("settle", number):
            await turns(number)


STEPS = st.one_of(
    st.tuples(st.just("write"), WRITES, st.booleans()),
    st.tuples(st.just("write"), WRITES, st.booleans()),
    st.tuples(st.just("trouble"), TROUBLE),
)


@SETTINGS
@given(st.lists(STEPS, max_size=40))
def test_a_local_copy_ends_up_equal_to_the_server(steps):
    async def story():
        cluster, replay = SteeredCluster(), Replay()
        reflector = Reflector(cluster, kinds.CONFIG_MAP, replay, sleep=lambda _: asyncio.sleep(0))
        task = asyncio.create_task(reflector.run())
        for what, step, *observe in steps:
            if what == "trouble":
                await trouble(cluster, reflector, step)
                continue
            written = await write(cluster, step)
            if observe == [True] and written is not None:
                reflector.observe(written)
        cluster.clear_faults()
        cluster.resume_watches()
        await turns(300)
        assert {item.key: item.metadata.resource_version for item in reflector.store} == await contents(cluster)
        assert replay.objects == {item.key: item for item in reflector.store}
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()

    asyncio.run(story())


@SETTINGS
@given(st.lists(WRITES, max_size=40), st.data())
def test_a_watch_retells_what_happened_since_any_moment(steps, data):
    async def story():
        cluster = SteeredCluster()
        moments = [(await contents(cluster), "1")]
        for step in steps:
            await write(cluster, step)
            listing = await cluster.list(kinds.CONFIG_MAP)
            moments.append((await contents(cluster), listing.resource_version))
        then, since = data.draw(st.sampled_from(moments))
        state, versions = dict(then), []
        events = cluster.watch(kinds.CONFIG_MAP, resource_version=since)
        waiting = asyncio.ensure_future(anext(events))
        await turns(3)
        cluster.close_watches()
        async with aclosing(events):
            try:
                event = await waiting
                while True:
                    meta, key = event.object.metadata, event.object.key
                    versions.append(int(meta.resource_version))
                    assert (event.type == "ADDED") == (key not in state)
                    if event.type == "DELETED":
                        del state[key]
                    else:
                        state[key] = meta.resource_version
                    event = await anext(events)
            except StopAsyncIteration:
                pass
        assert state == await contents(cluster)
        assert versions == sorted(set(versions))
        assert all(version > int(since) for version in versions)

    asyncio.run(story())


@SETTINGS
@given(st.lists(WRITES, max_size=60))
def test_nothing_outlives_all_of_its_owners_but_what_a_finalizer_holds(steps):
    async def story():
        cluster = SteeredCluster()
        for step in steps:
            await write(cluster, step)
            items = (await cluster.list(kinds.CONFIG_MAP)).items
            uids = {item.metadata.uid for item in items}
            for item in items:
                owners = {owner.uid for owner in item.metadata.owner_references}
                assert not owners or owners & uids or item.metadata.deletion_timestamp
                assert item.metadata.deletion_timestamp is None or item.metadata.finalizers

    asyncio.run(story())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


def difference(old, new):
    """The merge patch from one object to another; null members cannot be made by one."""
    patch = {key: None for key in old if key not in new}
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            patch[key] = difference(old[key], value)
        elif key not in old or old[key] != value or type(old[key]) is not type(value):
            patch[key] = value
    return patch


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_makes_any_object_out_of_any_other(old, new):
    old, new = without_nulls(old), without_nulls(new)
    before = repr(old)
    assert merge_patch(old, difference(old, new)) == new
    assert repr(old) == before


# --- the small Kubernetes ------------------------------------------------------------------------------------------


def pod(name, template):
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]} if template else {}
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c"}], **claims}}


NODE = {
    "metadata": {"name": "n"},
    "status": {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "3"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
TEMPLATE = {
    "metadata": {"name": "t"},
    "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}},
}
PLANE_STEPS = st.one_of(
    st.tuples(st.just("pod"), NAMES, st.booleans()),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("finish"), NAMES),
    st.tuples(st.just("allocate"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("conflict"), st.sampled_from(["pods", "resourceclaims"])),
    st.just(("settle",)),
)


async def plane_step(cluster, plane, step):
    match step:
        case ("pod", name, template):
            await cluster.create(kinds.POD, pod(name, template), namespace=SPACE)
        case ("delete", name):
            await cluster.delete(kinds.POD, name, namespace=SPACE)
        case ("finish", name):
            done = {"status": {"phase": "Succeeded"}}
            await cluster.patch(kinds.POD, name, done, namespace=SPACE, subresource="status")
        case ("allocate", index, protect):
            claims = (await cluster.list(kinds.RESOURCE_CLAIM)).items
            if index < len(claims):
                await allocate(cluster, claims[index], protect)
        case ("conflict", plural):
            kind = next(kind for kind in (kinds.POD, kinds.RESOURCE_CLAIM) if kind.plural == plural)
            cluster.fail_next(Unavailable("away"), verb="patch", kind=kind, subresource="status")
        case ("settle",):
            await plane.settled()


async def allocate(cluster, claim, protect):
    name = claim.metadata.name
    if protect:
        finalizers = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
        await cluster.patch(kinds.RESOURCE_CLAIM, name, finalizers, namespace=SPACE)
    field = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    allocation = {
        "devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": name}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }
    patch = {"status": {"allocation": allocation}}
    await cluster.patch(kinds.RESOURCE_CLAIM, name, patch, namespace=SPACE, subresource="status")


async def calm(cluster, plane):
    """Settled, retries of failed requests included."""
    await plane.settled()
    while plane.retrying:
        await asyncio.sleep(0.01)
        await plane.settled()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PLANE_STEPS, max_size=25))
def test_claims_follow_their_pods(steps):
    async def story():
        cluster = SteeredCluster()
        await cluster.create(kinds.NODE, NODE)
        await cluster.create(kinds.RESOURCE_CLAIM_TEMPLATE, TEMPLATE, namespace=SPACE)
        async with EmbeddedControlPlane(cluster) as plane:
            for step in steps:
                try:
                    await plane_step(cluster, plane, step)
                except ClusterError:
                    continue
            await calm(cluster, plane)
            check(
                (await cluster.list(kinds.POD)).items,
                (await cluster.list(kinds.RESOURCE_CLAIM)).items,
            )

    asyncio.run(story())


def check(pods, claims):
    alive = {pod.metadata.uid: pod for pod in pods if pod.status.phase != "Succeeded"}
    # every wish of a living pod has exactly one claim, and no claim is left of a finished or deleted pod
    claiming = [pod for pod in alive.values() if pod.spec.resource_claims]
    named = [pod.status.resource_claim_statuses[0].resource_claim_name for pod in claiming]
    assert sorted(named) == sorted(claim.metadata.name for claim in claims)
    for claim in claims:
        (owner,) = claim.metadata.owner_references
        assert owner.uid in alive
        assert {consumer.uid for consumer in claim.status.reserved_for} <= {owner.uid}
        if claim.status.allocation and len(alive) <= 3:
            assert alive[owner.uid].status.phase == "Running"
            assert claim.status.reserved_for
    bound = [pod for pod in alive.values() if pod.spec.node_name]
    assert len(bound) <= 3
    assert all(pod.status.phase == "Running" for pod in bound)

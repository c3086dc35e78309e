"""HttpCluster against a real API server: the same contract as the memory cluster, and what only HTTP can show."""

import asyncio
import secrets
from contextlib import aclosing, suppress

import msgspec
import pytest

from hami_dra.api import kinds
from hami_dra.kube.http import connect
from hami_dra.kube.lease import LeaderElector
from hami_dra.kube.protocol import ClusterError, Forbidden, Gone, NotFound
from hami_dra.kube.reflector import Reflector
from hami_dra.kube.requirements import require_version
from hami_dra.kube.transport import Timeouts
from tests.unit.kube.test_contract import ClusterContract, claim, config_map


class Recorder:
    def __init__(self):
        self.changes = []
        self.lists = 0
        self.news = asyncio.Event()

    def changed(self, old, new):
        self.changes.append((old and old.metadata.name, new and new.metadata.name))
        self.news.set()

    def synced(self):
        self.lists += 1
        self.news.set()

    async def until(self, done):
        async with asyncio.timeout(60):
            while not done():
                self.news.clear()
                await self.news.wait()


@pytest.fixture
async def cluster(control_plane):
    cluster = connect(str(control_plane.admin_kubeconfig))
    yield cluster
    await cluster.close()


@pytest.fixture
async def space(cluster):
    name = f"contract-{secrets.token_hex(4)}"
    await cluster.create(kinds.NAMESPACE, {"metadata": {"name": name}})
    yield name
    for kind in (kinds.RESOURCE_CLAIM, kinds.CONFIG_MAP, kinds.POD):
        for item in (await cluster.list(kind, namespace=name)).items:
            with suppress(ClusterError):
                await cluster.patch(kind, item.metadata.name, {"metadata": {"finalizers": None}}, namespace=name)
    await cluster.delete(kinds.NAMESPACE, name)


class TestHttpCluster(ClusterContract):
    pass


async def test_it_is_new_enough(cluster):
    await require_version(cluster)


async def test_a_list_of_several_pages_is_one_list(cluster, space):
    count = 520
    slots = asyncio.Semaphore(16)

    async def make(number):
        async with slots:
            await cluster.create(kinds.CONFIG_MAP, config_map(f"map-{number:04}"), namespace=space)

    await asyncio.gather(*(make(number) for number in range(count)))
    listing = await cluster.list(kinds.CONFIG_MAP, namespace=space)
    names = [item.metadata.name for item in listing.items if item.metadata.name.startswith("map-")]
    assert names == [f"map-{number:04}" for number in range(count)]


@pytest.mark.kubernetes("1.37.1", "1.36.4")
async def test_a_streamed_list_is_a_list_and_the_watch_after_it(cluster, space):
    made = [config_map(name, labels={"on": on}) for name, on in (("b", "yes"), ("c", "no"), ("a", "yes"))]
    for body in made:
        await cluster.create(kinds.CONFIG_MAP, body, namespace=space)
    for scope in ({"namespace": space, "label_selector": "on=yes"}, {"namespace": space}, {}):
        listed = await cluster.list(kinds.CONFIG_MAP, **scope)
        streamed, events = await cluster.watch_list(kinds.CONFIG_MAP, **scope)
        async with aclosing(events):
            # namespaces of earlier tests may end between the two
            both = {item.metadata.uid for item in listed.items} & {item.metadata.uid for item in streamed.items}
            first, second = ([item for item in each.items if item.metadata.uid in both] for each in (listed, streamed))
            assert second == first  # in the same order
            assert {"a", "b"} <= {item.metadata.name for item in second}
            assert int(streamed.resource_version) >= int(listed.resource_version)
            changed = {"data": {"x": secrets.token_hex(4)}}
            news = await cluster.patch(kinds.CONFIG_MAP, "a", changed, namespace=space)
            async for event in events:
                if event.object.metadata.name == "a":
                    break
            assert event.object.metadata.resource_version == news.metadata.resource_version
    unserved = msgspec.structs.replace(kinds.CONFIG_MAP, version="v9")
    with pytest.raises(NotFound):
        await cluster.watch_list(unserved, namespace=space)


async def test_a_bookmark_is_a_place_to_go_on_from(control_plane, space):
    # the API server sends one shortly before a watch ends by itself, and about once a minute
    cluster = connect(str(control_plane.admin_kubeconfig), timeouts=Timeouts(watch=5))
    since = (await cluster.list(kinds.CONFIG_MAP, namespace=space)).resource_version
    bookmark = None
    async with asyncio.timeout(150):
        while bookmark is None:  # a busy server may end a watch without one
            async with aclosing(cluster.watch(kinds.CONFIG_MAP, resource_version=since, namespace=space)) as events:
                async for event in events:
                    if event.type == "BOOKMARK":
                        bookmark = event.object.metadata.resource_version
                        break
    assert int(bookmark) >= int(since)
    made = await cluster.create(kinds.CONFIG_MAP, config_map("a"), namespace=space)
    async with aclosing(cluster.watch(kinds.CONFIG_MAP, resource_version=bookmark, namespace=space)) as events:
        assert (await anext(events)).object.metadata.uid == made.metadata.uid
    await cluster.close()


async def test_a_missing_right_is_forbidden_in_the_servers_words(control_plane, space):
    nobody = connect(str(control_plane.kubeconfig_for_user("nobody")))
    with pytest.raises(Forbidden, match=r'User "nobody" cannot list resource "resourceclaims"'):
        await nobody.list(kinds.RESOURCE_CLAIM, namespace=space)
    await nobody.close()
    stranger = connect(str(control_plane.kubeconfig_for("not-a-token")))
    with pytest.raises(Forbidden) as caught:
        await stranger.list(kinds.RESOURCE_CLAIM, namespace=space)
    assert "not-a-token" not in str(caught.value)
    await stranger.close()


async def test_a_reflector_stays_true_over_a_restart_of_the_api_server(make_control_plane):
    plane = make_control_plane()
    cluster = connect(str(plane.admin_kubeconfig))
    recorder = Recorder()
    reflector = Reflector(cluster, kinds.RESOURCE_CLAIM, recorder, scope={"namespace": "default"})
    task = asyncio.create_task(reflector.run())
    try:
        await recorder.until(lambda: recorder.lists == 1)
        await cluster.create(kinds.RESOURCE_CLAIM, claim("a"), namespace="default")
        await recorder.until(lambda: (None, "a") in recorder.changes)
        await asyncio.to_thread(plane.restart_apiserver)
        await cluster.create(kinds.RESOURCE_CLAIM, claim("b"), namespace="default")
        await cluster.delete(kinds.RESOURCE_CLAIM, "a", namespace="default")
        # what happened before the restart is no longer in the server's memory
        with pytest.raises(Gone):
            async with aclosing(cluster.watch(kinds.CONFIG_MAP, resource_version="1")) as events:
                await anext(events)
        await recorder.until(lambda: ("a", None) in recorder.changes)
        assert sorted(reflector.store.keys()) == ["default/b"]
        assert recorder.changes == [(None, "a"), (None, "b"), ("a", None)]
    finally:
        task.cancel()
        await asyncio.wait([task])
        await cluster.close()


async def test_two_candidates_on_a_real_lease(control_plane, space):
    clusters = [connect(str(control_plane.admin_kubeconfig)) for _ in range(2)]
    first, second = (LeaderElector(cluster, space, "lease") for cluster in clusters)
    leading = asyncio.Queue()

    async def run(elector):
        async def lead():
            await leading.put(elector)
            await asyncio.Event().wait()

        await elector.run(lead)

    tasks = [asyncio.create_task(run(first))]
    async with asyncio.timeout(60):
        assert await leading.get() is first
        tasks.append(asyncio.create_task(run(second)))
        while not second.leader:  # noqa: ASYNC110 (the elector tells nobody when it has read the lease)
            await asyncio.sleep(0.05)
        assert second.leader == first.identity
        assert not second.holds()
        tasks[0].cancel()
        assert await leading.get() is second
    record = (await clusters[1].get(kinds.LEASE, "lease", space)).spec
    assert (record.holder_identity, record.lease_transitions) == (second.identity, 1)
    assert not first.holds()
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert (await clusters[0].get(kinds.LEASE, "lease", space)).spec.holder_identity == ""
    for cluster in clusters:
        await cluster.close()

"""Reflector, store and back-off: the local copy stays true whatever the watch does."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from hami_dra.api import kinds
from hami_dra.api.core import ConfigMap
from hami_dra.api.meta import ObjectMeta
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.protocol import Forbidden, Interrupted, Listing, Unavailable, WatchEvent
from hami_dra.kube.reflector import Reflector
from hami_dra.kube.store import Store
from tests.support.steered_cluster import SteeredCluster

SPACE = "ns"


class Recorder:
    def __init__(self):
        self.changes = []
        self.lists = 0

    def changed(self, old, new):
        self.changes.append((old and old.data.get("x", ""), new and new.data.get("x", "")))

    def synced(self):
        self.lists += 1

    def take(self):
        changes, self.changes = self.changes, []
        return changes


class Naps:
    """Stands in for sleep: remembers how long, and takes no time."""

    def __init__(self):
        self.seconds = []

    async def __call__(self, seconds):
        self.seconds.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def cluster():
    return SteeredCluster()


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def naps():
    return Naps()


@pytest.fixture
def reflector(cluster, recorder, naps):
    return Reflector(cluster, kinds.CONFIG_MAP, recorder, sleep=naps, backoff=Backoff(uniform=lambda: 0.5))


async def settle(rounds=200):
    for _ in range(rounds):
        await asyncio.sleep(0)


@asynccontextmanager
async def running(reflector):
    task = asyncio.create_task(reflector.run())
    await settle()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def put(cluster, name, x="1"):
    body = {"metadata": {"name": name}, "data": {"x": x}}
    return await cluster.create(kinds.CONFIG_MAP, body, namespace=SPACE)


async def change(cluster, name, x):
    return await cluster.patch(kinds.CONFIG_MAP, name, {"data": {"x": x}}, namespace=SPACE)


async def remove(cluster, name):
    await cluster.delete(kinds.CONFIG_MAP, name, namespace=SPACE)


async def test_list_then_watch(cluster, recorder, reflector):
    await put(cluster, "a")
    assert not reflector.is_synced
    async with running(reflector):
        await reflector.wait_synced()
        assert recorder.lists == 1
        assert recorder.take() == [(None, "1")]
        await put(cluster, "b", "2")
        await change(cluster, "a", "3")
        await remove(cluster, "b")
        await settle()
        assert recorder.take() == [(None, "2"), ("1", "3"), ("2", None)]
    assert sorted(reflector.store.keys()) == ["ns/a"]
    assert cluster.requests["list configmaps"] == 1


async def test_a_closed_watch_is_resumed_without_a_list(cluster, recorder, reflector, naps):
    async with running(reflector):
        await put(cluster, "a")
        await settle()
        cluster.close_watches()
        await put(cluster, "b", "2")
        await settle()
        assert recorder.take() == [(None, "1"), (None, "2")]
    assert cluster.requests["list configmaps"] == 1
    assert cluster.requests["watch configmaps"] == 2
    assert naps.seconds == []


async def test_a_watch_that_is_closed_again_and_again_does_not_spin(cluster, reflector, naps):
    async with running(reflector):
        for _ in range(5):
            cluster.close_watches()
            await settle()
    assert naps.seconds == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2])


async def test_a_bookmark_is_where_it_goes_on(cluster, recorder, reflector):
    async with running(reflector):
        await put(cluster, "a")
        await cluster.create(kinds.NODE, {"metadata": {"name": "n"}})
        cluster.send_bookmarks()
        await settle()
        cluster.forget_history()
        cluster.close_watches()
        await change(cluster, "a", "2")
        await settle()
        assert recorder.changes == [(None, "1"), ("1", "2")]
    assert cluster.requests["list configmaps"] == 1


async def test_gone_leads_to_a_list_that_reports_only_differences(cluster, recorder, reflector):
    for name in ("same", "changed", "gone", "again"):
        await put(cluster, name)
    async with running(reflector):
        recorder.take()
        cluster.pause_watches()
        await change(cluster, "changed", "2")
        await remove(cluster, "gone")
        await remove(cluster, "again")
        await put(cluster, "again", "3")
        await put(cluster, "new", "4")
        cluster.forget_history()
        cluster.close_watches(drop=True)
        cluster.resume_watches()
        await settle()
        assert recorder.lists == 2
        assert sorted(recorder.take(), key=str) == [
            ("1", "2"),
            ("1", None),
            ("1", None),
            (None, "3"),
            (None, "4"),
        ]


async def test_an_unreachable_server_is_tried_with_growing_pauses(cluster, recorder, reflector, naps):
    cluster.fail_next(Unavailable("away"), verb="list", times=8)
    problems = []

    async def look(request):
        problems.append(reflector.problem)

    cluster.hooks.append(look)
    async with running(reflector):
        assert problems == ["", *["list configmaps: away"] * 8, ""]
        assert naps.seconds == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15])
        assert reflector.problem == ""
        assert reflector.is_synced


async def test_pauses_start_small_again_after_a_success(cluster, recorder, reflector, naps):
    cluster.fail_next(Unavailable("away"), verb="list", times=3)
    async with running(reflector):
        naps.seconds.clear()
        cluster.close_watches(Unavailable("broken off"))
        await put(cluster, "a")
        await settle()
        assert naps.seconds == pytest.approx([0.2])
        assert recorder.take() == [(None, "1")]


async def test_a_watch_that_fails_for_good_is_replaced_by_a_list(cluster, recorder, reflector):
    """As after etcd was restored: the server does not know the version any more, and says so only by not answering."""
    cluster.fail_next(Unavailable("too large resource version"), verb="watch", times=3)
    async with running(reflector):
        await put(cluster, "a")
        await settle()
        assert recorder.changes == [(None, "1")]
    assert cluster.requests["list configmaps"] == 2


async def test_a_missing_right_is_told_and_tried_again(cluster, reflector):
    cluster.fail_next(Forbidden("cannot list configmaps"), verb="list", times=2)
    async with running(reflector):
        assert reflector.is_synced


async def test_a_reader_need_not_wait_for_what_it_may_not_read(cluster, recorder, caplog):
    denied = []
    reflector = Reflector(
        cluster, kinds.CONFIG_MAP, recorder, on_denied=denied.append, sleep=lambda _seconds: hold.wait()
    )
    hold = asyncio.Event()
    cluster.fail_next(Forbidden("cannot list configmaps"), verb="list")
    task = asyncio.create_task(reflector.run())
    await reflector.wait_answered()
    assert (reflector.is_denied, reflector.is_synced, [str(each) for each in denied]) == (
        True,
        False,
        ["cannot list configmaps"],
    )
    assert [record.levelname for record in caplog.records if "trying again" in record.getMessage()] == []
    hold.set()  # the right is given
    await reflector.wait_synced()
    assert not reflector.is_denied
    task.cancel()


async def test_an_error_of_the_handler_over_one_object_is_logged_and_the_others_are_reported(cluster, caplog):
    class Faulty(Recorder):
        def changed(self, old, new):
            if new.metadata.name == "a":
                raise LookupError("a bug")
            self.changes.append(new.metadata.name)

    recorder = Faulty()
    await put(cluster, "a")
    await put(cluster, "b")
    async with running(Reflector(cluster, kinds.CONFIG_MAP, recorder)):
        await settle()
        await put(cluster, "c")
        await settle()
    assert recorder.changes == ["b", "c"]
    assert [record.getMessage() for record in caplog.records if "ns/a" in record.getMessage()]


async def test_scope(cluster):
    recorder = Recorder()
    reflector = Reflector(cluster, kinds.CONFIG_MAP, recorder, scope={"namespace": SPACE, "label_selector": "on"})
    async with running(reflector):
        await put(cluster, "a")
        await cluster.create(kinds.CONFIG_MAP, {"metadata": {"name": "b", "namespace": "other", "labels": {"on": ""}}})
        await cluster.patch(kinds.CONFIG_MAP, "a", {"metadata": {"labels": {"on": ""}}}, namespace=SPACE)
        await settle()
        assert list(reflector.store.keys()) == ["ns/a"]
        await cluster.patch(kinds.CONFIG_MAP, "a", {"metadata": {"labels": {"on": None}}}, namespace=SPACE)
        await settle()
        assert list(reflector.store.keys()) == []


# --- misfits -------------------------------------------------------------------------------------------------------


def misfit(name):
    return {"metadata": {"name": name, "namespace": SPACE}, "data": [1]}


async def test_a_misfit_is_reported_and_skipped_in_lists_and_watches(cluster, recorder):
    broken = []
    await put(cluster, "good")
    cluster.put_raw(kinds.CONFIG_MAP, misfit("bad"))
    reflector = Reflector(cluster, kinds.CONFIG_MAP, recorder, on_broken=broken.append)
    async with running(reflector):
        assert recorder.take() == [(None, "1")]
        assert [item.object.key for item in broken] == ["ns/bad"]
        cluster.put_raw(kinds.CONFIG_MAP, misfit("worse"))
        await change(cluster, "good", "2")
        await settle()
        assert recorder.take() == [("1", "2")]
        assert [item.object.key for item in broken] == ["ns/bad", "ns/worse"]
        assert "data" in broken[-1].problem


async def test_a_known_object_that_breaks_keeps_its_last_good_version_until_it_is_deleted(cluster, recorder):
    broken = []
    good = await put(cluster, "a")
    reflector = Reflector(cluster, kinds.CONFIG_MAP, recorder, on_broken=broken.append)
    async with running(reflector):
        raw = misfit("a")
        raw["metadata"]["uid"] = good.metadata.uid
        cluster.put_raw(kinds.CONFIG_MAP, raw)
        await settle()
        assert reflector.store.get("ns/a").data == {"x": "1"}
        await reflector.relist()
        assert reflector.store.get("ns/a").data == {"x": "1"}
        assert len(broken) == 1  # the list brought no other version
        await remove(cluster, "a")
        await settle()
        assert recorder.take() == [(None, "1"), ("1", None)]


# --- own writes ----------------------------------------------------------------------------------------------------


async def test_an_observed_write_is_reported_at_once_and_only_once(cluster, recorder, reflector):
    await put(cluster, "a")
    async with running(reflector):
        recorder.take()
        cluster.pause_watches()
        reflector.observe(await change(cluster, "a", "2"))
        reflector.observe(await put(cluster, "b", "3"))
        assert recorder.take() == [("1", "2"), (None, "3")]
        cluster.resume_watches()
        await settle()
        assert recorder.take() == []


async def test_older_news_about_an_observed_object_is_ignored(cluster, recorder, reflector):
    await put(cluster, "a")
    async with running(reflector):
        recorder.take()
        cluster.pause_watches()
        await change(cluster, "a", "2")
        reflector.observe(await change(cluster, "a", "3"))
        await change(cluster, "a", "4")
        assert recorder.take() == [("1", "3")]
        cluster.resume_watches()
        await settle()
        assert recorder.take() == [("3", "4")]


async def test_an_old_answer_does_not_bring_a_deleted_object_back(cluster, recorder, reflector):
    await put(cluster, "a")
    async with running(reflector):
        late = await change(cluster, "a", "2")
        await remove(cluster, "a")
        await settle()
        recorder.take()
        reflector.observe(late)
        assert recorder.take() == []
        assert reflector.store.get("ns/a") is None


async def test_a_write_that_removed_the_last_finalizer_does_not_keep_the_object(cluster, recorder, reflector):
    body = {"metadata": {"name": "a", "finalizers": ["hami.io/x"]}, "data": {"x": "1"}}
    await cluster.create(kinds.CONFIG_MAP, body, namespace=SPACE)
    await remove(cluster, "a")
    async with running(reflector):
        patch = {"metadata": {"finalizers": None}}
        reflector.observe(await cluster.patch(kinds.CONFIG_MAP, "a", patch, namespace=SPACE))
        await settle()
        assert len(reflector.store) == 0


async def test_a_recreated_object_is_two_changes(cluster, recorder, reflector):
    await put(cluster, "a")
    async with running(reflector):
        recorder.take()
        cluster.pause_watches()
        await remove(cluster, "a")
        reflector.observe(await put(cluster, "a", "2"))
        assert recorder.take() == [("1", None), (None, "2")]
        cluster.resume_watches()
        await settle()
        assert recorder.take() == []


# --- relist --------------------------------------------------------------------------------------------------------


async def test_a_fresh_list_overtakes_a_slow_watch(cluster, recorder, reflector):
    await put(cluster, "a")
    async with running(reflector):
        recorder.take()
        cluster.pause_watches()
        await change(cluster, "a", "2")
        await put(cluster, "b", "3")
        await remove(cluster, "b")
        await put(cluster, "c", "4")
        await reflector.relist()
        assert recorder.take() == [("1", "2"), (None, "4")]
        assert recorder.lists == 2
        cluster.resume_watches()
        await settle()
        assert recorder.take() == [], "what the list had told already is not told again"
        await remove(cluster, "c")
        await settle()
        assert recorder.take() == [("4", None)]


async def test_a_fresh_list_that_fails_changes_nothing(cluster, recorder, reflector):
    await put(cluster, "a")
    async with running(reflector):
        recorder.take()
        cluster.fail_next(Unavailable("away"), verb="list")
        with pytest.raises(Unavailable):
            await reflector.relist()
        assert recorder.take() == []
        assert len(reflector.store) == 1


async def test_a_list_keeps_an_own_write_that_it_is_too_old_to_know(cluster, recorder, reflector):
    async with running(reflector):
        cluster.pause_watches()
        real_list = cluster.list

        async def stale_list(kind, **scope):
            listing = await real_list(kind, **scope)
            reflector.observe(await put(cluster, "a"))
            return listing

        cluster.list = stale_list
        await reflector.relist()
        assert recorder.take() == [(None, "1")]
        assert "ns/a" in reflector.store


class Restored:
    """A server whose etcd is restored, once a watch has ended: then `later` is there in place of two objects of version 100.
    `error`: what the watch ends with.
    """

    def __init__(self, *later, version, error=None, refuses_the_future=False):
        self.version = version
        self.lists = [Listing((item("a", 100, "1"), item("b", 90, "1")), "100"), Listing(later, version)]
        self.restored = asyncio.Event()
        self._error = error
        self._refuses_the_future = refuses_the_future

    async def list(self, kind, **scope):
        return self.lists.pop(0)

    async def resource_version(self, kind, **scope):
        return self.version

    async def watch(self, kind, *, resource_version, **scope):
        if len(self.lists) == 1:
            await self.restored.wait()
            if self._refuses_the_future:
                raise Unavailable("Too large resource version")
            if self._error is not None:
                error, self._error = self._error, None
                raise error
        elif int(resource_version) <= 60:
            yield WatchEvent("MODIFIED", item("c", 61, "2"))
            await asyncio.Event().wait()
        else:
            await asyncio.Event().wait()


def item(name, version, x):
    return ConfigMap(metadata=ObjectMeta(name=name, uid=f"uid-{name}", resource_version=str(version)), data={"x": x})


BEFORE = (item("a", 50, "0"), item("c", 40, "1"))


async def test_a_server_that_lost_its_past_is_believed(recorder, naps):
    server = Restored(*BEFORE, version="60", refuses_the_future=True)
    server.restored.set()
    reflector = Reflector(server, kinds.CONFIG_MAP, recorder, sleep=naps)
    async with running(reflector):
        assert recorder.changes == [(None, "1"), (None, "1"), ("1", None), ("1", "0"), (None, "1"), ("1", "2")]
        assert sorted(reflector.store.keys()) == ["a", "c"]


@pytest.mark.parametrize(
    ("version", "error"),
    [
        pytest.param("60", None, id="revisions go back, and the watch lasted its time"),
        pytest.param("60", Unavailable("stopped"), id="revisions go back"),
        pytest.param("105", Unavailable("stopped"), id="revisions are passed again"),
        pytest.param("1000000060", Interrupted("stopped"), id="revisions are skipped"),
    ],
)
async def test_after_a_watch_a_list_shows_that_the_server_went_back(recorder, naps, version, error, caplog):
    """A watch from the version before would say nothing: a server that has not reached it waits."""
    times = []
    server = Restored(*BEFORE, version=version, error=error)
    reflector = Reflector(server, kinds.CONFIG_MAP, recorder, sleep=naps, on_rewound=lambda: times.append(1))
    async with running(reflector):
        assert reflector.is_current
        recorder.take()
        server.restored.set()
        await settle()
        assert recorder.take()[:3] == [("1", None), ("1", "0"), (None, "1")]
        assert times == [1]
        assert reflector.is_current
    assert "configmaps: the API server has gone back to a past state" in caplog.text


@pytest.mark.parametrize(
    "known", [(item("a", 100, "1"), item("b", 90, "1")), (item("a", 100, "1"), item("n", 105, "1"))]
)
async def test_a_list_after_a_watch_is_not_taken_for_the_past(recorder, naps, known):
    server = Restored(*known, version="110", error=Interrupted("stopped"))
    reflector = Reflector(server, kinds.CONFIG_MAP, recorder, sleep=naps, on_rewound=pytest.fail)
    async with running(reflector):
        server.restored.set()
        await settle()
        assert reflector.lists == 2


async def test_after_a_watch_that_lasted_its_time_nothing_is_listed(cluster, recorder, naps):
    """The version is compared instead: the next watch continues where the last one ended."""
    reflector = Reflector(cluster, kinds.CONFIG_MAP, recorder, sleep=naps, on_rewound=pytest.fail)
    async with running(reflector):
        await put(cluster, "a")
        await settle()
        cluster.close_watches()
        await put(cluster, "b", "2")
        await settle()
        assert recorder.take() == [(None, "1"), (None, "2")]
        assert reflector.lists == 1
        assert reflector.is_current
        cluster.fail_next(Unavailable("away"), verb="list")
        cluster.close_watches()
        await settle()
        assert reflector.lists == 2, "no answer: whether it went back is seen by a list"


async def test_skipped_revisions_do_not_hide_older_objects(cluster, recorder, reflector):
    """Without anybody to tell: the watch is Gone, and the list has older versions than the store."""
    server = Restored(item("a", 50, "0"), version="1000000060")
    reflector = Reflector(server, kinds.CONFIG_MAP, recorder)
    await reflector.relist()
    recorder.take()
    await reflector.relist()
    assert recorder.take() == [("1", None), ("1", "0")]


async def test_told_to_it_lists_again_though_its_watch_is_silent(recorder, naps):
    server = Restored(*BEFORE, version="60")
    reflector = Reflector(server, kinds.CONFIG_MAP, recorder, sleep=naps)
    async with running(reflector) as task:
        recorder.take()
        reflector.list_again()
        assert not reflector.is_current
        await asyncio.wait_for(reflector.wait_current(), 5)
        assert recorder.take()[:3] == [("1", None), ("1", "0"), (None, "1")]
        await settle()
        assert not task.done()
        assert reflector.is_current


# --- store and back-off --------------------------------------------------------------------------------------------


def test_a_store_finds_by_index():
    store = Store(x=lambda item: [item.data["x"]], both=lambda item: [item.metadata.name, item.data["x"]])
    store.put(item("a", 1, "1"))
    store.put(item("b", 1, "1"))
    store.put(item("c", 1, "2"))
    assert [found.key for found in store.find("x", "1")] == ["a", "b"]
    store.put(item("a", 2, "2"))
    assert [found.key for found in store.find("x", "1")] == ["b"]
    assert [found.key for found in store.find("x", "2")] == ["c", "a"]
    assert [found.key for found in store.find("both", "a")] == ["a"]
    store.remove("c")
    store.remove("never there")
    assert [found.key for found in store.find("x", "2")] == ["a"]
    assert store.find("x", "nothing") == []
    assert len(store) == 2
    assert "a" in store
    assert [found.key for found in store.values()] == ["a", "b"]


def test_back_off_grows_to_its_limit_and_is_jittered():
    backoff = Backoff(first=1, most=5, uniform=lambda: 0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1, 2, 2.5, 2.5]
    backoff.reset()
    assert backoff.next() == 0.5
    backoff.uniform = lambda: 0.999
    assert backoff.next() == pytest.approx(2 * 1.499)


def test_an_index_finds_what_is_there_however_often_it_changes():
    store = Store(label=lambda item: item.metadata.labels.values())

    def put(name, *values):
        labels = {str(number): value for number, value in enumerate(values)}
        store.put(ConfigMap(metadata=ObjectMeta(name=name, labels=labels)))

    def names_of(value):
        return [item.metadata.name for item in store.find("label", value)]

    put("one", "x", "x")
    assert names_of("x") == ["one"]
    put("two", "x", "y")
    assert (names_of("x"), names_of("y")) == (["one", "two"], ["two"])
    put("two", "y")
    assert (names_of("x"), names_of("y")) == (["one"], ["two"])
    put("one", "y")
    assert (names_of("x"), names_of("y")) == ([], ["two", "one"])
    assert not store.has("label", "x")
    store.remove("two")
    assert names_of("y") == ["one"]
    store.remove("one")
    assert not store.has("label", "y")

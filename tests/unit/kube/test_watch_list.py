"""Streamed lists (WatchList): all objects as the first events of a watch, and what takes their place."""

import asyncio
import json
from contextlib import aclosing

import pytest

from hami_dra.api import kinds
from hami_dra.kube.backoff import Backoff
from hami_dra.kube.credentials import Access, FixedIdentity
from hami_dra.kube.decoding import whole_lines
from hami_dra.kube.http import HttpCluster
from hami_dra.kube.http_watch import InitialEvents
from hami_dra.kube.protocol import Forbidden, Gone, Invalid, NotFound, Unavailable
from hami_dra.kube.reflector import Reflector
from hami_dra.kube.transport import Timeouts
from tests.support.scripted_server import Answer, event, status, stream

REFUSED = status(
    422, "Invalid", "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
)


async def never():
    await asyncio.Event().wait()


def end(version, marked="true"):
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    metadata["annotations"] = {"k8s.io/initial-events-end": marked}
    item = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"containers": None}, "status": {}}
    return json.dumps({"type": "BOOKMARK", "object": item}).encode() + b"\n"


def page(*names, version="9"):
    items = [{"metadata": {"name": name, "namespace": "ns", "resourceVersion": "5"}} for name in names]
    return Answer({"metadata": {"resourceVersion": version}, "items": items})


def error(code, message="the server says why"):
    return json.dumps({"type": "ERROR", "object": {"code": code, "message": message}}).encode() + b"\n"


def connected(server, **timeouts):
    return HttpCluster(Access(server.url, FixedIdentity("")), timeouts=Timeouts(**timeouts))


@pytest.fixture
async def cluster(server):
    cluster = connected(server)
    yield cluster
    await cluster.close()


def names(listing):
    return [item.metadata.name for item in listing.items]


def asked(server):
    """Of each request: a streamed list, a watch, or a page."""
    queries = [query for _, _, query, _, _ in server.seen]
    return ["stream" if "sendInitialEvents" in each else "watch" if "watch" in each else "page" for each in queries]


# --- one request for both ------------------------------------------------------------------------


async def test_all_objects_and_then_what_happens_to_them(server, cluster):
    chunks = [event("ADDED", "a", 3) + event("ADDED", "b", 1), event("ADDED", "c", 2) + end(7)]
    server.will(stream(*chunks, event("MODIFIED", "a", 8), end(9, ""), event("DELETED", "b", 10)))
    listing, events = await cluster.watch_list(kinds.POD, namespace="ns", label_selector="on=yes")
    assert (names(listing), listing.resource_version, listing.broken) == (["a", "b", "c"], "7", ())
    async with aclosing(events):
        news = [(each.type, each.object.metadata.name) async for each in limited(events, 3)]
    assert news == [("MODIFIED", "a"), ("BOOKMARK", ""), ("DELETED", "b")]
    ((method, path, query, _, _),) = server.seen
    assert (method, path) == ("GET", "/api/v1/namespaces/ns/pods")
    assert 300 <= int(query.pop("timeoutSeconds")) <= 600
    assert query == {
        "watch": "1",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
        "labelSelector": "on=yes",
    }


async def limited(events, count):
    for _ in range(count):
        yield await anext(events)


async def test_the_news_in_the_chunk_of_the_last_object_are_not_lost(server, cluster):
    server.will(stream(event("ADDED", "a", 3) + end(7) + event("ADDED", "b", 8), then=never))
    listing, events = await cluster.watch_list(kinds.POD)
    async with aclosing(events):
        assert (await anext(events)).object.metadata.name == "b"
    assert names(listing) == ["a"]


def test_an_object_that_changes_meanwhile_is_there_once_in_its_last_state():
    lines = [event("ADDED", "a", 1), event("ADDED", "b", 2), event("ADDED", "a", 1), event("MODIFIED", "b", 4)]
    lines += [event("ADDED", "c", 3), event("DELETED", "c", 5), event("ADDED", "a", 6), end(6)]
    listing, rest = InitialEvents(kinds.POD).feed(b"".join(lines))
    assert [(item.metadata.name, item.metadata.resource_version) for item in listing.items] == [("a", "6"), ("b", "4")]
    assert rest == []


def test_objects_are_as_in_a_list():
    item = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "annotations": {"not": "used"}}}
    added = json.dumps({"type": "ADDED", "object": item}).encode() + b"\n"
    for lines in (added, added + end(1)):  # together, and one by one
        found = InitialEvents(kinds.POD)
        listing, _ = found.feed(lines) or found.feed(end(1))
        (pod,) = listing.items
        assert (pod.kind, pod.api_version, pod.metadata.annotations) == ("", "", {})


def test_an_unreadable_object_does_not_spoil_the_others():
    bad = event("ADDED", "bad", 2, spec=7)
    listing, _ = InitialEvents(kinds.POD).feed(event("ADDED", "a", 1) + bad + event("ADDED", "b", 3) + end(4))
    assert names(listing) == ["a", "b"]
    assert [(each.type, each.object.metadata.name) for each in listing.broken] == [("ADDED", "bad")]


def test_an_object_that_becomes_readable_is_not_broken():
    found = InitialEvents(kinds.POD)
    assert found.feed(event("ADDED", "a", 1, spec=7)) is None
    assert found.feed(event("MODIFIED", "a", 2)) is None
    listing, _ = found.feed(end(4))
    assert (names(listing), listing.broken) == (["a"], ())


def test_lines_may_be_cut_anywhere():
    text = event("ADDED", "ä", 1) + b"\n" + event("ADDED", "b", 2) + end(4) + event("DELETED", "b", 5)
    for first in range(len(text)):
        pending, found = bytearray(), InitialEvents(kinds.POD)
        results = [found.feed(whole_lines(pending, chunk)) for chunk in (text[:first], text[first:])]
        listing, rest = next(each for each in results if each is not None)
        assert names(listing) == ["ä", "b"]
        assert bytes(pending) == b""
        assert rest == [event("DELETED", "b", 5).strip()] or results[0] is not None


# --- instead of it -------------------------------------------------------------------------------


class Recorder:
    def __init__(self):
        self.names = []

    def changed(self, old, new):
        self.names.append((new or old).metadata.name)

    def synced(self):
        pass


async def synced(cluster, times=1):
    """Run a reflector until it has a list, `times` times. Returns what it reported."""
    recorder = Recorder()
    for _ in range(times):
        reflector = Reflector(cluster, kinds.POD, recorder, backoff=Backoff(first=0.01))
        running = asyncio.create_task(reflector.run())
        async with asyncio.timeout(20):
            await reflector.wait_synced()
        running.cancel()
        await asyncio.wait([running])
    return recorder.names


QUIET = stream(then=never)
BROKEN_OFF = stream(event("ADDED", "a", 1))
EXPIRED = stream(event("ADDED", "a", 1), error(410))


async def test_a_reflector_needs_one_request(server, cluster):
    server.will(stream(event("ADDED", "a", 1), end(7), then=never))
    assert await synced(cluster) == ["a"]
    assert asked(server) == ["stream"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (BROKEN_OFF, Unavailable),
        (EXPIRED, Gone),
        (status(500), Unavailable),
        (status(403), Forbidden),
        (stream(b"rubbish\n"), Unavailable),
        (status(404), NotFound),
    ],
)
async def test_what_went_wrong_is_told(server, cluster, answer, problem):
    server.will(answer)
    with pytest.raises(problem):
        await cluster.watch_list(kinds.POD)


@pytest.mark.parametrize("answer", [BROKEN_OFF, EXPIRED, status(500), status(403), stream(b"rubbish\n")])
async def test_where_it_fails_pages_are_listed_at_once_and_it_is_tried_again_later(server, cluster, answer):
    again = stream(event("ADDED", "b", 8), end(9), then=never)
    server.will(answer, page("b"), QUIET, again)
    assert await synced(cluster, times=2) == ["b", "b"]
    assert asked(server) in (["stream", "page", "watch", "stream"], ["stream", "page", "stream"])


@pytest.mark.parametrize("answer", [REFUSED, QUIET, stream(event("ADDED", "a", 1), then=never)])
async def test_a_server_that_does_not_know_it_is_asked_once(server, answer):
    """One that ignores the parameter sends no bookmark, and nothing at all if there are no objects."""
    cluster = connected(server, initial_silence=0.1)
    server.will(answer, page("b"), page("b"))
    assert await synced(cluster) == ["b"]
    with pytest.raises(Invalid, match="does not send initial events"):
        await cluster.watch_list(kinds.POD)
    assert asked(server)[:2] == ["stream", "page"]
    assert asked(server).count("stream") == 1
    await cluster.close()


async def test_a_busy_server_is_not_asked_for_pages_before_its_time(server, cluster, monkeypatch):
    waited, sleep = [], asyncio.sleep

    async def nap(seconds):
        waited.append(seconds)
        await sleep(0)

    monkeypatch.setattr("asyncio.sleep", nap)
    server.will(Answer({"kind": "Status", "code": 429}, 429, Retry_After="7"), page("b"), QUIET)
    assert await synced(cluster) == ["b"]
    assert 7.0 in waited
    assert asked(server)[:2] == ["stream", "page"]


async def test_a_kind_that_is_not_served_costs_one_request(server, cluster):
    server.will(status(404))
    reflector = Reflector(cluster, kinds.POD, Recorder(), sleep=lambda _seconds: never())
    running = asyncio.create_task(reflector.run())
    await reflector.wait_answered()
    assert reflector.is_denied
    assert asked(server) == ["stream"]
    running.cancel()
    await asyncio.wait([running])


async def test_a_right_that_is_missing_is_told_in_the_words_about_the_list(server, cluster):
    server.will(status(403, message="cannot watch"), status(403, message="cannot list"))
    denied = asyncio.get_running_loop().create_future()
    reflector = Reflector(cluster, kinds.POD, Recorder(), on_denied=denied.set_result, sleep=lambda _: never())
    running = asyncio.create_task(reflector.run())
    assert "cannot list" in str(await denied)
    running.cancel()
    await asyncio.wait([running])


async def test_one_that_never_ends_is_left_and_stops_nobody(server):
    """A server that repeats one object forever: only that is kept, others go on, and then pages are listed."""

    async def endless(request):
        if "sendInitialEvents" not in request.query:
            return page("b").clone()
        return await stream(*[event("ADDED", "a", 1) * 500] * 100_000)(request)

    cluster = connected(server, watch=0.5)
    server.will(endless)
    turns = 0

    async def others():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(others())
    assert await synced(cluster) == ["b"]
    assert turns > 10
    beside.cancel()
    await cluster.close()
    found = InitialEvents(kinds.POD)
    for _ in range(10):
        found.feed(event("ADDED", "a", 1) * 500)
    listing, _ = found.feed(end(1))
    assert names(listing) == ["a"]


async def test_it_may_be_left_before_its_end(server, cluster):
    came, gone = asyncio.Event(), asyncio.Event()

    async def until_left(request):
        came.set()
        try:
            return await stream(*[event("ADDED", "a", 1)] * 100_000)(request)
        finally:
            gone.set()

    server.will(until_left)
    asking = asyncio.create_task(cluster.watch_list(kinds.POD))
    await came.wait()
    asking.cancel()
    await asyncio.wait([asking])
    async with asyncio.timeout(10):
        await gone.wait()

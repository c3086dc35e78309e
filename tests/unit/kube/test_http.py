"""HttpCluster against a scripted server on loopback: what a healthy API server seldom shows."""

import asyncio
import json
from contextlib import aclosing, suppress
from itertools import pairwise

import pytest
from aiohttp import web

from hami_dra.api import kinds
from hami_dra.api.errors import ConfigError
from hami_dra.kube import metadata_put
from hami_dra.kube.credentials import Access, FixedIdentity, TokenFile
from hami_dra.kube.http import FIRST, MOST, PAGE_BYTES, HttpCluster, PageSize
from hami_dra.kube.protocol import (
    AlreadyExists,
    Broken,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Interrupted,
    Invalid,
    NotFound,
    Unavailable,
)
from hami_dra.kube.requirements import UnsupportedKubernetes, require_version
from hami_dra.kube.transport import Timeouts
from tests.support.scripted_server import Answer, event, status, stream
from tests.unit.kube.test_verbatim import GUARD, META, entry, framed


@pytest.fixture
async def cluster(server):
    cluster = HttpCluster(Access(server.url, FixedIdentity("Bearer s3cret")), timeouts=Timeouts(read=2))
    yield cluster
    await cluster.close()


@pytest.fixture
async def hasty(server):
    """A client whose writes end soon, for the deadline alone: a busy machine may not answer so fast."""
    cluster = HttpCluster(Access(server.url, FixedIdentity("Bearer s3cret")), timeouts=Timeouts(write=0.5))
    yield cluster
    await cluster.close()


async def collect(cluster, **options):
    """The events of a watch, whether or not it ends early."""
    seen = []
    with suppress(Interrupted):
        async with aclosing(cluster.watch(kinds.POD, resource_version="7", **options)) as events:
            async for item in events:
                seen.append(item)  # noqa: PERF401 (a comprehension would lose them with the error)
    return seen


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (status(400, "BadRequest"), Invalid),
        (status(401, "Unauthorized"), Forbidden),
        (status(403, "Forbidden"), Forbidden),
        (status(404, "NotFound"), NotFound),
        (status(409, "Conflict"), Conflict),
        (status(409, "AlreadyExists"), AlreadyExists),
        (status(410, "Expired"), Gone),
        (status(413, "RequestEntityTooLarge"), Invalid),
        (status(415, "UnsupportedMediaType"), Invalid),
        (status(422, "Invalid"), Invalid),
        (status(422, "Invalid", causes=[{"reason": "FieldValueInvalid", "field": "metadata.uid"}]), Conflict),
        (status(500, "InternalError"), Unavailable),
        (status(504, "Timeout"), Unavailable),
        (Answer("the server says why\nand more", 502), Unavailable),
        (Answer("the server says why", 302, Location="http://elsewhere/"), Unavailable),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Answer) else value.__name__,
)
async def test_every_refusal_has_its_type_and_the_servers_words(server, cluster, answer, error):
    server.will(answer)
    with pytest.raises(error, match="the server says why") as caught:
        await cluster.patch(kinds.POD, "a", {}, namespace="ns")
    assert type(caught.value) is error
    assert "patch Pod ns/a" in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_a_server_that_is_not_there_is_unavailable_and_no_secret_is_told():
    access = Access("http://127.0.0.1:1", FixedIdentity("Bearer s3cret"), proxy="http://user:s3cret@127.0.0.1:1")
    assert "s3cret" not in repr(access)
    cluster = HttpCluster(access, timeouts=Timeouts(attempts=1))
    with pytest.raises(Unavailable) as caught:
        await cluster.get(kinds.NODE, "a")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(Unavailable):
        await cluster.delete(kinds.NODE, "a")
    await cluster.close()


@pytest.mark.parametrize("url", ["https://", "127.0.0.1:6443", "https://a:notaport", "ftp://a/"])
async def test_an_address_that_is_none_is_said_to_be_one(url):
    cluster = HttpCluster(Access(url), timeouts=Timeouts(attempts=1))
    with pytest.raises(Unavailable, match="is not a valid address"):
        await cluster.get(kinds.NODE, "a")
    await cluster.close()


async def test_a_server_below_a_path_and_names_that_must_be_quoted(server):
    cluster = HttpCluster(Access(f"{server.url}/k8s/"))
    server.will(Answer({"metadata": {"name": "a"}}), Answer({"metadata": {}, "items": []}))
    await cluster.get(kinds.POD, "a b?c%2f", "n s")
    await cluster.list(kinds.POD, label_selector="a in (b, c)&d", field_selector="e=f+g")
    await cluster.close()
    (_, first, _, _, _), (_, second, query, _, _) = server.seen
    assert first == "/k8s/api/v1/namespaces/n s/pods/a b?c%2f"
    assert second == "/k8s/api/v1/pods"
    assert (query["labelSelector"], query["fieldSelector"]) == ("a in (b, c)&d", "e=f+g")


@pytest.mark.parametrize("code", [401, 403, 404, 500, 501, 502])
async def test_a_page_of_a_proxy_is_one_sentence(server, cluster, code):
    server.will(Answer("\n<!DOCTYPE html>\n<html><body>" + "please log in\n" * 50, code))
    with pytest.raises(ClusterError) as caught:
        await cluster.patch(kinds.POD, "a", {}, namespace="ns")
    assert str(caught.value) == (
        f"patch Pod ns/a: HTTP {code}, an HTML page instead of the answer of an API server: is a proxy or a login page in between?"
    )


async def test_a_refused_login_says_what_to_do(server, cluster):
    server.will(status(401), status(401))
    with pytest.raises(Forbidden, match="may have expired; log in again"):
        await cluster.get(kinds.NODE, "a")


async def test_an_answer_that_is_no_json_is_unavailable(server, cluster):
    server.will(Answer("<html>welcome</html>"))
    with pytest.raises(Unavailable):
        await cluster.get(kinds.POD, "a", "ns")
    with pytest.raises(Unavailable):
        await cluster.list(kinds.POD)
    with pytest.raises(Unavailable):
        await cluster.version()
    with pytest.raises(Unavailable):
        await cluster.patch(kinds.POD, "a", {}, namespace="ns")


async def test_a_written_object_that_cannot_be_read_is_invalid(server, cluster):
    server.will(Answer({"metadata": {"name": 3}}))
    with pytest.raises(Invalid, match="done, but"):
        await cluster.patch(kinds.POD, "a", {}, namespace="ns")


# --- repetition and deadlines ------------------------------------------------------------------------------------------


async def test_reads_are_repeated_while_the_server_is_busy_or_away(server, cluster):
    async def drop(request):
        request.transport.abort()
        return web.Response()

    server.will(
        Answer({}, 429, Retry_After="0"), status(503), drop, Answer({"metadata": {"name": "a", "namespace": "ns"}})
    )
    assert (await cluster.get(kinds.POD, "a", "ns")).key == "ns/a"
    assert len(server.seen) >= 4


async def test_reads_give_up_in_the_end(server, cluster):
    server.will(status(503))
    with pytest.raises(Unavailable, match="the server says why"):
        await cluster.get(kinds.POD, "a", "ns")
    assert len(server.seen) == Timeouts().attempts


async def test_a_refused_read_is_not_repeated(server, cluster):
    server.will(status(403))
    with pytest.raises(Forbidden):
        await cluster.get(kinds.POD, "a", "ns")
    assert len(server.seen) == 1


async def test_a_write_is_repeated_only_when_it_was_certainly_not_carried_out(server, cluster):
    server.will(status(429, retryAfterSeconds=0), Answer({"metadata": {"name": "a"}}))
    await cluster.patch(kinds.POD, "a", {}, namespace="ns")
    assert len(server.seen) == 2
    server.seen.clear()
    server.will(status(500))
    with pytest.raises(Unavailable):
        await cluster.patch(kinds.POD, "a", {}, namespace="ns")
    assert len(server.seen) == 1


async def test_a_write_that_must_wait_longer_than_its_deadline_fails_at_once(server, cluster):
    server.will(status(429, retryAfterSeconds=60))
    with pytest.raises(Unavailable, match="the server says why"):
        await cluster.create(kinds.POD, {"metadata": {"name": "a", "namespace": "ns"}})
    assert len(server.seen) == 1


async def test_a_write_without_an_answer_ends_at_its_deadline(server, hasty):
    async def hang(request):
        await asyncio.sleep(3600)

    server.will(hang)
    with pytest.raises(Unavailable, match=r"no answer within 0\.5 s"):
        await hasty.patch(kinds.POD, "a", {}, namespace="ns")
    assert len(server.seen) == 1


def test_a_write_timeout_beyond_what_leader_election_assumes_is_refused():
    with pytest.raises(ConfigError, match="write timeout 6 s"):
        Timeouts(write=6)


# --- who we are ----------------------------------------------------------------------------------------------------------


async def test_a_renewed_token_is_picked_up_after_a_refusal(server, tmp_path):
    token = tmp_path / "token"
    token.write_text("old\n")
    cluster = HttpCluster(Access(server.url, TokenFile(token)))
    server.will(Answer({"metadata": {"name": "a"}}))
    await cluster.get(kinds.NODE, "a")
    assert server.seen[-1][3]["Authorization"] == "Bearer old"
    token.write_text("new\n")
    server.will(status(401), Answer({"metadata": {"name": "a"}}))
    await cluster.patch(kinds.NODE, "a", {})
    assert [request[3]["Authorization"] for request in server.seen[-2:]] == ["Bearer old", "Bearer new"]
    await cluster.close()


async def test_every_request_says_as_whom_it_is_made(server):
    headers = (("Impersonate-User", "jane"), ("Impersonate-Group", "g"), ("Impersonate-Group", "h"))
    cluster = HttpCluster(Access(server.url, FixedIdentity("Bearer s3cret"), impersonation=headers))
    server.will(Answer({"metadata": {"name": "a"}}), Answer({"metadata": {"name": "a"}}))
    await cluster.get(kinds.NODE, "a")
    await cluster.patch(kinds.NODE, "a", {})
    for request in server.seen[-2:]:
        assert request[3].getall("Impersonate-User") == ["jane"]
        assert request[3].getall("Impersonate-Group") == ["g", "h"]
        assert request[3]["Authorization"] == "Bearer s3cret"
    await cluster.close()


async def test_nobody_sends_no_authorization(server):
    cluster = HttpCluster(Access(server.url))
    server.will(Answer({"metadata": {"name": "a"}}))
    await cluster.get(kinds.NODE, "a")
    assert "Authorization" not in server.seen[-1][3]
    await cluster.close()


# --- requests --------------------------------------------------------------------------------------------------------------


async def test_what_a_write_looks_like(server, cluster):
    server.will(Answer({"metadata": {"name": "a"}}))
    await cluster.create(kinds.RESOURCE_CLAIM, {"metadata": {"name": "a"}}, namespace="ns", dry_run=True)
    method, path, query, headers, body = server.seen[-1]
    assert (method, path, query) == (
        "POST",
        "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims",
        {"dryRun": "All"},
    )
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body) == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "a"},
    }
    slice_spec = {"driver": "d.io", "pool": {"name": "p"}}
    server.will(Answer({"metadata": {"name": "s"}, "spec": slice_spec}))
    await cluster.patch(
        kinds.RESOURCE_SLICE,
        "s",
        {"metadata": {"name": "s"}, "spec": slice_spec},
        manager="driver",
    )
    method, path, query, headers, body = server.seen[-1]
    assert (method, path) == ("PATCH", "/apis/resource.k8s.io/v1/resourceslices/s")
    assert query == {"fieldManager": "driver", "force": "true"}
    assert headers["Content-Type"] == "application/apply-patch+yaml"
    assert json.loads(body)["kind"] == "ResourceSlice"
    await cluster.delete(kinds.POD, "p", namespace="ns", uid="u", resource_version="3", grace_period_seconds=0)
    method, path, _, _, body = server.seen[-1]
    assert (method, path) == ("DELETE", "/api/v1/namespaces/ns/pods/p")
    assert json.loads(body)["preconditions"] == {"uid": "u", "resourceVersion": "3"}
    assert json.loads(body)["gracePeriodSeconds"] == 0


async def test_a_namespaced_object_without_namespace_never_leaves(server, cluster):
    for call in (
        cluster.get(kinds.POD, "a"),
        cluster.patch(kinds.POD, "a", {}),
        cluster.delete(kinds.POD, "a"),
        cluster.create(kinds.POD, {"metadata": {"name": "a"}}),
    ):
        with pytest.raises(Invalid, match="none was given"):
            await call
    assert server.seen == []


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"major": "1", "minor": "37", "gitVersion": "v1.37.1"}, (1, 37, "v1.37.1")),
        ({"major": "1", "minor": "36+", "gitVersion": "v1.36.4-gke.100"}, (1, 36, "v1.36.4-gke.100")),
    ],
)
async def test_versions(server, cluster, answer, expected):
    server.will(Answer(answer))
    version = await cluster.version()
    assert (version.major, version.minor, version.git_version) == expected


@pytest.mark.parametrize("answer", [{}, {"major": "", "minor": ""}, {"major": "one", "minor": "37"}])
async def test_a_version_that_says_nothing_is_unavailable(server, cluster, answer):
    server.will(Answer(answer))
    with pytest.raises(Unavailable):
        await cluster.version()


async def test_an_old_kubernetes_is_refused_in_one_sentence(server, cluster):
    server.will(Answer({"major": "1", "minor": "35", "gitVersion": "v1.35.9"}))
    with pytest.raises(UnsupportedKubernetes) as caught:
        await require_version(cluster)
    assert str(caught.value) == (
        "hami-dra needs Kubernetes 1.36 or newer (consumable capacity, device taints and partitionable devices are on by "
        "default only since then), and this is v1.35.9."
    )
    server.will(Answer({"major": "1", "minor": "36", "gitVersion": "v1.36.0"}))
    await require_version(cluster)


# --- list ------------------------------------------------------------------------------------------------------------------


def page(*names, version="9", token=""):
    items = [{"metadata": {"name": name}} for name in names]
    return Answer({"metadata": {"resourceVersion": version, "continue": token}, "items": items})


async def test_pages_are_put_together(server, cluster):
    server.will(page("a", "b", token="t1"), page("c", token="t2"), page("d"))
    listing = await cluster.list(kinds.NODE, label_selector="x=1", field_selector="metadata.name!=z")
    assert [node.metadata.name for node in listing.items] == ["a", "b", "c", "d"]
    assert listing.resource_version == "9"
    shared = {"labelSelector": "x=1", "fieldSelector": "metadata.name!=z"}
    assert [request[2] for request in server.seen] == [
        {**shared, "limit": "25"},
        {**shared, "limit": "50", "continue": "t1"},
        {**shared, "limit": "100", "continue": "t2"},
    ]


def test_pages_are_as_long_as_their_objects_allow():
    pages = PageSize()
    limits = []
    for _ in range(6):
        limits.append(pages.limit)
        pages.learn(pages.limit, pages.limit * 4_000)  # bytes of an ordinary pod
    assert limits == [FIRST, 50, 100, 200, 400, MOST]
    pages.learn(MOST, MOST * 1_000_000)
    assert pages.limit * 1_000_000 <= PAGE_BYTES
    pages.learn(pages.limit, 2 * PAGE_BYTES * pages.limit)
    assert pages.limit == 1
    pages.learn(0, 100)
    assert pages.limit == 1


async def test_a_list_whose_pages_expire_is_asked_for_once_more_in_one_piece(server, cluster):
    server.will(page("a", token="t1"), status(410, "Expired"), page("a", "b", version="11"))
    listing = await cluster.list(kinds.NODE)
    assert [node.metadata.name for node in listing.items] == ["a", "b"]
    assert listing.resource_version == "11"
    assert server.seen[-1][2] == {}


async def test_whole_objects_come_in_pages_too(server, cluster):
    """With everything in them, and told how far it is."""
    first = page("a", "b", token="t1")
    first.body["metadata"]["remainingItemCount"] = 1
    server.will(first, page("c"))
    reported = []
    items = await cluster.list_raw(kinds.NODE, on_page=lambda *news: reported.append(news))
    assert items == [{"metadata": {"name": name}} for name in "abc"]
    assert reported == [(2, 1), (3, 0)]
    assert [request[2] for request in server.seen] == [{"limit": "25"}, {"limit": "50", "continue": "t1"}]


async def test_whole_objects_whose_pages_expire_are_asked_for_once_more_in_one_piece(server, cluster):
    server.will(page("a", token="t1"), status(410, "Expired"), page("a", "b"))
    assert len(await cluster.list_raw(kinds.NODE)) == 2
    assert server.seen[-1][2] == {}


async def test_what_is_no_list_is_unavailable(server, cluster):
    server.will(Answer({"metadata": "none"}))
    for read in (cluster.list, cluster.list_raw):
        with pytest.raises(Unavailable, match="the answer is not a list"):
            await read(kinds.NODE)


async def test_an_empty_list_may_be_null(server, cluster):
    server.will(Answer({"metadata": {"resourceVersion": "5"}, "items": None}))
    listing = await cluster.list(kinds.NODE)
    assert listing.items == ()


async def test_one_misfit_does_not_spoil_a_list(server, cluster):
    items = [
        {"metadata": {"name": "a"}},
        {"metadata": {"name": "bad"}, "spec": {"unschedulable": "perhaps"}},
        {"metadata": {"name": "c"}},
    ]
    server.will(Answer({"metadata": {"resourceVersion": "5"}, "items": items}))
    listing = await cluster.list(kinds.NODE)
    assert [node.metadata.name for node in listing.items] == ["a", "c"]
    (broken,) = listing.broken
    assert broken.object.key == "bad"
    assert "unschedulable" in broken.problem


# --- watch -----------------------------------------------------------------------------------------------------------------


async def test_lines_may_be_cut_anywhere_and_be_long(server, cluster):
    big = {"labels": {"text": "x" * 700_000}}
    whole = (
        event("ADDED", "a", 8)
        + json.dumps(
            {"type": "MODIFIED", "object": {"metadata": {"name": "b", "resourceVersion": "9", **big}}}
        ).encode()
        + b"\n"
        + event("DELETED", "a", 10)
        + event("BOOKMARK", "", 12)
    )
    cuts = [0, 1, 17, 100, 200, 100_000, 300_001, len(whole) - 5, len(whole)]
    server.will(stream(*(whole[start:end] for start, end in pairwise(cuts))))
    seen = await collect(cluster, namespace="ns", label_selector="x")
    assert [(item.type, item.object.metadata.name) for item in seen] == [
        ("ADDED", "a"),
        ("MODIFIED", "b"),
        ("DELETED", "a"),
        ("BOOKMARK", ""),
    ]
    assert seen[1].problem.startswith("too large: metadata.labels has 7000")
    assert seen[-1].object.metadata.resource_version == "12"
    _, path, query, _, _ = server.seen[-1]
    assert path == "/api/v1/namespaces/ns/pods"
    assert query["watch"] == "1"
    assert query["resourceVersion"] == "7"
    assert query["allowWatchBookmarks"] == "true"
    assert query["labelSelector"] == "x"
    assert int(query["timeoutSeconds"]) >= 300


async def test_a_line_that_was_never_finished_is_dropped(server, cluster):
    server.will(stream(event("ADDED", "a", 8), b'{"type":"ADDED","object":{"metada'))
    assert [item.object.metadata.name for item in await collect(cluster)] == ["a"]


async def test_an_expired_watch_is_gone_as_answer_or_as_event(server, cluster):
    server.will(status(410, "Expired"))
    with pytest.raises(Gone):
        await collect(cluster)
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
    server.will(stream(json.dumps(error).encode() + b"\n"))
    with pytest.raises(Gone, match="too old"):
        await collect(cluster)
    error["object"]["code"] = 500
    server.will(stream(json.dumps(error).encode() + b"\n"))
    with pytest.raises(Unavailable):
        await collect(cluster)


async def test_a_misfit_event_is_broken_and_the_watch_goes_on(server, cluster):
    server.will(
        stream(event("ADDED", "bad", 8, spec={"nodeName": 3}), event("ADDED", "a", 9), event("BOOKMARK", "", 10))
    )
    bad, good, bookmark = await collect(cluster)
    assert isinstance(bad, Broken)
    assert (bad.type, bad.object.key, bad.object.metadata.resource_version) == ("ADDED", "ns/bad", "8")
    assert good.object.metadata.name == "a"
    assert bookmark.type == "BOOKMARK"


async def test_rubbish_ends_a_watch_as_unavailable(server, cluster):
    server.will(stream(b"<html>\n"))
    with pytest.raises(Unavailable):
        await collect(cluster)


async def test_a_watch_that_the_server_ends_early_is_interrupted(server, cluster):
    server.will(stream(event("ADDED", "a", 8)))
    events = cluster.watch(kinds.POD, resource_version="7")
    assert (await anext(events)).object.metadata.name == "a"
    with pytest.raises(Interrupted):
        await anext(events)


async def test_a_watch_that_lasts_its_time_just_ends(server):
    cluster = HttpCluster(Access(server.url), timeouts=Timeouts(watch=1))
    server.will(stream(event("ADDED", "a", 8)))
    async with aclosing(cluster.watch(kinds.POD, resource_version="7")) as events:
        assert [item.object.metadata.name async for item in events] == ["a"]
    await cluster.close()


async def test_the_version_of_a_collection_takes_one_object_without_content(server, cluster):
    server.will(Answer({"metadata": {"resourceVersion": "41"}, "items": [{"metadata": {"name": "a"}}]}))
    assert await cluster.resource_version(kinds.RESOURCE_CLAIM, label_selector="x=y") == "41"
    _, path, query, *_ = server.seen[-1]
    assert path == "/apis/resource.k8s.io/v1/resourceclaims"
    assert query == {"limit": "1", "labelSelector": "x=y"}
    server.will(Answer({"items": []}))
    with pytest.raises(Unavailable, match="no resourceVersion"):
        await cluster.resource_version(kinds.RESOURCE_CLAIM)


async def test_a_silent_watch_is_given_up(server):
    cluster = HttpCluster(Access(server.url), timeouts=Timeouts(watch_silence=0.2))
    server.will(stream(event("ADDED", "a", 8), then=lambda: asyncio.sleep(3600)))
    events = cluster.watch(kinds.POD, resource_version="7")
    assert (await anext(events)).object.metadata.name == "a"
    with pytest.raises(Unavailable):
        await anext(events)
    await cluster.close()


async def test_a_watch_may_be_left_at_any_time(server, cluster):
    left = asyncio.Event()
    server.will(stream(event("ADDED", "a", 8), then=left.wait))
    async with aclosing(cluster.watch(kinds.POD, resource_version="7")) as events:
        assert (await anext(events)).object.metadata.name == "a"
    left.set()


@pytest.mark.parametrize(
    ("answer", "served"),
    [
        (Answer({"resources": [{"name": "devicetaintrules"}, {"name": "devicetaintrules/status"}]}), True),
        (Answer({"resources": [{"name": "resourceclaims"}]}), False),
        (status(404, "NotFound"), False),
    ],
    ids=["listed", "not-listed", "no-group"],
)
async def test_what_is_served(server, cluster, answer, served):
    server.will(answer)
    assert await cluster.serves(kinds.DEVICE_TAINT_RULE) is served
    assert server.seen[-1][1] == "/apis/resource.k8s.io/v1"


def shown(name, version, uid):
    return {"metadata": {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": version}}


def change(kind, item):
    return json.dumps({"type": kind, "object": item}, separators=(",", ":")).encode() + b"\n"


async def test_the_watch_shows_the_answers_to_our_own_writes_once_more(server, cluster):
    server.will(Answer(shown("a", "8", "u-a")))
    written = await cluster.patch(kinds.POD, "a", {}, namespace="ns")
    mine, next_one = change("MODIFIED", shown("a", "8", "u-a")), change("DELETED", shown("a", "9", "u-a"))
    server.will(stream(mine + next_one), stream(mine))
    first, second = await collect(cluster)
    assert first.type == "MODIFIED"
    assert first.object is written
    assert (second.type, second.object.metadata.resource_version) == ("DELETED", "9")
    (again,) = await collect(cluster)
    assert again.object == written
    assert again.object is not written


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(change("MODIFIED", shown("b", "8", "u-b")), id="another object"),
        pytest.param(
            change("MODIFIED", {"text": {"resourceVersion": "8"}, **shown("a", "9", "u-a")}), id="another version"
        ),
        pytest.param(change("MODIFIED", {"metadata": {"name": "c", "uid": 8, "resourceVersion": "8"}}), id="misfit"),
    ],
)
async def test_an_event_about_anything_else_is_read(server, cluster, line):
    server.will(Answer(shown("a", "8", "u-a")), stream(line))
    written = await cluster.patch(kinds.POD, "a", {}, namespace="ns")
    (found,) = await collect(cluster)
    assert found.object is not written
    assert found.object.metadata.name == json.loads(line)["object"]["metadata"]["name"]


async def test_what_cannot_be_read_of_our_own_write_is_said_by_the_watch_too(server, cluster):
    claim = {**shown("a", "8", "u-a"), "spec": {"devices": {"requests": 1}}}
    server.will(Answer(claim), stream(change("MODIFIED", claim)))
    written = await cluster.patch(kinds.RESOURCE_CLAIM, "a", {}, namespace="ns")
    async with aclosing(cluster.watch(kinds.RESOURCE_CLAIM, resource_version="7")) as events:
        found = await anext(events)
    assert found.object is written
    assert "requests" in found.problem


async def test_a_list_may_be_of_an_etcd_that_gives_versions_out_once_more(server, cluster):
    server.will(Answer(shown("a", "8", "u-a")))
    written = await cluster.patch(kinds.POD, "a", {}, namespace="ns")
    server.will(Answer({"metadata": {"resourceVersion": "7"}, "items": []}))
    await cluster.list(kinds.POD)
    labelled = {"metadata": {**shown("a", "8", "u-a")["metadata"], "labels": {"of": "now"}}}
    server.will(stream(change("MODIFIED", labelled)))
    (found,) = await collect(cluster)
    assert found.object is not written
    assert found.object.metadata.labels == {"of": "now"}


async def test_few_answers_wait_for_a_watch(server, cluster):
    server.will(*(Answer(shown("a", str(version), "u-a")) for version in range(300)))
    for _ in range(300):
        written = await cluster.patch(kinds.POD, "a", {}, namespace="ns")
    server.will(stream(change("MODIFIED", shown("a", "10", "u-a")) + change("MODIFIED", shown("a", "299", "u-a"))))
    _, last = await collect(cluster)
    assert last.object is written
    assert len(cluster._own_writes._kept) == 255


# --- a patch of metadata for which the server writes the spec anew --------------------------------------------------------

REFUSED = status(422, "Invalid", causes=[{"field": "spec", "message": "Invalid value: null: field is immutable"}])
MARK = {"metadata": {**GUARD, "annotations": {"a": "b"}}}


def stored(metadata=META):
    async def answer(request):
        assert (request.method, request.headers["Accept"]) == ("GET", metadata_put.CONTENT_TYPE)
        return web.Response(body=framed(metadata), content_type=metadata_put.CONTENT_TYPE)

    return answer


async def test_it_is_put_in_protobuf(server, cluster):
    bodies = []

    async def take(request):
        bodies.append((request.method, request.headers["Content-Type"], await request.read()))
        return web.json_response({"metadata": {"name": "a", "namespace": "ns", "resourceVersion": "268"}})

    server.will(REFUSED, stored(), take)
    written = await cluster.patch(kinds.RESOURCE_CLAIM, "a", MARK, namespace="ns")
    assert written.metadata.resource_version == "268"
    assert bodies == [("PUT", metadata_put.CONTENT_TYPE, framed(META + entry(12, b"a", b"b")))]
    assert server.seen[-1][3]["Accept"] == "application/json"


async def test_the_put_is_guarded_as_the_patch_was(server, cluster):
    server.will(REFUSED, stored(META.replace(b"267", b"268")), status(500))
    with pytest.raises(Conflict, match="by now"):
        await cluster.patch(kinds.RESOURCE_CLAIM, "a", MARK, namespace="ns")
    assert len(server.seen) == 2
    server.will(REFUSED, stored(), status(409, "Conflict"))
    with pytest.raises(Conflict, match="the server says why"):
        await cluster.patch(kinds.RESOURCE_CLAIM, "a", MARK, namespace="ns")


@pytest.mark.parametrize(
    ("patch", "options"),
    [
        ({"spec": {"devices": None}}, {}),
        (MARK, {"subresource": "status"}),
    ],
)
async def test_other_patches_are_refused_as_ever(server, cluster, patch, options):
    server.will(REFUSED)
    with pytest.raises(Invalid, match="the server says why"):
        await cluster.patch(kinds.RESOURCE_CLAIM, "a", patch, namespace="ns", **options)
    assert len(server.seen) == 1


async def test_all_its_requests_share_the_deadline_of_a_write(server, hasty):
    server.will(REFUSED, status(503))
    with pytest.raises(Unavailable):
        await hasty.patch(kinds.RESOURCE_CLAIM, "a", MARK, namespace="ns")
    assert {method for method, *_ in server.seen} == {"PATCH", "GET"}

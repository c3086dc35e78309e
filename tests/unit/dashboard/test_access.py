"""Who may look at the page, with which headers; what is never shown, logged or led to. On aiohttp's test server."""

import asyncio
import logging

import pytest
from aiohttp.test_utils import TestClient, TestServer

from controller.dashboard.access import (
    EVERYTHING,
    MOST_NAMESPACES,
    TOKEN_REVIEW,
    AccessVerdict,
    ClusterAccess,
    Grant,
    OpenAccess,
    may_ask,
)
from controller.dashboard.app import dashboard_app
from controller.dashboard.guard import hostname, is_own_path
from controller.dashboard.preferences import preferences, preferred_language
from controller.dashboard.review_queue import AT_ONCE, BURST
from controller.dashboard.source import ControllerState
from controller.inventory.inventory import Inventory
from controller.reconcile.runtime import Mode, SchedulingSettings
from controller.settings.controller import DashboardSettings, parse_bind
from controller.views.explanation import Explanation
from hami_dra.api.access import SUBJECT_ACCESS_REVIEW
from hami_dra.api.errors import ConfigError
from hami_dra.kube.protocol import Forbidden, Unavailable

VIEWER, STRANGER = "viewer-token", "stranger-token"


class Reviewer:
    """A cluster that knows two tokens."""

    def __init__(self):
        self.asked = []
        self.fails = None

    async def create(self, kind, body, *, namespace="", dry_run=False):
        await asyncio.sleep(0)
        self.asked.append((kind.name, body["spec"]))
        if self.fails:
            raise self.fails
        if kind is TOKEN_REVIEW:
            token = body["spec"]["token"]
            known = token in (VIEWER, STRANGER)
            return read(
                kind, {"authenticated": known, "user": {"username": token, "groups": ["g"], "extra": {"k": ["v"]}}}
            )
        return read(kind, {"allowed": body["spec"]["user"] == VIEWER})


def read(kind, status):
    import msgspec

    return msgspec.convert({"status": status}, kind.type)


class Kept:
    """Decisions, as the controller's log has them."""

    def __init__(self):
        self.pods, self.claims = {}, {}

    def of_pod(self, key, *, brief=False):
        return self.pods.get(key)

    def of_claim(self, key):
        return self.claims.get(key)

    def latest(self, most):
        return list(self.pods.values())[:most]


class Empty:
    """A source with nothing in it but one decision."""

    namespaces = None

    def __init__(self):
        self.inventory = Inventory()
        self.decisions = Kept()
        self.scheduling = SchedulingSettings()
        self.state = ControllerState("1.0", Mode.EXCLUSIVE, True, "holds")

    def problems(self):
        return []

    def pods(self):
        return []

    claims = pending_pods = gang_keys = pods

    def objects(self):
        return []

    def pod(self, _key):
        return None

    claim = gang_key = held_for = pod

    def pods_of(self, _claim):
        return []

    claims_on = pods_of

    def on_change(self, _reported):
        return lambda: None

    on_claim = on_change


@pytest.fixture
def reviewer():
    return Reviewer()


@pytest.fixture
async def client(reviewer):
    async with TestClient(TestServer(dashboard_app(Empty(), ClusterAccess(reviewer)))) as opened:
        yield opened


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


async def get(client, path, **options):
    return await client.get(path, allow_redirects=False, **options)


PAGES = ("/", "/nodes", "/devices", "/pods", "/gangs", "/claims", "/pending", "/decisions", "/quota", "/whatif")


@pytest.mark.parametrize("path", PAGES)
async def test_pages_are_for_those_who_may_look(client, path):
    answer = await get(client, path)
    assert (answer.status, answer.headers["Location"].partition("?")[0]) == (303, "/login")
    assert (await get(client, path, headers=bearer("nonsense"))).status == 303
    assert (await get(client, path, headers=bearer(STRANGER))).status == 403
    answer = await get(client, path, headers=bearer(VIEWER))
    assert answer.status == 200
    assert (await get(client, path, headers={"Cookie": f"hami_dra_token={VIEWER}"})).status == 200


async def test_programs_get_a_status(client, reviewer):
    for path in ("/api/v1/explanations", "/api/v1/explanations/pods/a/b", "/events"):
        answer = await get(client, path)
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (await get(client, path, headers=bearer(STRANGER))).status == 403
    reviewer.fails = Unavailable("no answer")
    assert (await get(client, "/api/v1/explanations", headers=bearer("third"))).status == 503
    assert (await get(client, "/", headers=bearer("third"))).status == 503


async def test_every_answer_has_safe_headers(client):
    for path, headers in (
        ("/", bearer(VIEWER)),
        ("/", {}),
        ("/login", {}),
        ("/none", bearer(VIEWER)),
        ("/", bearer(STRANGER)),
    ):
        answer = await get(client, path, headers=headers)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
    assets = await get(client, "/static/page.css")
    assert assets.headers["Cache-Control"].startswith("public")
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/vendor/", "/static/nothing.css"):
        assert (await get(client, path, headers=bearer(VIEWER))).status == 404


@pytest.mark.parametrize("path", ["/none", "/node?name=none", "/device?id=none"])
async def test_what_is_not_there_is_a_page_with_navigation(client, path):
    answer = await get(client, path, headers=bearer(VIEWER))
    text = await answer.text()
    assert (answer.status, answer.content_type) == (404, "text/html")
    assert all(words in text for words in ("<h1>Not found</h1>", 'href="/static/page', "<nav", 'href="/pending"'))


async def test_only_logging_in_and_choosing_is_posted(client):
    for path in (*PAGES, "/events", "/api/v1/explanations"):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert (await client.request(method, path, headers=bearer(VIEWER))).status == 405


async def test_the_login_puts_the_token_into_a_cookie_and_nowhere_else(client, caplog):
    caplog.set_level(logging.DEBUG)
    answer = await client.post("/login", data={"token": f" {VIEWER}\n", "next": "/pods?q=x"}, allow_redirects=False)
    assert (answer.status, answer.headers["Location"]) == (303, "/pods?q=x")
    cookie = answer.headers["Set-Cookie"]
    assert f"hami_dra_token={VIEWER}" in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    answer = await client.post("/login", data={"token": STRANGER, "next": "//evil.example"}, allow_redirects=False)
    assert (answer.status, "Set-Cookie" in answer.headers, STRANGER in await answer.text()) == (403, False, False)
    answer = await client.post("/login", data={"token": VIEWER, "next": "//evil.example"}, allow_redirects=False)
    assert answer.headers["Location"] == "/"
    out = await client.post("/logout", allow_redirects=False)
    assert 'hami_dra_token=""' in out.headers["Set-Cookie"]
    assert VIEWER not in caplog.text


async def test_a_session_that_has_expired_says_so(client):
    for token, is_told in (("", False), ("expired", True), (VIEWER, False)):
        answer = await get(client, "/login", headers=bearer(token) if token else {})
        assert (answer.status, "or it has expired" in await answer.text()) == (200, is_told)


async def test_https_cookies_stay_with_https(client):
    headers = {"X-Forwarded-Proto": "https"}
    answer = await client.post("/login", data={"token": VIEWER}, headers=headers, allow_redirects=False)
    assert "Secure" in answer.headers["Set-Cookie"]


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}])
async def test_forms_of_other_sites_are_not_taken(client, headers):
    for path in ("/login", "/logout", "/settings"):
        answer = await client.post(path, data={"token": VIEWER, "lang": "zh"}, headers=headers, allow_redirects=False)
        assert (answer.status, "Set-Cookie" in answer.headers) == (403, False)
    assert (await get(client, "/whatif?run=1&replace=1", headers={**headers, **bearer(VIEWER)})).status == 403


async def test_the_cluster_is_asked_what_rbac_can_say(client, reviewer):
    await get(client, "/", headers=bearer(VIEWER))
    (_, token), (_, question) = reviewer.asked
    assert token == {"token": VIEWER}
    assert question == {
        "user": VIEWER,
        "uid": "",
        "groups": ["g"],
        "extra": {"k": ["v"]},
        "resourceAttributes": {"verb": "get", "group": "hami.io", "resource": "dashboards"},
    }


async def test_verdicts_are_kept_for_a_while_and_questions_shared():
    reviewer, now = Reviewer(), [0.0]
    access = ClusterAccess(reviewer, keep=30.0, keep_refusal=5.0, most=2, clock=lambda: now[0])
    assert set(await asyncio.gather(*(access.grant(VIEWER) for _ in range(20)))) == {EVERYTHING}
    assert len(reviewer.asked) == 2
    now[0] = 29.0
    assert (await access.grant(VIEWER)).verdict is AccessVerdict.ALLOWED
    assert len(reviewer.asked) == 2
    now[0] = 31.0
    await access.grant(VIEWER)
    assert len(reviewer.asked) == 4
    assert (await access.grant("x")).verdict is AccessVerdict.UNKNOWN
    now[0] = 35.0
    await access.grant("x")
    assert len(reviewer.asked) == 5
    await access.grant("y")
    await access.grant("z")
    await access.grant(VIEWER)
    assert reviewer.asked[-1][1] == {"token": VIEWER}, "the oldest token was forgotten, its user was not"


async def test_what_is_no_token_is_never_asked_about():
    reviewer = Reviewer()
    access = ClusterAccess(reviewer)
    assert (await access.grant("")).verdict is AccessVerdict.NO_TOKEN
    for token in ("x" * 20_000, "a\nb", "Zürich"):
        assert (await access.grant(token)).verdict is AccessVerdict.UNKNOWN
    assert reviewer.asked == []


class PerNamespace(Reviewer):
    """Everybody known may view the namespaces team-a and team-c."""

    async def create(self, kind, body, *, namespace="", dry_run=False):
        answer = await super().create(kind, body, namespace=namespace, dry_run=dry_run)
        if kind is SUBJECT_ACCESS_REVIEW:
            wanted = body["spec"]["resourceAttributes"].get("namespace")
            return read(kind, {"allowed": wanted in ("team-a", "team-c")})
        return answer


async def test_users_are_granted_the_namespaces_that_they_may_view():
    reviewer, now = PerNamespace(), [0.0]
    known = ["team-a", "team-b"]
    access = ClusterAccess(reviewer, lambda: known, clock=lambda: now[0])
    assert await access.grant(STRANGER) == Grant(AccessVerdict.ALLOWED, frozenset({"team-a"}))
    assert len(reviewer.asked) == 4, "the token, everything, and each namespace"
    known.append("team-c")
    now[0] = 31.0
    assert (await access.grant(STRANGER)).namespaces == {"team-a", "team-c"}
    known[:] = [f"n{number:04}" for number in range(2 * MOST_NAMESPACES)]
    now[0] = 62.0
    assert (await access.grant(STRANGER)).verdict is AccessVerdict.FORBIDDEN
    assert len(reviewer.asked) == 4 + 5 + 2 + MOST_NAMESPACES
    now[0] = 90.0
    await access.grant(STRANGER)
    assert len(reviewer.asked) == 4 + 5 + 2 + MOST_NAMESPACES, "a refusal that was dear is kept longer"


async def test_a_service_account_is_reviewed_for_its_own_namespace():
    class Account(PerNamespace):
        async def create(self, kind, body, *, namespace="", dry_run=False):
            answer = await super().create(kind, body, namespace=namespace, dry_run=dry_run)
            if kind is TOKEN_REVIEW:
                return read(kind, {"authenticated": True, "user": {"username": "system:serviceaccount:team-a:viewer"}})
            return answer

    assert (await ClusterAccess(Account()).grant("t")).namespaces == {"team-a"}


class Accounts(Reviewer):
    """Each token is that of the user it names; only `honest` may view anything."""

    async def create(self, kind, body, *, namespace="", dry_run=False):
        await asyncio.sleep(0)
        self.asked.append((kind.name, body["spec"]))
        if kind is TOKEN_REVIEW:
            user = body["spec"]["token"].partition("#")[0]
            return read(kind, {"authenticated": True, "user": {"username": user}})
        return read(kind, {"allowed": body["spec"]["user"] == "honest"})


def reviews(reviewer, user):
    return sum(spec.get("user", "").startswith(user) for _, spec in reviewer.asked)


NAMESPACES = [f"n{number:03}" for number in range(MOST_NAMESPACES)]
MALLORY = "system:serviceaccount:evil:mallory"


async def test_tokens_of_one_user_share_its_reviews():
    reviewer = Accounts()
    access = ClusterAccess(reviewer, lambda: NAMESPACES)
    grants = await asyncio.gather(*(access.grant(f"{MALLORY}#{number}") for number in range(40)))
    assert {grant.verdict for grant in grants} == {AccessVerdict.FORBIDDEN}
    assert reviews(reviewer, MALLORY) == 1 + MOST_NAMESPACES


async def test_accounts_take_turns_whatever_the_number_of_their_users():
    reviewer = Accounts()
    access = ClusterAccess(reviewer, lambda: NAMESPACES, clock=lambda: 0.0)
    attack = [asyncio.ensure_future(access.grant(f"{MALLORY}{number}")) for number in range(200)]
    for refused in attack[4:194]:  # its tokens are reviewed
        await refused
    before = reviews(reviewer, MALLORY)
    assert await access.grant("honest") == EVERYTHING
    assert reviews(reviewer, MALLORY) - before <= 10 * AT_ONCE
    verdicts = [grant.verdict for grant in await asyncio.gather(*attack)]
    assert verdicts.count(AccessVerdict.BUSY) >= 190
    assert reviews(reviewer, MALLORY) <= BURST


async def test_an_account_has_its_reviews_back_after_a_while():
    reviewer, now = Accounts(), [0.0]
    access = ClusterAccess(reviewer, lambda: NAMESPACES, clock=lambda: now[0])
    verdicts = [(await access.grant(f"{MALLORY}{number}")).verdict for number in range(6)]
    assert verdicts == [AccessVerdict.FORBIDDEN] * 3 + [AccessVerdict.BUSY] * 3
    assert await access.grant("honest") == EVERYTHING, "others have their own"
    now[0] = 31.0
    assert (await access.grant(f"{MALLORY}7")).verdict is AccessVerdict.FORBIDDEN


async def test_a_client_that_leaves_a_queue_gives_its_turn_back():
    reviewer = Accounts()
    access = ClusterAccess(reviewer, lambda: NAMESPACES)
    waiting = asyncio.ensure_future(access.grant(f"{MALLORY}1"))
    await asyncio.sleep(0.01)
    waiting.cancel()
    assert await access.grant("honest") == EVERYTHING
    assert (await access.grant(f"{MALLORY}1")).verdict is AccessVerdict.FORBIDDEN


async def test_an_unclear_answer_is_not_kept():
    reviewer = Reviewer()
    access = ClusterAccess(reviewer)
    reviewer.fails = Unavailable("no answer")
    assert (await access.grant(VIEWER)).verdict is AccessVerdict.UNCLEAR
    reviewer.fails = None
    assert (await access.grant(VIEWER)).verdict is AccessVerdict.ALLOWED


async def test_a_controller_without_the_right_to_ask_is_noticed():
    reviewer = Reviewer()
    assert await may_ask(reviewer)
    reviewer.fails = Forbidden("create TokenReview: forbidden")
    assert not await may_ask(reviewer)
    assert SUBJECT_ACCESS_REVIEW.path() == "/apis/authorization.k8s.io/v1/subjectaccessreviews"


async def test_without_access_control_only_names_of_this_machine_are_answered():
    async with TestClient(TestServer(dashboard_app(Empty(), OpenAccess()))) as client:
        assert (await get(client, "/")).status == 200
        assert (await get(client, "/", headers={"Host": "localhost:8090"})).status == 200
        assert (await get(client, "/", headers={"Host": "rebound.example:8090"})).status == 421


def test_access_control_is_off_on_loopback_only(tmp_path):
    for bind in ("127.0.0.1:0", "localhost:8090", "[::1]:8090"):
        assert not DashboardSettings(parse_bind(bind), auth=False).auth
    for bind in (":8090", "0.0.0.0:8090", "[::]:8090", "page.example:8090", "10.0.0.1:80"):
        with pytest.raises(ConfigError, match="--dashboard-auth=off"):
            DashboardSettings(parse_bind(bind), auth=False)
    for bind in ("8090", "host:", "host:x", "host:70000"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            parse_bind(bind)
    with pytest.raises(ConfigError, match="--dashboard-grafana"):
        DashboardSettings(("127.0.0.1", 0), grafana="javascript:alert(1)")
    with pytest.raises(ConfigError, match="belong together"):
        DashboardSettings(("127.0.0.1", 0), cert_file=tmp_path / "tls.crt")


def test_only_paths_of_this_site_are_gone_on_to():
    assert is_own_path("/node?name=a")
    for path in ("//evil.example", "/\\evil.example", "https://evil.example", "", "/a\nb", "javascript:x"):
        assert not is_own_path(path)
    assert [hostname(each) for each in ("A.b:80", "[::1]:80", "[::1]", "x")] == ["a.b", "[::1]", "[::1]", "x"]


def test_the_language_that_is_preferred():
    assert preferred_language("") == "en"
    assert preferred_language("zh-CN,zh;q=0.9,en;q=0.8") == "zh"
    assert preferred_language("de, en;q=0.5, zh;q=0.4") == "en"
    assert preferred_language("fr, zh;q=0.1") == "zh"
    assert preferred_language("zh;q=x,,;;") == "en"
    assert preferences({"hami_dra_lang": "zh", "hami_dra_theme": "dark"}, "en").language == "zh"
    assert preferences({"hami_dra_lang": "<x>", "hami_dra_theme": "<x>"}, "").theme == "auto"


async def test_a_link_to_grafana():
    address = 'https://grafana.example/d/hami-dra?x="1"&y'
    async with TestClient(TestServer(dashboard_app(Empty(), OpenAccess(), grafana=address))) as client:
        assert 'href="https://grafana.example/d/hami-dra?x=&#34;1&#34;&amp;y"' in await (await get(client, "/")).text()
    async with TestClient(TestServer(dashboard_app(Empty(), OpenAccess()))) as client:
        assert "Grafana" not in await (await get(client, "/")).text()


async def test_kept_decisions_are_served_as_json():
    source = Empty()
    explanation = Explanation("ns/pod", "uid", "2026-11-21T12:00:00Z", "refused", message="<b>no</b>")
    source.decisions.pods["ns/pod"] = source.decisions.claims["ns/claim"] = explanation
    async with TestClient(TestServer(dashboard_app(source, OpenAccess()))) as client:
        one = await get(client, "/api/v1/explanations/pods/ns/pod")
        assert (await one.json())["pod"] == "ns/pod"
        assert (await (await get(client, "/api/v1/explanations/claims/ns/claim")).json())["uid"] == "uid"
        assert len(await (await get(client, "/api/v1/explanations?limit=5")).json()) == 1
        assert (await get(client, "/api/v1/explanations/pods/ns/other")).status == 404
        for limit in ("0", "x", "1001", "-1", "٣"):
            assert (await get(client, f"/api/v1/explanations?limit={limit}")).status == 400
        page = await (await get(client, "/decision?pod=ns/pod")).text()
        assert "&lt;b&gt;no&lt;/b&gt;" in page
        assert "<b>no" not in page

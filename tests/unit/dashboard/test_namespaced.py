"""Who may view one namespace only sees no name of another, on no page, in no export, stream or answer."""

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from controller.dashboard.access import AccessVerdict, Grant
from controller.dashboard.app import dashboard_app
from controller.dashboard.history import History
from controller.dashboard.source import Source
from controller.gangs import GangKey, GangState
from controller.reconcile.runtime import Metrics
from controller.views.explanation import Explanation, NodeExplanation
from hami_dra.api.core import ResourceQuota
from tests.cards import DRIVER, card, pod, slice_of
from tests.support.controller_settings import controller_settings
from tests.unit.insight.test_overview import cluster, holding, share

MINE, OTHER = "team-a", "secret-team"
DEVICE = f"{DRIVER}/n1/gpu-0"
PATHS = (
    "/", "/nodes", "/devices", "/node?name=n1", f"/device?id={DEVICE}", "/pods", "/gangs", "/claims", "/pending", "/decisions", "/quota",
    "/decision?pod=team-a/waits", "/export/pods.csv", "/export/pods.json", "/export/pending.json", "/export/nodes.csv", "/export/devices.csv", "/export/claims.json", "/export/gangs.csv", "/export/usage.csv", "/export/quota.csv",
    "/api/v1/explanations", "/api/v1/explanations/pods/team-a/waits",
)  # fmt: skip
REFUSED = (
    f"/api/v1/explanations/pods/{OTHER}/waits", f"/api/v1/explanations/claims/{OTHER}/held", f"/decision?pod={OTHER}/waits",
)  # fmt: skip


def told(namespace):
    return Explanation(
        f"{namespace}/waits", "pod-waits", "2026-11-21T12:00:00Z", "refused",
        message=f"no node fits now: port 80 is taken by Pod {namespace}/web", why=(f"on n1: NodePorts: Pod {namespace}/web",),
        nodes=(NodeExplanation("n1", fits=False, text=f"anti-affinity to Pod {namespace}/web"),),
    )  # fmt: skip


class Feed(list):
    """Objects of a kind, as an informer has them; `heard`: who listens."""

    def __init__(self, objects):
        super().__init__(objects)
        self.heard = []

    @property
    def store(self):
        return self

    def subscribe(self, heard):
        self.heard.append(heard)
        return lambda: None


class Both:
    """A controller with two namespaces that share a device, with a pod that waits in each."""

    settings = controller_settings(managed=frozenset({DRIVER}))
    is_leading = True
    metrics = Metrics()
    conversion = None

    def __init__(self):
        self.informers = self.gangs = self.decision_log = self
        refs = [{"name": "c", "resourceClaimName": "held"}]
        held = []
        for each in (MINE, OTHER):
            made = holding("held", share("gpu-0"), pods=["runs"], namespace=each)
            held.append(replace(made, metadata=replace(made.metadata, uid=each)))
        self.claims, self.nodes = Feed(held), Feed([])
        self.pods = Feed(
            pod(name, namespace=each, resourceClaims=refs, nodeName=node)
            for each in (MINE, OTHER)
            for name, node in (("runs", "n1"), ("waits", ""))
        )
        self.inventory = cluster(slice_of("n1", [card(0)]), claims=held)
        for each in (MINE, OTHER):
            quota = {"metadata": {"name": "q", "namespace": each}, "spec": {"hard": {"limits.nvidia.com/gpu": "4"}}}
            self.inventory.quota_changed(None, msgspec.convert(quota, ResourceQuota))

    def of_pod(self, key, *, brief=False):
        return told(key.partition("/")[0]) if key.endswith("/waits") else None

    def of_claim(self, key):
        return told(key.partition("/")[0])

    def latest(self, _most):
        return [told(MINE), told(OTHER)]

    def problems(self):
        return ()

    def held_for(self, key):
        return None

    def pod(self, key):
        return next((each for each in self.pods if each.key == key), None)

    def pods_of(self, claim):
        return [each for each in self.pods if claim == f"{each.metadata.namespace}/held"]

    def of(self, each):
        return GangKey("labels", each.metadata.namespace, "train") if each.metadata.name == "waits" else None

    def keys(self):
        return [GangKey("labels", namespace, "train") for namespace in (MINE, OTHER)]

    def state(self, key):
        members = [each for each in self.pods if each.metadata.namespace == key.namespace]
        return GangState(key, 2, tuple(members), 0, 0)

    def claim(self, key):
        return next((each for each in self.claims if each.key == key), None)

    def claims_on(self, _device):
        return self.claims

    def feeds(self):
        return []


class Tokens:
    """The token says what its user may view."""

    is_open = False

    async def grant(self, token):
        if token == "all":
            return Grant(AccessVerdict.ALLOWED)
        return Grant(AccessVerdict.ALLOWED, frozenset({token})) if token else Grant(AccessVerdict.NO_TOKEN)


@pytest.fixture
async def opened():
    both, history = Both(), History()
    for each in both.claims:
        history.claim_changed(None, each)
    async with TestClient(TestServer(dashboard_app(Source(both), Tokens(), history=history))) as client:
        yield client


async def text_of(client, path, token):
    answer = await client.get(path, headers={"Authorization": f"Bearer {token}"})
    return answer.status, await answer.text()


@pytest.mark.parametrize("path", PATHS)
async def test_no_name_of_another_namespace_is_shown(opened, path):
    await text_of(opened, path, "all")  # kept for others
    status, text = await text_of(opened, path, MINE)
    assert status == 200
    assert OTHER not in text
    if "nodes.csv" not in path and path not in ("/", "/nodes"):
        assert MINE in text
    if MINE not in path:
        assert f"{MINE}/" not in (await text_of(opened, path, OTHER))[1]


@pytest.mark.parametrize("path", REFUSED)
async def test_what_is_elsewhere_does_not_exist(opened, path):
    status, text = await text_of(opened, path, MINE)
    assert status == 404
    assert f"{OTHER}/web" not in text
    assert (await text_of(opened, path, "all"))[0] == 200


async def test_the_list_of_decisions_says_why_a_pod_was_refused(opened):
    _, text = await text_of(opened, "/decisions", MINE)
    assert f"no node fits now: port 80 is taken by Pod {MINE}/web" in text


async def test_amounts_of_all_are_shown_without_their_names(opened):
    _, text = await text_of(opened, f"/device?id={DEVICE}", MINE)
    assert "8 GiB of 16 GiB" in text, "both tenants count"
    _, text = await text_of(opened, "/", MINE)
    assert f"You see the workloads of {MINE} only; what others hold is gray." in text
    assert "/whatif" not in text
    assert "/whatif" not in (await text_of(opened, f"/decision?pod={MINE}/waits", MINE))[1]
    assert f"/whatif?run=1&amp;preempt={MINE}" in (await text_of(opened, f"/decision?pod={MINE}/waits", "all"))[1]
    status, text = await text_of(opened, "/whatif", MINE)
    assert (status, "needs the right to view all namespaces" in text, "<nav" in text) == (403, True, True)
    assert f"the workloads of {MINE} only" in text
    assert (await text_of(opened, "/whatif", "all"))[0] == 200


async def test_the_badge_and_the_stream_are_those_of_the_namespace(opened):
    for token, pods in (("all", 2), (MINE, 1)):
        headers = {"Authorization": f"Bearer {token}"}
        async with opened.get("/events?view=/pending", headers=headers) as stream:
            text = ""
            while "<h1>" not in text:
                text += (await stream.content.readany()).decode()
        assert f"event: pending\ndata: {pods}\n" in text
        assert (OTHER in text) == (token == "all")

"""The webhook, the gate policy and the fence policy on a real API server, with the rights that ship.

The server runs here, in the test's own event loop, so the tests talk to the API server by the asynchronous client: a
blocking call would wait for an answer that the blocked loop has to give.
"""

import asyncio
import contextlib
from pathlib import Path

import pytest

from controller.settings.webhook import CertificateSettings
from controller.webhook.convert import Options
from controller.webhook.converted import LegacyConversion
from controller.webhook.installation import Installation, manifests
from controller.webhook.server.server import Server, WebhookSettings
from controller.webhook.templates import is_same_request
from hami_dra.api import kinds, names
from hami_dra.kube.documents import read_documents
from hami_dra.kube.http import connect
from hami_dra.kube.manifests import apply, remove, shipped
from hami_dra.kube.protocol import ClusterError, Forbidden, Invalid, NotFound

pytestmark = pytest.mark.kubernetes("1.37.1", "1.36.4")

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 60.0


def legacy(*, labels=None, annotations=None, spec=None, **limits):
    resources = {"limits": {f"nvidia.com/{key}": str(value) for key, value in limits.items()}}
    metadata = {"generateName": "web-", "labels": labels or {}, "annotations": annotations or {}}
    containers = [{"name": "main", "image": "busybox", "resources": resources}]
    return {"metadata": metadata, "spec": {"containers": containers, **(spec or {})}}


def claiming(*, labels=None, annotations=None, **spec):
    metadata = {"generateName": "web-", "labels": labels or {}, "annotations": annotations or {}}
    claims = [{"name": "gpu", "resourceClaimName": "not-there"}]
    containers = [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}]
    return {"metadata": metadata, "spec": {"containers": containers, "resourceClaims": claims, **spec}}


def gates(pod):
    return [gate.name for gate in pod.spec.scheduling_gates]


def is_converted(pod):
    return pod.metadata.labels.get(names.DRA_LABEL) == "true" and not pod.spec.containers[0].resources.limits


async def until(what, ask):
    """The first answer of `ask` that is true. A new policy or configuration takes a moment to be in force."""
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                if answer := await ask():
                    return answer
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"not within {PATIENCE:g} s: {what}")


@pytest.fixture(scope="module")
def installed(control_plane):
    """Everything that ships but the webhook's configuration, which each test makes as it needs it."""
    api = control_plane.api
    objects = [raw for raw in manifests() if raw["kind"] != kinds.MUTATING_WEBHOOK.name]
    for raw in sorted(objects, key=lambda raw: raw["kind"] != "Namespace"):
        api.apply(raw)
    yield
    for raw in objects:
        if raw["kind"] != "Namespace":  # it takes long to go, and the next test wants it again
            api.remove(raw)


@pytest.fixture
async def cluster(control_plane):
    cluster = connect(str(control_plane.admin_kubeconfig))
    yield cluster
    await cluster.close()


@pytest.fixture
async def webhook(control_plane, installed, cluster):
    """`async with webhook(...) as server`: a running one, as its ServiceAccount, and in force. Options of `Installation`."""
    token = control_plane.token_for_service_account(names.SYSTEM_NAMESPACE, names.WEBHOOK)
    own = connect(str(control_plane.kubeconfig_for(token)))

    @contextlib.asynccontextmanager
    async def running(*, refuse_over_quota=False, runtime_classes=None, **options):
        settings = WebhookSettings(
            options=Options(runtime_classes=runtime_classes or {}),
            host="127.0.0.1",
            port=0,
            certificates=CertificateSettings(hosts=("127.0.0.1",)),
            retry_interval=0.1,
            upkeep_interval=0.2,
            refuse_over_quota=refuse_over_quota,
        )
        async with Server(own, settings) as server:
            await configure(cluster, server.port, **options)
            await server.ready()
            labels = {"probe": "true"} | dict([options["pod_selector"].split("=")] if "pod_selector" in options else [])
            if "namespace_selector" not in options:
                await until("the webhook is asked", lambda: converts(cluster, legacy(labels=labels, gpu=1)))
            yield server

    yield running
    with contextlib.suppress(NotFound):
        await cluster.delete(kinds.MUTATING_WEBHOOK, names.WEBHOOK)
    await own.close()


async def configure(cluster, port, **options):
    url = f"https://127.0.0.1:{port}/mutate"
    wanted = manifests(Installation(webhook_url=url, **options))
    await apply(cluster, [raw for raw in wanted if raw["kind"] == kinds.MUTATING_WEBHOOK.name])


async def converts(cluster, pod, namespace="default"):
    try:
        return is_converted(await cluster.create(kinds.POD, pod, namespace=namespace, dry_run=True))
    except ClusterError:
        return False  # failurePolicy Fail, and the authority is not known yet


async def make_claims(cluster, namespace):
    """What the controller does for pods that are stored; each claim is stored as it was written. The names."""
    conversion, made = LegacyConversion(), []
    for pod in (await cluster.list(kinds.POD, namespace=namespace)).items:
        body = conversion.claim_or_template(pod)
        stored = await cluster.create(kinds.RESOURCE_CLAIM, body, namespace=namespace)
        assert is_same_request(body, stored)
        assert stored.metadata.name == pod.spec.resource_claims[0].resource_claim_name
        made.append(stored)
    return made


# --- conversion -----------------------------------------------------------------------------------------------------------


async def test_pods_of_an_unchanged_legacy_deployment_are_converted_and_gated(webhook, cluster, namespace):
    (document,) = read_documents([EXAMPLES / "a-node-binpack-gpu-binpack.yaml"])
    async with webhook():
        await cluster.create(kinds.DEPLOYMENT, document.raw, namespace=namespace)

        async def four():
            pods = (await cluster.list(kinds.POD, namespace=namespace)).items
            return pods if len(pods) == 4 else ()

        for pod in await until("four pods", four):
            assert is_converted(pod)
            assert gates(pod) == [names.GATE]
            assert pod.metadata.annotations[names.NODE_POLICY] == "binpack"
            (claim,) = pod.spec.resource_claims
            assert pod.spec.containers[0].resources.claims[0].name == claim.name

        for claim in await make_claims(cluster, namespace):
            exactly = claim.spec.devices.requests[0].exactly
            assert exactly.capacity.requests == {"cores": "0", "memory": "7500Mi"}


async def test_everything_a_legacy_pod_can_say_is_a_claim_that_the_api_server_takes(webhook, cluster, namespace):
    uuids = ",".join(f"GPU-{number:032x}" for number in range(200))
    said = {
        "nvidia.com/use-gputype": "A100,H100,Tesla V100-PCIE-32GB,é\\\"]'\n",
        "nvidia.com/nouse-gputype": "T4",
        "nvidia.com/use-gpuuuid": uuids,
        "nvidia.com/nouse-gpuuuid": "GPU-0",
    }
    pods = [
        legacy(annotations=said, **limits)
        for limits in (
            {"gpu": 2, "gpumem-percentage": 30, "priority": 0},
            {"gpumem": 16000, "gpucores": 10},
            {"gpu": 4},
        )
    ]
    async with webhook():
        for pod in pods * 2:
            await cluster.create(kinds.POD, pod, namespace=namespace)
        made = await make_claims(cluster, namespace)
    assert len({claim.metadata.name for claim in made}) == 6
    assert len({claim.metadata.labels[names.TEMPLATE_HASH_LABEL] for claim in made}) == 3


async def test_nothing_is_created_for_a_pod_that_is_converted(webhook, cluster, namespace):
    """M1: not for a dry run, and not for a pod that a later step may still refuse."""
    async with webhook():
        for dry_run in (True, False):
            assert is_converted(await cluster.create(kinds.POD, legacy(gpu=1), namespace=namespace, dry_run=dry_run))
            for kind in (kinds.RESOURCE_CLAIM, kinds.RESOURCE_CLAIM_TEMPLATE):
                assert (await cluster.list(kind, namespace=namespace)).items == ()


async def test_a_pod_that_can_never_fit_is_refused_at_once_where_only_the_api_server_can_ask(
    webhook, cluster, control_plane, namespace
):
    rights = shipped("manifests/optional/quota-refusals.yaml")
    hard = {"limits.nvidia.com/gpu": "2", "limits.nvidia.com/gpumem": "3000"}
    await cluster.create(
        kinds.RESOURCE_QUOTA, {"metadata": {"name": "team"}, "spec": {"hard": hard}}, namespace=namespace
    )
    await apply(cluster, rights)
    try:
        async with webhook(refuse_over_quota=True):

            async def refused():
                try:
                    await cluster.create(kinds.POD, legacy(gpu=2, gpumem=2000), namespace=namespace, dry_run=True)
                except Forbidden as error:
                    return str(error)
                return ""  # the right to read quotas, or the quota, is not known yet

            message = await until("the pod is refused", refused)
            assert "ResourceQuota team allows 3000 MiB of limits.nvidia.com/gpumem in this namespace" in message
            assert "the pod asks for 4000" in message
    finally:
        await remove(cluster, rights)


async def test_pods_and_namespaces_that_opted_out_are_left_alone(webhook, cluster, namespace):
    async with webhook():
        labelled = legacy(labels={names.WEBHOOK_LABEL: "ignore"}, gpu=1)
        pod = await cluster.create(kinds.POD, labelled, namespace=namespace)
        assert pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": "1"}
        assert pod.spec.resource_claims == ()
        label = {"metadata": {"labels": {names.WEBHOOK_LABEL: "ignore"}}}
        await cluster.patch(kinds.NAMESPACE, namespace, label)

        async def left_alone():
            return not await converts(cluster, legacy(gpu=1), namespace)

        await until("the namespace's label is seen", left_alone)


async def test_conversion_can_be_limited_to_labelled_pods(webhook, cluster, namespace):
    async with webhook(pod_selector="gpu=hami"):
        assert not await converts(cluster, legacy(gpu=1), namespace)
        assert await converts(cluster, legacy(labels={"gpu": "hami"}, gpu=1), namespace)


async def test_conversion_can_be_limited_to_labelled_namespaces(webhook, cluster, namespace):
    async with webhook(namespace_selector="gpu=hami"):
        assert not await converts(cluster, legacy(gpu=1), namespace)
        await cluster.patch(kinds.NAMESPACE, namespace, {"metadata": {"labels": {"gpu": "hami"}}})
        await until("the namespace's label is seen", lambda: converts(cluster, legacy(gpu=1), namespace))


async def test_what_cannot_be_converted_is_refused_with_the_fix(webhook, cluster, namespace):
    async with webhook():
        with pytest.raises(
            Invalid, match=r'container "main": resources\.limits\["nvidia\.com/gpumem"\] .* write "16384"'
        ):
            await cluster.create(kinds.POD, legacy(gpu=1, gpumem="16Gi"), namespace=namespace)


async def test_pods_get_the_runtime_class_of_their_vendor_and_it_must_exist(webhook, cluster, namespace):
    """What the class adds to its pods (a nodeSelector here) is added although only the webhook names it."""
    name, own = "hami-dra-test", "hami-dra-test-own"
    runtime_class = {"metadata": {"name": name}, "handler": "nvidia", "scheduling": {"nodeSelector": {"gpu": "yes"}}}
    await cluster.create(kinds.RUNTIME_CLASS, runtime_class)

    async def made(pod):
        stored = await cluster.create(kinds.POD, pod, namespace=namespace)
        return (await cluster.get_raw(kinds.POD, stored.metadata.name, namespace))["spec"]

    try:
        async with webhook(runtime_classes={"nvidia": name}):
            spec = await made(legacy(gpu=1))
            assert (spec["runtimeClassName"], spec["nodeSelector"]) == (name, {"gpu": "yes"})
            assert spec["resourceClaims"]
            await cluster.create(kinds.RUNTIME_CLASS, {"metadata": {"name": own}, "handler": "kata"})
            assert (await made(legacy(gpu=1, spec={"runtimeClassName": own})))["runtimeClassName"] == own
            assert "runtimeClassName" not in await made(legacy())
            await cluster.delete(kinds.RUNTIME_CLASS, name)

            async def refused():
                try:
                    await cluster.create(kinds.POD, legacy(gpu=1), namespace=namespace, dry_run=True)
                except Forbidden as error:
                    return str(error)
                return ""  # the API server has not seen that the class is gone

            assert f'RuntimeClass "{name}" not found' in await until("the pod is refused", refused)
    finally:
        for each in (name, own):
            with contextlib.suppress(NotFound):
                await cluster.delete(kinds.RUNTIME_CLASS, each)


async def test_a_new_authority_is_trusted_without_a_restart(webhook, cluster, namespace):
    async with webhook():
        emptied = {"data": dict.fromkeys(("ca.crt", "ca.key", "tls.crt", "tls.key"))}
        await cluster.patch(kinds.SECRET, names.WEBHOOK_SECRET, emptied, namespace=names.SYSTEM_NAMESPACE)

        async def made_again():
            return (await cluster.get(kinds.SECRET, names.WEBHOOK_SECRET, names.SYSTEM_NAMESPACE)).data

        await until("a new certificate", made_again)
        await until("still converting", lambda: converts(cluster, legacy(gpu=1), namespace))


# --- the webhook down ------------------------------------------------------------------------------------------------------


async def test_without_the_webhook_legacy_pods_are_refused_and_others_are_not(webhook, cluster, namespace):
    async with webhook(failure_policy="Fail"):
        pass  # gone again, its configuration is still there
    with pytest.raises(ClusterError, match=r'failed calling webhook "convert\.webhook\.hami\.io"'):
        await cluster.create(kinds.POD, legacy(gpu=1), namespace=namespace)
    assert await cluster.create(kinds.POD, legacy(), namespace=namespace)
    assert gates(await cluster.create(kinds.POD, claiming(labels={names.DRA_LABEL: "true"}), namespace=namespace))


async def test_without_the_webhook_legacy_pods_pass_unconverted_where_that_was_chosen(webhook, cluster, namespace):
    async with webhook(failure_policy="Ignore"):
        pass
    pod = await cluster.create(kinds.POD, legacy(gpu=1), namespace=namespace)
    assert pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": "1"}
    assert pod.spec.resource_claims == ()


# --- the gate policy: no webhook is running in these tests ---------------------------------------------------------------------

SAYS_SO = {"labels": {names.DRA_LABEL: "true"}}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(claiming(**SAYS_SO), [names.GATE], id="the label"),
        pytest.param(claiming(annotations={names.NODE_POLICY: "spread"}), [names.GATE], id="a node policy"),
        pytest.param(claiming(annotations={names.DEVICE_POLICY: "x"}), [names.GATE], id="a device policy"),
        pytest.param(claiming(annotations={names.SCORING_WEIGHTS: "x"}), [names.GATE], id="weights"),
        pytest.param(
            claiming(**SAYS_SO, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
            ["kueue.x-k8s.io/admission", names.GATE],
            id="beside another gate",
        ),
        pytest.param(claiming(**SAYS_SO, schedulingGates=[{"name": names.GATE}]), [names.GATE], id="only once"),
        pytest.param(claiming(), [], id="says nothing"),
        pytest.param(claiming(labels={names.DRA_LABEL: "false"}), [], id="says no"),
        pytest.param(claiming(annotations={"hami.io/other": "x"}), [], id="another annotation"),
        pytest.param(legacy(**SAYS_SO), [], id="no claims"),
        pytest.param(claiming(**SAYS_SO, nodeName="somewhere"), [], id="placed already"),
        pytest.param(claiming(**SAYS_SO, schedulerName="volcano"), [], id="another scheduler"),
    ],
)
async def test_the_policy_gates_only_pods_that_say_so(installed, cluster, namespace, pod, expected):
    async def in_force():
        return gates(await cluster.create(kinds.POD, claiming(**SAYS_SO), namespace=namespace, dry_run=True))

    await until("the policy is in force", in_force)
    created = await cluster.create(kinds.POD, pod, namespace=namespace, dry_run=True)
    assert sorted(gates(created)) == sorted(expected)


# --- the fence policy --------------------------------------------------------------------------------------------------------

EXISTS = {"operator": "Exists"}
FENCE = {"key": names.FENCE_TAINT, "operator": "Exists"}


def exactly(*tolerations, **more):
    return {"exactly": {"deviceClassName": "any", "tolerations": list(tolerations), **more}}


def first_available(*tolerations):
    harmless = {"name": "first", "deviceClassName": "any"}
    return {
        "firstAvailable": [harmless, {"name": "second", "deviceClassName": "any", "tolerations": list(tolerations)}]
    }


async def attempt(cluster, kind, request, namespace):
    devices = {
        "devices": {"requests": [{"name": "plain", "exactly": {"deviceClassName": "any"}}, {"name": "gpu", **request}]}
    }
    spec = devices if kind is kinds.RESOURCE_CLAIM else {"spec": devices}
    return await cluster.create(
        kind, {"metadata": {"generateName": "try-"}, "spec": spec}, namespace=namespace, dry_run=True
    )


@pytest.fixture
async def fenced(installed, cluster, namespace):
    async def in_force():
        try:
            await attempt(cluster, kinds.RESOURCE_CLAIM, exactly(EXISTS), namespace)
        except Forbidden:
            return True
        return False

    await until("the policy is in force", in_force)


@pytest.mark.parametrize("kind", [kinds.RESOURCE_CLAIM, kinds.RESOURCE_CLAIM_TEMPLATE], ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(exactly(EXISTS), id="every taint"),
        pytest.param(exactly({**EXISTS, "effect": "NoSchedule"}), id="every NoSchedule taint"),
        pytest.param(exactly(FENCE), id="the fence"),
        pytest.param(exactly({"key": names.FENCE_TAINT, "operator": "Equal", "value": "x"}), id="the fence by value"),
        pytest.param(exactly({"key": "other", "operator": "Exists"}, EXISTS), id="the second toleration"),
        pytest.param(first_available(FENCE), id="a subrequest"),
        pytest.param(first_available(EXISTS), id="a subrequest, every taint"),
    ],
)
async def test_claims_that_tolerate_the_fence_are_refused(fenced, cluster, namespace, kind, request_):
    with pytest.raises(
        Forbidden, match=r"spec\.devices\.requests: gpu: tolerations must not cover the taint hami\.io/"
    ):
        await attempt(cluster, kind, request_, namespace)


@pytest.mark.parametrize("kind", [kinds.RESOURCE_CLAIM, kinds.RESOURCE_CLAIM_TEMPLATE], ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(exactly(), id="no toleration"),
        pytest.param(exactly({"key": "other", "operator": "Exists"}), id="another taint"),
        pytest.param(exactly({**EXISTS, "effect": "NoExecute"}), id="another effect"),
        pytest.param(first_available({"key": "other", "operator": "Exists"}), id="another taint, subrequest"),
    ],
)
async def test_other_tolerations_pass(fenced, cluster, namespace, kind, request_):
    await attempt(cluster, kind, request_, namespace)


async def test_admin_access_may_tolerate_everything(fenced, cluster, namespace):
    await cluster.patch(kinds.NAMESPACE, namespace, {"metadata": {"labels": {names.ADMIN_ACCESS_LABEL: "true"}}})
    await attempt(cluster, kinds.RESOURCE_CLAIM, exactly(EXISTS, adminAccess=True), namespace)

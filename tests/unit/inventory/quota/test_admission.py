"""Early refusal: pods that can never fit a quota of their namespace, by every vendor's names; and what must not block."""

from pathlib import Path

import pytest

from controller.webhook.admission import Admission
from controller.webhook.convert import Options, convert_pod
from controller.webhook.quota import FRESH, excesses
from controller.webhook.server.server import WebhookSettings
from hami_dra.api import kinds
from hami_dra.kube.protocol import Forbidden, Unavailable
from hami_dra.vendors.registry import LEGACY_VENDORS, QUOTA_NAMES
from tests.support.quotas import guarantee_object, legacy, quota, quota_object
from tests.support.steered_cluster import SteeredCluster


def container(name="main", **limits):
    return {"name": name, "resources": {"limits": {key: str(value) for key, value in limits.items()}}}


def pod(*containers, init=()):
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), "initContainers": list(init)}}


def refusals(raw, *quotas):
    return excesses(convert_pod(raw, "default").request, quotas)


def test_a_guarantee_refuses_nothing():
    raw = pod(container(**{"nvidia.com/gpu": 3}))
    assert len(refusals(raw, quota_object({"nvidia.com/gpu": 2}))) == 1
    assert refusals(raw, guarantee_object({"nvidia.com/gpu": 2})) == ()


def limits(**amounts):
    return {f"nvidia.com/{key}": value for key, value in amounts.items()}


@pytest.mark.parametrize(
    ("wanted", "key", "most"),
    [
        ({"nvidia.com/gpu": 3, "nvidia.com/gpumem": 100}, "nvidia.com/gpu", 3),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 2000}, "nvidia.com/gpumem", 4000),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 10, "nvidia.com/gpucores": 30}, "nvidia.com/gpucores", 60),
        ({"nvidia.com/gpu": 2}, "nvidia.com/gpucores", 200),
        ({"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 50}, "nvidia.com/gpumem", 100),
        ({"metax-tech.com/gpu": 2}, "metax-tech.com/gpu", 2),
        ({"metax-tech.com/sgpu": 2, "metax-tech.com/vcore": 20, "metax-tech.com/vmemory": 8}, "metax-tech.com/sgpu", 2),
        (
            {"metax-tech.com/sgpu": 2, "metax-tech.com/vcore": 20, "metax-tech.com/vmemory": 8},
            "metax-tech.com/vmemory",
            16,
        ),
        ({"metax-tech.com/sgpu": 2, "metax-tech.com/vcore": 20}, "metax-tech.com/vcore", 40),
        ({"kunlunxin.com/xpu": 4}, "kunlunxin.com/xpu", 4),
        ({"kunlunxin.com/vxpu": 2, "kunlunxin.com/vxpu-memory": 24576}, "kunlunxin.com/vxpu", 2),
        ({"kunlunxin.com/vxpu": 2, "kunlunxin.com/vxpu-memory": 20000}, "kunlunxin.com/vxpu-memory", 49152),
        ({"aws.amazon.com/neuron": 4}, "aws.amazon.com/neuron", 4),
        ({"aws.amazon.com/neuroncore": 1}, "aws.amazon.com/neuroncore", 1),
        ({"aws.amazon.com/neuroncore": 16}, "aws.amazon.com/neuroncore", 16),
        ({"huawei.com/Ascend910B": 2}, "huawei.com/Ascend910B3", 2),
        ({"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 1}, "huawei.com/Ascend310P-memory", 3072),
        ({"enflame.com/gcu": 2}, "enflame.com/gcu", 2),
        ({"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 30}, "enflame.com/vgcu", 1),
        ({"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 30}, "enflame.com/vgcu-percentage", 30),
    ],
)
def test_the_limit_itself_is_allowed_and_one_less_is_not(wanted, key, most):
    raw = pod(container(**wanted))
    assert refusals(raw, quota_object({key: most})) == ()
    (text,) = refusals(raw, quota_object({key: most - 1}))
    assert f"limits.{key}" in text
    assert f"asks for {most};" in text


def test_every_vendor_has_names():
    assert len(QUOTA_NAMES) == sum(len(vendor.quotas.names) for vendor in LEGACY_VENDORS)
    for vendor in LEGACY_VENDORS:
        assert {name.resource for name in vendor.quotas.names} <= set(vendor.resources)


@pytest.mark.parametrize(
    "wanted",
    [
        {"nvidia.com/gpu": 1},  # all memory of a card nobody knows yet
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 90},
    ],
)
def test_memory_that_only_a_card_tells_counts_nothing_here(wanted):
    assert refusals(pod(container(**wanted)), quota_object({"nvidia.com/gpumem": 0})) == ()


def test_the_larger_of_init_and_app_containers_counts():
    app = [container("a", **limits(gpu=1, gpumem=1000)), container("b", **limits(gpu=1, gpumem=1000))]
    init = [container("i", **limits(gpu=1, gpumem=1500))]
    raw = pod(*app, init=init)
    asked = next(amount for amount in range(10_000) if refusals(raw, quota_object({"nvidia.com/gpumem": amount})) == ())
    assert asked == 2500  # one of the two app containers shares its card with the init container, which needs 1500


def test_a_quota_with_scopes_and_keys_of_others_refuse_nothing():
    scoped = quota_object({"nvidia.com/gpu": 0}, scopes=["BestEffort"])
    assert refusals(pod(container(**limits(gpu=1))), scoped, quota_object({"cpu": 1})) == ()


# -- in the webhook ----------------------------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


async def cluster_with(*quotas):
    cluster = SteeredCluster()
    for each in quotas:
        await cluster.create(kinds.RESOURCE_QUOTA, each)
    return cluster


async def admitted(cluster, raw, options=None):
    return await Admission(cluster, options).admit(raw, "default", unique="1")


async def test_a_pod_that_never_fits_is_denied():
    cluster = await cluster_with(quota({"nvidia.com/gpumem": 4000}, name="team"))
    verdict = await admitted(cluster, legacy("p", gpu=2, gpumem=2001))
    assert verdict.denied == (
        "Pod default/p: exceeding resource quota: ResourceQuota team allows 4000 MiB of limits.nvidia.com/gpumem in this "
        "namespace, and the pod asks for 4002; it would never run: ask for less, or have the quota raised"
    )
    request = {"uid": "u", "kind": {"kind": "Pod"}, "namespace": "default", "operation": "CREATE"}
    body = {"apiVersion": "admission.k8s.io/v1", "request": request | {"object": legacy("p", gpu=2, gpumem=2001)}}
    response = (await Admission(cluster).review(body))["response"]
    assert (response["allowed"], response["status"]["code"], response["status"]["reason"]) == (False, 403, "Forbidden")


async def test_an_answer_tells_no_quota_where_anybody_may_ask():
    """M1: whoever reaches the port asks about any namespace."""
    cluster = await cluster_with(quota({"nvidia.com/gpumem": 4000}, name="team"))
    admission = Admission(cluster, refuse_over_quota=WebhookSettings().tells_quotas)
    assert (await admission.admit(legacy("p", gpu=2, gpumem=2001), "default", unique="1")).pod is not None
    assert not cluster.requests["list resourcequotas"]
    for reported in (WebhookSettings(refuse_over_quota=True), WebhookSettings(client_ca=Path("ca.crt"))):
        assert reported.tells_quotas


async def test_usage_is_no_reason_to_deny():
    cluster = await cluster_with(quota({"nvidia.com/gpu": 1}))
    admission = Admission(cluster)
    for name in ("p", "q"):
        assert (await admission.admit(legacy(name, gpu=1), "default", unique="1")).pod is not None


async def test_native_mode_and_pods_that_are_not_converted_are_let_in():
    cluster = await cluster_with(quota({"nvidia.com/gpu": 0}))
    native = Options(mode="native")
    assert (await admitted(cluster, legacy("p", gpu=1, gpumem=10), native)).pod is not None
    assert (await admitted(cluster, legacy("p", gpu=1, labels={"hami.io/webhook": "ignore"}))).pod is not None


@pytest.mark.parametrize("error", [Forbidden("may not"), Unavailable("away"), TimeoutError()])
async def test_quotas_that_cannot_be_read_block_nothing(error, monkeypatch, caplog):
    cluster = await cluster_with(quota({"nvidia.com/gpu": 0}))

    async def fails(*_args, **_options):
        raise error

    monkeypatch.setattr(cluster, "list", fails)
    assert (await admitted(cluster, legacy("p", gpu=1))).pod is not None
    assert "quotas are not checked at admission" in caplog.text


async def test_quotas_are_read_once_in_a_while_for_each_namespace(monkeypatch):
    cluster = await cluster_with(quota({"nvidia.com/gpu": 1}))
    reads = []
    listed = cluster.list

    async def counted(kind, **options):
        if kind is kinds.RESOURCE_QUOTA:
            reads.append(options["namespace"])
        return await listed(kind, **options)

    monkeypatch.setattr(cluster, "list", counted)
    clock = Clock()
    admission = Admission(cluster, clock=clock)
    for namespace in ("default", "default", "other"):
        await admission.admit(legacy("p", gpu=1), namespace, unique="1")
    assert reads == ["default", "other"]
    clock.now += FRESH
    await cluster.patch(
        kinds.RESOURCE_QUOTA, "quota", {"spec": {"hard": {"limits.nvidia.com/gpu": "0"}}}, namespace="default"
    )
    assert (await admission.admit(legacy("p", gpu=1), "default", unique="1")).pod is None

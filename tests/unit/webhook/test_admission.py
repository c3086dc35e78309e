"""One admission request: the answer, that nothing is written, and what goes wrong."""

import base64
import json
from copy import deepcopy

import pytest

from controller.webhook.admission import Admission, BadReview
from controller.webhook.convert import Options
from controller.webhook.memory_webhook import memory_webhook
from controller.webhook.request import is_claim_name
from controller.webhook.server.server import WebhookSettings
from hami_dra.api import kinds
from hami_dra.kube.protocol import Forbidden, Invalid
from tests.support.conversions import template_of
from tests.support.json_patches import json_patch
from tests.support.steered_cluster import SteeredCluster

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {
        "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}}}]
    },
}


def review(pod=POD, *, operation="CREATE", **request):
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "namespace": "team",
            "operation": operation,
            "object": deepcopy(pod),
            **request,
        },
    }


def with_limits(**limits):
    pod = deepcopy(POD)
    pod["spec"]["containers"][0]["resources"]["limits"] = {f"nvidia.com/{key}": value for key, value in limits.items()}
    return pod


@pytest.fixture
def cluster():
    return SteeredCluster()


async def answer(cluster, body, options=None):
    reviewed = await Admission(cluster, options).review(body)
    assert (reviewed["apiVersion"], reviewed["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert reviewed["response"]["uid"] == "u-1"
    return reviewed["response"]


def patched(pod, response):
    return json_patch(pod, json.loads(base64.b64decode(response["patch"])))


async def test_a_legacy_pod_is_patched_and_nothing_is_written(cluster):
    response = await answer(cluster, review())
    assert response["allowed"]
    assert response["patchType"] == "JSONPatch"
    pod = patched(POD, response)
    name = pod["spec"]["resourceClaims"][0]["resourceClaimName"]
    made = template_of(pod["metadata"]["annotations"]["hami.io/converted-request"], "team")
    assert is_claim_name(name, made)
    assert pod["spec"]["schedulingGates"] == [{"name": "hami.io/allocation"}]
    assert not any(label.startswith(("create", "patch", "delete")) for label in cluster.requests)


async def test_a_dry_run_gets_the_same_answer(cluster):
    assert await answer(cluster, review(dryRun=True)) == await answer(cluster, review())


@pytest.mark.parametrize("namespace", ["kube-system", "hami-dra-system"])
async def test_namespaces_that_the_configuration_excludes_are_left_alone_whoever_asks(cluster, namespace):
    admission = Admission(cluster, excluded_namespaces=WebhookSettings().excluded_namespaces)
    reviewed = await admission.review(review(namespace=namespace))
    assert reviewed["response"] == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(review(with_limits()), id="nothing to do"),
        pytest.param(review(operation="UPDATE"), id="not a create"),
        pytest.param(review(operation="DELETE", object=None), id="a delete"),
        pytest.param(review(kind={"kind": "Node"}), id="not a pod"),
    ],
)
async def test_others_pass_unchanged(cluster, body):
    assert await answer(cluster, body) == {"uid": "u-1", "allowed": True}


async def test_a_refusal_names_object_field_and_fix(cluster):
    response = await answer(cluster, review(with_limits(gpu="1", gpumem="16Gi")))
    assert not response["allowed"]
    assert response["status"]["code"] == 422
    assert response["status"]["message"].startswith(
        'Pod team/web: container "main": resources.limits["nvidia.com/gpumem"]'
    )
    assert 'write "16384"' in response["status"]["message"]
    assert "patch" not in response


async def test_warnings_reach_the_user(cluster):
    response = await answer(cluster, review(with_limits(gpu="1", gpucores="200")))
    assert response["allowed"]
    assert "more than a card has; 100 is used" in response["warnings"][0]


# --- advice ------------------------------------------------------------------------------------------------------------------


async def advice(cluster, wanted, *, converted=True, **request):
    body = review(wanted, **request)
    reviewed = await Admission(cluster, excluded_namespaces={"kube-system"}).advise(body, converted=converted)
    assert not cluster.requests
    response = reviewed["response"]
    assert response.pop("allowed")
    assert response.pop("uid") == "u-1"
    return response.pop("warnings", None)


def deployment(pod_spec):
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "w"},
        "spec": {"template": {"spec": pod_spec}},
    }


async def test_advice_never_changes_or_refuses(cluster):
    wanted = deployment(with_limits(gpu="1", gpumem="16Gi")["spec"])
    for operation in ("CREATE", "UPDATE"):
        (warning,) = await advice(cluster, wanted, operation=operation)
        assert warning.startswith('its pods will be refused: container "main": resources.limits["nvidia.com/gpumem"]')
    assert await advice(cluster, wanted, operation="DELETE") is None
    assert await advice(cluster, wanted, namespace="kube-system") is None
    assert await advice(cluster, deployment(POD["spec"])) is None
    assert await advice(cluster, {**wanted, "kind": "Service"}) is None
    assert await advice(cluster, POD) is None


async def test_kube_system_is_not_converted_and_advice_says_so(cluster):
    for wanted in (POD, deployment(POD["spec"])):
        (warning,) = await advice(cluster, wanted, converted=False, namespace="kube-system")
        assert "the webhook converts no pods of namespace kube-system: move it to another one" in warning
    plain = deployment({"containers": [{"name": "main"}]})
    assert await advice(cluster, plain, converted=False, namespace="kube-system") is None


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"apiVersion": "admission.k8s.io/v1"},
        {"apiVersion": "admission.k8s.io/v1", "request": {}},
        {**review(), "apiVersion": "admission.k8s.io/v1beta1"},
        review(object=None),
        review(object=[]),
        review(kind="Pod"),
        review(kind=None),
        review(namespace=7),
        review(uid={}),
        {**review(), "request": []},
    ],
)
async def test_what_is_no_review_is_refused(cluster, body):
    with pytest.raises(BadReview, match="not an AdmissionReview"):
        await Admission(cluster).review(body)


# --- native mode ---------------------------------------------------------------------------------------------------------


async def device_class(cluster, name, resource="nvidia.com/gpu"):
    await cluster.create(kinds.DEVICE_CLASS, {"metadata": {"name": name}, "spec": {"extendedResourceName": resource}})


async def test_classes_that_clash_over_an_extended_resource_are_a_warning(cluster):
    await device_class(cluster, "nvidia-gpu.hami.io")
    await device_class(cluster, "gpu.nvidia.com")
    await device_class(cluster, "other", "example.com/other")
    response = await answer(cluster, review(with_limits(gpu="1")), Options(mode="native"))
    (warning,) = response["warnings"]
    assert warning.startswith("nvidia.com/gpu is mapped by several DeviceClasses (gpu.nvidia.com, nvidia-gpu.hami.io)")
    assert "patch" not in response


async def test_one_class_is_no_clash(cluster):
    await device_class(cluster, "nvidia-gpu.hami.io")
    assert "warnings" not in await answer(cluster, review(with_limits(gpu="1")), Options(mode="native"))


async def test_classes_that_cannot_be_read_are_no_reason_to_refuse(cluster):
    cluster.fail_next(Forbidden("no"), verb="list")
    assert (await answer(cluster, review(with_limits(gpu="1")), Options(mode="native")))["allowed"]


# --- the memory cluster's webhook -----------------------------------------------------------------------------------------


async def test_pods_of_a_memory_cluster_are_converted_on_their_way_in(cluster):
    cluster.admission.append(memory_webhook(Admission(cluster)))
    pod = await cluster.create(kinds.POD, POD, namespace="team")
    assert pod.spec.resource_claims[0].resource_claim_name.startswith("web-hami-")
    with pytest.raises(Invalid, match="admission webhook denied the request: Pod team/web"):
        await cluster.create(kinds.POD, with_limits(gpu="x"), namespace="team")

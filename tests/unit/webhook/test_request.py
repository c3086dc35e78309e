"""The annotation of a converted pod, the template made from it, and what the controller asks about such pods."""

import json

import msgspec
import pytest

from controller.webhook.convert import convert_pod
from controller.webhook.converted import LegacyConversion
from controller.webhook.request import InvalidRequest, decode
from hami_dra.api import kinds, names
from hami_dra.api.core import Pod
from tests.support.conversions import template_of

CONVERSION = LegacyConversion()


def legacy(**limits):
    resources = {"limits": {f"nvidia.com/{key}": value for key, value in limits.items()}}
    return {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "main", "resources": resources}]}}


def as_pod(raw, **status):
    return msgspec.convert({**raw, "status": status}, Pod, strict=False)


def converted(**limits):
    conversion = convert_pod(legacy(**limits), "team")
    conversion.pod["metadata"]["namespace"] = "team"
    return conversion


def annotation_of(conversion):
    return conversion.pod["metadata"]["annotations"][names.CONVERTED_REQUEST]


def test_the_template_is_valid_for_our_own_reader():
    template = msgspec.convert(
        converted(gpu=1, gpumem=1).templates[0], kinds.RESOURCE_CLAIM_TEMPLATE.type, strict=False
    )
    assert template.spec.spec.devices.requests[0].exactly.count == 1


def test_the_controller_makes_the_same_template_again():
    conversion = converted(gpu=1, gpumem=10)
    assert CONVERSION.claim_or_template(as_pod(conversion.pod)) == conversion.templates[0]
    assert json.dumps(template_of(annotation_of(conversion), "team")) == json.dumps(conversion.templates[0])
    assert CONVERSION.plugin_resources(as_pod(conversion.pod)) == ("nvidia.com/gpu", "volcano.sh/vgpu-number")


def test_nothing_is_made_for_pods_that_were_not_converted():
    pod = as_pod(legacy(gpu=1))
    assert CONVERSION.claim_or_template(pod) is None
    assert CONVERSION.plugin_resources(pod) == ()


def test_nothing_is_made_from_an_annotation_that_the_pod_does_not_refer_to():
    one, other = converted(gpu=1), converted(gpu=2)
    one.pod["metadata"]["annotations"] = other.pod["metadata"]["annotations"]
    assert CONVERSION.claim_or_template(as_pod(one.pod)) is None


REQUEST = {"name": "nvidia-0", "vendor": "nvidia", "cards": {"count": 1, "capacity": {"cores": 0}}}


def text(**changes):
    return json.dumps({"requests": [{**REQUEST, **changes}]})


@pytest.mark.parametrize(
    "annotation",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="no object"),
        pytest.param('{"requests": []}', id="no requests"),
        pytest.param('{"requests": [], "tolerations": []}', id="unknown field"),
        pytest.param(text(adminAccess=True), id="admin access"),
        pytest.param(text(tolerations=[{"operator": "Exists"}]), id="tolerations"),
        pytest.param(text(selectors=["true"]), id="CEL of the author's own"),
        pytest.param(text(vendor="acme"), id="unknown vendor"),
        pytest.param(text(name="../x"), id="bad name"),
        pytest.param(text(cards={"count": 0}), id="no card"),
        pytest.param(text(cards={"count": 33}), id="too many cards"),
        pytest.param(text(cards={"count": 1, "memoryPercent": 100}), id="percentage"),
        pytest.param(text(cards={"count": 1, "capacity": {"memory": -1}}), id="negative"),
        pytest.param(text(cards={"count": 1, "capacity": {"memory": 1.5}}), id="fraction"),
        pytest.param(text(cards={"count": 1, "capacity": {"a/b": 1}}), id="capacity of another domain"),
        pytest.param(text(cards={"count": 1, "priority": 7}), id="priority"),
        pytest.param(json.dumps({"requests": [REQUEST, REQUEST]}), id="the same name twice"),
        pytest.param("\ud800", id="no unicode"),
    ],
)
def test_the_annotation_can_say_no_more_than_legacy_resources_can(annotation):
    with pytest.raises(InvalidRequest, match=r"hami\.io/converted-request"):
        decode(annotation)


def test_unknown_filters_are_refused():
    with pytest.raises(InvalidRequest, match=r"nvidia\.com/other: use one of nvidia\.com/use-gputype"):
        template_of(text(filters={"nvidia.com/other": ["a"]}), "team")


def test_text_in_filters_is_quoted():
    made = template_of(text(filters={"nvidia.com/use-gpuuuid": ['"] || true || "']}), "team")
    (selector,) = made["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"]
    assert selector["cel"]["expression"] == r'device.attributes["hami.io"].uuid in ["\"] || true || \""]'


# --- pods that bypassed the webhook ----------------------------------------------------------------------------------

UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}


def test_a_pod_that_was_not_converted_is_told_what_to_do():
    message = CONVERSION.bypassed(as_pod(legacy(gpu=1, gpumem=10), **UNSCHEDULABLE), ())
    assert message is not None
    assert message.startswith('container "main" asks for nvidia.com/gpu, nvidia.com/gpumem, but')
    assert "Delete the pod and create it again" in message
    assert "hami-dra convert -f FILE" in message


@pytest.mark.parametrize(
    ("namespace", "words"),
    [
        ("team", "(kubectl label namespace team hami.io/webhook=enabled --overwrite)"),
        (
            "kube-system",
            "No pod of namespace kube-system is converted: move it to another one, or convert the manifest",
        ),
    ],
)
def test_the_fix_for_a_pod_that_was_not_converted_goes_by_its_namespace(namespace, words):
    raw = legacy(gpu=1)
    message = CONVERSION.bypassed(
        as_pod({**raw, "metadata": {"name": "p", "namespace": namespace}}, **UNSCHEDULABLE), ()
    )
    assert message is not None
    assert words in message


@pytest.mark.parametrize(
    ("raw", "status", "offered"),
    [
        pytest.param(legacy(gpu=1), {}, (), id="not tried yet"),
        pytest.param(legacy(), UNSCHEDULABLE, (), id="no vendor resources"),
        pytest.param(converted(gpu=1).pod, UNSCHEDULABLE, (), id="converted"),
        pytest.param(legacy(gpu=1, gpumem=5), UNSCHEDULABLE, {"nvidia.com/gpu"}, id="a device plugin has them"),
        pytest.param(
            {**legacy(gpu=1), "spec": {**legacy(gpu=1)["spec"], "nodeName": "n"}}, UNSCHEDULABLE, (), id="bound"
        ),
        pytest.param(
            {**legacy(gpu=1), "metadata": {"labels": {"hami.io/webhook": "ignore"}}}, UNSCHEDULABLE, (), id="opted out"
        ),
    ],
)
def test_others_are_left_in_peace(raw, status, offered):
    assert CONVERSION.bypassed(as_pod(raw, **status), offered) is None


def test_in_native_mode_plain_counts_need_no_conversion():
    native = LegacyConversion(native=True)
    assert native.bypassed(as_pod(legacy(gpu=1), **UNSCHEDULABLE), ()) is None
    assert "asks for nvidia.com/gpumem, but" in (
        native.bypassed(as_pod(legacy(gpu=1, gpumem=1), **UNSCHEDULABLE), ()) or ""
    )

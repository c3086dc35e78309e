"""Policies from annotations: who wins, what is refused, and with which words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.scoring.policies import (
    DevicePolicy,
    InvalidPolicy,
    Policies,
    Weights,
    parse_device_policy,
    parse_weights,
)
from controller.scoring.policy_resolution import resolve_policies
from controller.scoring.ranking import RANKINGS
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.meta import ObjectMeta
from hami_dra.api.resource import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplate,
)


def meta(name, **annotations):
    keys = {"node": names.NODE_POLICY, "device": names.DEVICE_POLICY, "weights": names.SCORING_WEIGHTS}
    return ObjectMeta(
        name=name, namespace="default", annotations={keys[key]: value for key, value in annotations.items()}
    )


def claim_of(class_name, **annotations):
    request = DeviceRequest(name="gpu", exactly=ExactDeviceRequest(device_class_name=class_name, count=1))
    return ResourceClaim(
        metadata=meta("claim", **annotations), spec=ResourceClaimSpec(devices=DeviceClaim(requests_or_null=(request,)))
    )


def test_the_default_holds_when_nobody_says_anything():
    claim = claim_of("c")
    policies = resolve_policies(Pod(metadata=meta("p")), [claim], {}, {}, Policies())
    assert (policies.node_policy, policies.for_claim(claim.key).keys) == ("binpack", ("spread",))


@pytest.mark.parametrize("level", ["pod", "claim", "template", "class"])
def test_the_first_one_found_wins(level):
    levels = ["pod", "claim", "template", "class"]
    found = {
        each: {"node": "spread", "device": "binpack"} if each == level else {"node": "binpack", "device": "spread"}
        for each in levels[levels.index(level) :]
    }
    claim = claim_of("c", **found.get("claim", {}))
    policies = resolve_policies(
        Pod(metadata=meta("p", **found.get("pod", {}))),
        [claim],
        {claim.key: ResourceClaimTemplate(metadata=meta("t", **found["template"]))} if "template" in found else {},
        {"c": DeviceClass(metadata=ObjectMeta(name="c", annotations=meta("c", **found["class"]).annotations))},
        Policies(),
    )
    assert policies.node_policy == "spread"
    assert policies.for_claim(claim.key).keys == ("binpack",)
    assert level in policies.node_policy_origin.lower()


def test_each_claim_has_its_own_device_policy():
    first = claim_of("c", device="binpack")
    second = ResourceClaim(metadata=ObjectMeta(name="other", namespace="default"))
    policies = resolve_policies(Pod(metadata=meta("p")), [first, second], {}, {}, Policies())
    assert policies.for_claim(first.key).name == "binpack"
    assert policies.for_claim(second.key).name == "spread"


def test_what_the_annotations_ask_for_comes_by_name():
    said = {"nvidia.com/use-gputype": "A100", "nvidia.com/numa-bind": "true", "nvidia.com/nouse-gpuuuid": "GPU-x"}
    claim = claim_of("c")
    pod = Pod(metadata=ObjectMeta(name="p", namespace="default", annotations=said))
    policies = resolve_policies(pod, [claim], {}, {}, Policies())
    assert [each.annotation for each in policies.stated[claim.key]] == sorted(said)


def test_an_unknown_policy_names_object_value_and_choices():
    with pytest.raises(InvalidPolicy) as error:
        resolve_policies(Pod(metadata=meta("p", device="pack")), [], {}, {}, Policies())
    for part in ("Pod default/p", "pack", names.DEVICE_POLICY, "spread", "binpack", "topology-aware"):
        assert part in str(error.value)


def test_first_fit_is_no_policy_for_annotations():
    with pytest.raises(InvalidPolicy):
        parse_device_policy("first-fit", "Pod default/p")


def test_comma_lists_keep_their_order_and_name_nothing_twice():
    assert parse_device_policy("mutex, spread", "Pod x") == ("mutex", "spread")
    with pytest.raises(InvalidPolicy, match="twice"):
        parse_device_policy("spread,spread", "Pod x")


def test_weights_in_any_order():
    assert parse_weights("memory=3, slot=1,core=2", "Pod x") == Weights(slot=1, core=2, memory=3)


@pytest.mark.parametrize(
    "bad",
    ["", "slot=1", "slot=1,core=1,memory=-1", "slot=1,core=1,memory=1.5", "slot=0,core=0,memory=0",
     "slot=1,core=1,memory=1,slot=2", "slot=1,core=1,disk=1", "slot=1,core=1,memory=9999999999", "slot=1,core=1,memory=\u0661"],
)  # fmt: skip
def test_bad_weights_say_how_good_ones_look(bad):
    with pytest.raises(InvalidPolicy, match="slot=1,core=1,memory=1"):
        parse_weights(bad, "Pod default/p")


@given(st.text(max_size=30))
def test_no_annotation_text_makes_anything_but_a_policy_or_a_refusal(text):
    try:
        policies = resolve_policies(Pod(metadata=meta("p", device=text)), [], {}, {}, Policies())
    except InvalidPolicy:
        return
    assert isinstance(policies.device_policy, DevicePolicy)
    assert set(policies.device_policy.keys) <= set(names.DEVICE_POLICIES)


def test_every_node_policy_that_hami_lacks_has_a_ranking():
    assert set(RANKINGS) == set(names.NODE_POLICIES) - set(names.HAMI_NODE_POLICIES)

"""What the claims of a gang imply about its nodes."""

import pytest

from controller.decide import PodClaim, SchedulingRequest
from controller.gangs import GangKey, GangState, TopologyConstraint, constraints_of
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.meta import ObjectMeta
from hami_dra.api.resource import DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec

KEY = GangKey("labels", "team", "train")
RACK = TopologyConstraint("rack", required=False, source="annotation")


def member(device_class, *, in_a_list=False):
    asked = ExactDeviceRequest(device_class_name=device_class)
    request = DeviceRequest(name="r", first_available=(asked,)) if in_a_list else DeviceRequest(name="r", exactly=asked)
    spec = ResourceClaimSpec(devices=DeviceClaim(requests_or_null=(request,)))
    claim = ResourceClaim(metadata=ObjectMeta(name="channel", namespace="team"), spec=spec)
    return SchedulingRequest(Pod(), (PodClaim("c", claim),))


def state(*topology):
    return GangState(KEY, 1, (), 0, 0, topology=topology)


@pytest.mark.parametrize("in_a_list", [False, True])
def test_a_compute_domain_needs_one_clique(in_a_list):
    ask = member("compute-domain-default-channel.nvidia.com", in_a_list=in_a_list)
    first, second = constraints_of(state(RACK), [member("gpu.nvidia.com"), ask])
    assert (first.key, first.required, second) == (names.NVLINK_CLIQUE, True, RACK)
    assert first.source == ("DeviceClass compute-domain-default-channel.nvidia.com of ResourceClaim team/channel")


@pytest.mark.parametrize("device_class", ["gpu.nvidia.com", "compute-domain.example.com", ""])
def test_other_claims_need_none(device_class):
    assert constraints_of(state(RACK), [member(device_class)]) == (RACK,)


def test_a_group_that_says_so_itself_is_left_as_it_is():
    said = TopologyConstraint(names.NVLINK_CLIQUE, required=True, source="PodGroup team/train")
    assert constraints_of(state(said), [member("compute-domain-daemon.nvidia.com")]) == (said,)

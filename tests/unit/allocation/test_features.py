"""Feature gates as the command line gives them."""

import pytest

from controller.allocation.features import FeatureGates, UnknownGate


def test_the_defaults_are_those_of_1_37():
    gates = FeatureGates()
    assert gates.consumable_capacity
    assert gates.partitionable_devices
    assert gates.binding_conditions
    assert not gates.list_type_attributes
    assert not gates.compatibility_groups


def test_gates_are_switched_one_by_one_and_the_last_word_counts():
    gates = FeatureGates.parse("DRAListTypeAttributes=true, DRAConsumableCapacity=false,DRAListTypeAttributes=false")
    assert not gates.list_type_attributes
    assert not gates.consumable_capacity
    assert gates.device_taints


def test_binding_conditions_need_both_gates():
    assert not FeatureGates.parse("DRAResourceClaimDeviceStatus=false").binding_conditions
    assert not FeatureGates.parse("DRADeviceBindingConditions=false").binding_conditions


def test_a_gate_that_the_allocator_does_not_read_is_accepted():
    assert FeatureGates.parse("DRAExtendedResource=false") == FeatureGates()
    assert FeatureGates.parse("") == FeatureGates()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("DRAScoring=true", "unknown feature gate 'DRAScoring'"),
        ("DRADeviceTaints=yes", "DRADeviceTaints=true or DRADeviceTaints=false"),
        ("DRADeviceTaints", "'' is not a value"),
    ],
)
def test_anything_else_is_refused_with_the_fix(text, says):
    with pytest.raises(UnknownGate, match=says):
        FeatureGates.parse(text)


def test_pools_are_told_what_concerns_them():
    gates = FeatureGates.parse("DRAPartitionableDevices=false,DRADeviceCompatibilityGroups=true").pool_gates
    assert (gates.partitionable_devices, gates.compatibility_groups) == (False, True)

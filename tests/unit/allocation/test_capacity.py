"""Consumable capacity: what a request takes, rounding, and the amounts that end an allocation."""

from fractions import Fraction

import pytest

from controller.allocation.capacity import CapacityError, consumed_amounts, percentage, whole
from hami_dra.api.resource import CapacityRange, CapacityRequestPolicy, DeviceCapacity


def capacity(value, *, default=None, values=(), minimum=None, maximum=None, step=None):
    valid = None if minimum is None else CapacityRange(min=minimum, max=maximum, step=step)
    policy = CapacityRequestPolicy(default=default, valid_values=values, valid_range=valid)
    return DeviceCapacity(value=value, request_policy=None if policy == CapacityRequestPolicy() else policy)


def taken(request, of, *, fractional=False):
    """What is taken as the result spells it, or None where the policy does not allow it."""
    requests = {} if request is None else {"memory": request}
    shares = consumed_amounts(requests, {"memory": of}, fractional=fractional)
    assert shares is not None
    return str(shares["memory"].quantity) if shares["memory"].allowed else None


@pytest.mark.parametrize(
    ("request_", "of", "expected"),
    [
        # without a request the default, else everything
        (None, capacity("80Gi"), "80Gi"),
        (None, capacity("80Gi", default="10Gi"), "10Gi"),
        (None, capacity("80Gi", default="0", minimum="1Gi"), "0"),  # a default need not keep to its own range
        # without a policy the request as it is
        ("7500Mi", capacity("80Gi"), "7500Mi"),
        ("0", capacity("80Gi"), "0"),
        ("1500m", capacity("4"), "1500m"),
        # a range: up to min, then up to a step counted from min, and no further than max
        ("1", capacity("10", minimum="2"), "2"),
        ("3", capacity("10", minimum="2"), "3"),
        ("3", capacity("10", minimum="2", step="2"), "4"),
        ("4", capacity("10", minimum="2", step="2"), "4"),
        ("5", capacity("10", minimum="1", step="3"), "7"),
        ("8", capacity("10", minimum="2", maximum="8", step="2"), "8"),
        ("9", capacity("10", minimum="2", maximum="8", step="2"), None),
        ("9", capacity("10", minimum="2", maximum="8"), None),
        # values: the next one that is enough
        ("20Gi", capacity("96Gi", values=("24Gi", "48Gi", "96Gi")), "24Gi"),
        ("24Gi", capacity("96Gi", values=("24Gi", "48Gi", "96Gi")), "24Gi"),
        ("25Gi", capacity("96Gi", values=("24Gi", "48Gi", "96Gi")), "48Gi"),
        ("97Gi", capacity("96Gi", values=("24Gi", "48Gi", "96Gi")), None),
        ("0", capacity("96Gi", values=("24Gi",)), "24Gi"),
        # the result has the step's way of writing
        ("1000000000", capacity("80Gi", minimum="1Gi", step="1Gi"), "1Gi"),
        # whole units only: 200m counts as 1, and so does a step of 100m
        ("200m", capacity("1", default="200m", minimum="200m", maximum="1", step="100m"), "1"),
    ],
)
def test_rounding(request_, of, expected):
    assert taken(request_, of) == expected


@pytest.mark.parametrize(
    ("request_", "expected"), [("200m", "200m"), ("250m", "300m"), ("1", "1"), ("950m", "1"), ("1100m", None)]
)
def test_thousandths_count_with_the_gate_on(request_, expected):
    of = capacity("1", default="200m", minimum="200m", maximum="1", step="100m")
    assert taken(request_, of, fractional=True) == expected


def test_a_step_below_a_thousandth_is_counted_in_whole_units_with_the_gate_on_too():
    assert taken("1500m", capacity("9", minimum="1", step="1u"), fractional=True) == "2"


def test_a_capacity_that_the_device_does_not_have_is_no_match_not_zero():
    assert consumed_amounts({"tflops": "1"}, {"memory": capacity("1Gi")}, fractional=False) is None


def test_every_capacity_of_the_device_is_taken_from():
    shares = consumed_amounts(
        {"memory": "1Gi"}, {"memory": capacity("4Gi"), "cores": capacity("100", default="100")}, fractional=False
    )
    assert {name: share.amount for name, share in shares.items()} == {"memory": 2**30, "cores": 100}


@pytest.mark.parametrize(
    ("request_", "of"),
    [
        ("-1", capacity("10")),
        (None, capacity("-10")),
        (None, capacity("10", default="-1")),
        ("-5", capacity("10", values=("-2", "3"))),
        ("18446744073709551616", capacity("10", minimum="1", step="1")),
        ("9223372036854775807", capacity("10", minimum="2", step="2")),
        ("5", capacity("10", minimum="1", step="0")),
    ],
)
def test_amounts_that_end_the_allocation(request_, of):
    with pytest.raises(CapacityError):
        taken(request_, of)


def test_a_huge_request_without_a_step_is_just_too_much():
    shares = consumed_amounts(
        {"memory": "18446744073709551616"}, {"memory": capacity("10", minimum="1")}, fractional=False
    )
    assert shares["memory"].amount > shares["memory"].total


def test_thousandths_that_do_not_fit_end_the_allocation_with_the_gate_on():
    with pytest.raises(CapacityError, match="thousandths"):
        taken("9223372036854775807", capacity("10", minimum="200m", step="100m"), fractional=True)
    with pytest.raises(CapacityError, match="thousandths"):
        taken("200500u", capacity("10", minimum="200m", step="100m"), fractional=True)


def test_the_spelling_is_the_request_s_own_however_equal_amounts_were_spelled_before():
    assert taken("1Ki", capacity("4Ki")) == "1Ki"
    assert taken("1024", capacity("4Ki")) == "1024"
    assert taken("1Ki", capacity("4Ki")) == "1Ki"


@pytest.mark.parametrize(
    ("of", "percent", "expected"),
    [
        (capacity("15360Mi"), 50, str(7680 * 2**20)),
        (capacity("15360Mi"), 33, str(15360 * 2**20 * 33 // 100)),
        (capacity("15360Mi", default="15360Mi", minimum="1Mi", step="1Mi"), 33, str(15360 * 2**20 * 33 // 100)),
        (capacity("15360Mi"), 100, str(15360 * 2**20)),
        (capacity("1"), 1, "0"),
        (capacity("96Gi", values=("24Gi", "48Gi", "96Gi")), 30, str(48 * 2**30)),
    ],
)
def test_a_percentage_is_of_the_card_rounded_down_and_up_only_to_fixed_sizes(of, percent, expected):
    share = percentage(of, percent)
    assert str(share.amount) == expected
    assert share.allowed


def test_amounts_are_whole_numbers_or_exact_fractions():
    shares = consumed_amounts({"memory": "1500m"}, {"memory": capacity("2")}, fractional=False)
    assert shares["memory"].amount == Fraction(3, 2)
    assert whole(shares["memory"].amount) == 2
    assert whole(3) == 3
    assert whole(Fraction(-3, 2)) == -1

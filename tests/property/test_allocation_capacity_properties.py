"""Rounding of capacity requests: what holds whatever the policy."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from controller.allocation.capacity import consumed_amounts, percentage, whole
from hami_dra.api.resource import CapacityRange, CapacityRequestPolicy, DeviceCapacity

amounts = st.integers(0, 10**6)


@st.composite
def ranges(draw):
    minimum, step = draw(amounts), draw(st.integers(1, 1000))
    return minimum, step, minimum + step * draw(st.integers(0, 1000))


def share(request, value, policy):
    capacity = DeviceCapacity(value=str(value), request_policy=policy)
    shares = consumed_amounts({"memory": str(request)}, {"memory": capacity}, fractional=False)
    assert shares is not None
    return shares["memory"]


@given(amounts, ranges(), amounts)
def test_a_range_gives_the_next_step_and_no_more(request, valid, value):
    minimum, step, maximum = valid
    policy = CapacityRequestPolicy(valid_range=CapacityRange(min=str(minimum), max=str(maximum), step=str(step)))
    found = share(request, value, policy)
    assert found.amount >= max(request, minimum)
    assert found.amount - max(request, minimum) < step
    assert (found.amount - minimum) % step == 0
    assert found.allowed == (found.amount <= maximum)
    assert share(found.amount, value, policy).amount == found.amount


@given(amounts, st.lists(amounts, min_size=1, max_size=10, unique=True).map(sorted))
def test_values_give_the_smallest_that_is_enough(request, values):
    policy = CapacityRequestPolicy(valid_values=tuple(map(str, values)))
    found = share(request, 10, policy)
    enough = [value for value in values if value >= request]
    assert found.allowed == bool(enough)
    if enough:
        assert found.amount == enough[0]


@given(st.integers(0, 10**15), st.integers(1, 100))
def test_a_percentage_never_exceeds_its_part(value, percent):
    found = percentage(DeviceCapacity(value=str(value)), percent)
    assert found.amount <= Fraction(value * percent, 100) < found.amount + 1
    assert (percent < 100) or found.amount == value


@given(st.fractions(min_value=-(10**9), max_value=10**9))
def test_whole_units_are_rounded_up(amount):
    assert whole(amount) - 1 < amount <= whole(amount)

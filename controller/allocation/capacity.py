"""The amounts of a device that a request takes: consumable capacity and its rounding rules.

Called by `ResolvedRequest` (once per request shape and capacity; the arithmetic is cached) and by
`result`. In: quantities of the request and of the device. Out: exact quantities. Must not know
about usage: the search compares with what is left.

Rules: k8s.io/dynamic-resource-allocation v0.37
structured/internal/experimental/consumable_capacity.go. Names are compared verbatim. Amounts are
whole numbers of the capacity's unit if they are whole, which is nearly always the case, else exact
fractions.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct

from controller.inventory.model import Amount, amount_of
from hami_dra.api import resource as api
from hami_dra.api.core import QuantityText
from hami_dra.api.quantity import NANO, Format, Quantity
from hami_dra.api.short_texts import cached_if_short

_INT64_MAX: Final = 2**63 - 1
_NANOS_PER_MILLI: Final = NANO // 1000


class CapacityError(ValueError):
    """An amount that upstream refuses to calculate with; it ends the allocation, regardless of other devices."""


class ConsumedAmount(Struct, frozen=True):
    """The amount that one request takes of one capacity of a device."""

    amount: Amount
    total: Amount
    quantity: Quantity
    """The amount as the allocation result spells it."""
    allowed: bool
    """Meets the device's request policy."""


def whole(amount: Amount) -> int:
    """Return the amount rounded up to whole units, as the ledger and scoring count.

    >>> from fractions import Fraction
    >>> whole(3), whole(Fraction(5, 2))
    (3, 3)
    """
    return amount if isinstance(amount, int) else -(-amount.numerator // amount.denominator)


def consumed_amounts(
    requests: Mapping[str, str], capacities: Mapping[str, api.DeviceCapacity], *, fractional: bool
) -> dict[str, ConsumedAmount] | None:
    """Return the amount of every capacity of the device by name; None if the request names one that
    it does not have.

    Raises CapacityError, InvalidQuantity. Amounts are rounded up to the next one that the policy
    offers; above its maximum one is not `allowed`.
    """
    if not requests.keys() <= capacities.keys():
        return None
    return {name: _consumed_amount((requests.get(name), capacity, fractional)) for name, capacity in capacities.items()}


@lru_cache(maxsize=4_096)
def percentage(capacity: api.DeviceCapacity, percent: int) -> ConsumedAmount:
    """Return floor(capacity x percent / 100) in whole units, not rounded to a step: our driver
    limits memory to the byte.

    Only if the hardware has fixed sizes (`validValues`), the next one is taken.

    >>> memory = percentage(api.DeviceCapacity(value="1000"), 33)
    >>> memory.amount, memory.total
    (330, 1000)
    """
    total = Quantity.parse(_text(capacity.value))
    taken = Quantity.from_int(total.nanos * percent // (100 * NANO), Format.BINARY_SI)
    policy = capacity.request_policy
    allowed = True
    if policy is not None and policy.valid_values:
        taken = _round_up_to_values(taken, policy)
        allowed = _allows(policy, taken, fractional=False)
    return ConsumedAmount(amount_of(taken), amount_of(total), taken, allowed)


@lru_cache(maxsize=4_096)
def percentage_of_card(capacity: api.DeviceCapacity, percent: int, card: int) -> ConsumedAmount:
    """Return floor(card x percent / 100) of the memory of a part; `card`: bytes of the card that it
    is cut from.

    >>> instance = percentage_of_card(api.DeviceCapacity(value="9728"), 10, 81_920)
    >>> instance.amount, instance.total
    (8192, 9728)
    """
    total = Quantity.parse(_text(capacity.value))
    taken = Quantity.from_int(card * percent // 100, Format.BINARY_SI)
    return ConsumedAmount(amount_of(taken), amount_of(total), taken, allowed=True)


@lru_cache(maxsize=4_096)
def parts(capacity: api.DeviceCapacity, percent: int) -> ConsumedAmount:
    """Return ceil(capacity x percent / 100): the number of equal parts of the hardware that hold
    this percentage of it.

    >>> parts(api.DeviceCapacity(value="4"), 30).amount     # 1.2 of 4 parts
    2
    """
    total = Quantity.parse(_text(capacity.value))
    taken = Quantity.from_int(-(-total.nanos * percent // (100 * NANO)), Format.DECIMAL_SI)
    return ConsumedAmount(amount_of(taken), amount_of(total), taken, allowed=True)


@cached_if_short(8_192)  # by the spelling, not by the amount: results contain it
def _consumed_amount(asked: tuple[str | None, api.DeviceCapacity, bool]) -> ConsumedAmount:
    requested, capacity, fractional = asked
    total = Quantity.parse(_text(capacity.value))
    request = _parsed(requested)
    policy = capacity.request_policy
    default = _parsed(policy.default) if policy else None
    if request is None:
        taken = total if default is None else default
    elif policy is None:
        taken = request
    elif policy.valid_range is not None:
        taken = _round_up_to_range(request, policy.valid_range, fractional)
    else:
        taken = _round_up_to_values(request, policy)
    if taken.nanos < 0:
        raise CapacityError(f"{taken} is negative")
    allowed = policy is None or taken == default or _allows(policy, taken, fractional)
    return ConsumedAmount(amount_of(taken), amount_of(total), taken, allowed)


def _round_up_to_range(request: Quantity, valid: api.CapacityRange, fractional: bool) -> Quantity:
    """Round up to min, then up to min + n x step. `_allows` tests the maximum."""
    minimum, step = Quantity.parse(_text(valid.min)), _parsed(valid.step)
    if request < minimum:
        return minimum
    if step is None:
        return request
    if _counts_in_milli(valid, fractional):
        rounded = _next_step(_milli(request), _milli(minimum), _milli(step), request)
        return Quantity.from_nanos(rounded * _NANOS_PER_MILLI, step.format)
    if request.nanos > _INT64_MAX * NANO:
        raise CapacityError(f"a request of {request} is above {_INT64_MAX}, the largest amount that can be rounded")
    return Quantity.from_int(_next_step(request.value(), minimum.value(), step.value(), request), step.format)


def _next_step(value: int, minimum: int, step: int, request: Quantity) -> int:
    """Return the least `minimum` + n * `step` that is not below `value`. Raises CapacityError.

    >>> _next_step(25, 10, 8, Quantity.parse("25"))     # 10, 18, 26
    26
    """
    if step <= 0:
        raise CapacityError(f"requestPolicy.validRange.step is {step}, it must be above 0")
    rounded = minimum + -(-(value - minimum) // step) * step
    if rounded > _INT64_MAX:
        raise CapacityError(f"a request of {request} rounded up to the next step is above {_INT64_MAX}")
    return rounded


def _round_up_to_values(request: Quantity, policy: api.CapacityRequestPolicy) -> Quantity:
    """Return the first of the (ascending) values that is large enough, or the request if none is."""
    return next((value for value in map(Quantity.parse, map(_text, policy.valid_values)) if request <= value), request)


def _allows(policy: api.CapacityRequestPolicy, taken: Quantity, fractional: bool) -> bool:
    valid = policy.valid_range
    if valid is None:
        return not policy.valid_values or any(taken == Quantity.parse(_text(value)) for value in policy.valid_values)
    maximum, step = _parsed(valid.max), _parsed(valid.step)
    if maximum is not None and taken > maximum:
        return False
    if step is None:
        return True
    minimum = Quantity.parse(_text(valid.min))
    if _counts_in_milli(valid, fractional):
        return _is_milli(taken) and (_milli(taken) - _milli(minimum)) % _milli(step) == 0
    return (taken.value() - minimum.value()) % step.value() == 0


def _counts_in_milli(valid: api.CapacityRange, fractional: bool) -> bool:
    """Whether amounts are counted in thousandths.

    With the gate on, and only if all limits are whole numbers of milli units (and fit an int64).
    """
    limits = [limit for limit in (_parsed(valid.min), _parsed(valid.max), _parsed(valid.step)) if limit is not None]
    step = _parsed(valid.step)
    return fractional and all(map(_is_milli, limits)) and (step is None or _milli(step) >= 1)


def _is_milli(quantity: Quantity) -> bool:
    return quantity.nanos % _NANOS_PER_MILLI == 0 and abs(quantity.nanos) <= _INT64_MAX * _NANOS_PER_MILLI


def _milli(quantity: Quantity) -> int:
    """Return the amount in milli units. Raises CapacityError if it is no whole number of them."""
    if not _is_milli(quantity):
        raise CapacityError(f"a request of {quantity} is not a whole number of thousandths in range")
    return quantity.nanos // _NANOS_PER_MILLI


def _parsed(text: QuantityText | None) -> Quantity | None:
    return None if text is None else Quantity.parse(_text(text))


def _text(text: QuantityText) -> str:
    """Return the text of a number. Numbers in YAML may be int or float; their shortest spelling is
    what the user wrote.
    """
    return str(text)

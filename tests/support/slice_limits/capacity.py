"""What the API server demands of a device's capacity and of the policy for requests of it.

Called by `limits` (same sources). In: a capacity. Out: fields and problems.
"""

from collections.abc import Iterator
from typing import Final

from hami_dra.api.core import QuantityText
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.api.resource import CapacityRange, DeviceCapacity

MAX_VALID_VALUES: Final = 10
_INT64_MAX: Final = 2**63 - 1

Found = Iterator[tuple[str, str]]


def check_quantity(field: str, text: QuantityText) -> Found:
    if _parse(text) is None:
        yield field, f"{text!r} is not a quantity: write a number with an optional suffix, such as 10, 500m or 16Gi"


def check_capacity(field: str, capacity: DeviceCapacity, *, shared: bool) -> Found:
    """`shared`: the device allows multiple allocations; only then may requests consume a part."""
    policy = capacity.request_policy
    texts: list[tuple[str, QuantityText | None]] = [("value", capacity.value)]
    if policy:
        texts.append(("requestPolicy.default", policy.default))
        texts += [(f"requestPolicy.validValues[{number}]", text) for number, text in enumerate(policy.valid_values)]
        if policy.valid_range:
            bounds = policy.valid_range
            texts += [
                ("requestPolicy.validRange.min", bounds.min),
                ("requestPolicy.validRange.max", bounds.max),
                ("requestPolicy.validRange.step", bounds.step),
            ]
    problems = [found for name, text in texts if text is not None for found in check_quantity(f"{field}.{name}", text)]
    yield from problems
    if policy is None or problems:
        return
    field = f"{field}.requestPolicy"
    if not shared:
        yield field, "is only for devices that are shared: set allowMultipleAllocations, or leave the policy out"
        return
    if policy.valid_values and policy.valid_range:
        yield field, "has validValues and validRange: keep one of them"
        return
    total = Quantity.parse(_text(capacity.value))
    default = None if policy.default is None else Quantity.parse(_text(policy.default))
    if (policy.valid_values or policy.valid_range) and default is None:
        yield f"{field}.default", "is missing: say what a request without this capacity takes"
    elif default is not None and policy.valid_values:
        yield from _values(
            f"{field}.validValues", [Quantity.parse(_text(v)) for v in policy.valid_values], default, total
        )
    elif default is not None and policy.valid_range:
        yield from _range(f"{field}.validRange", policy.valid_range, default, total)


def _values(field: str, values: list[Quantity], default: Quantity, total: Quantity) -> Found:
    if len(values) > MAX_VALID_VALUES:
        yield field, f"has {len(values)} entries: leave out all but {MAX_VALID_VALUES}"
        return
    if values != sorted(values):
        yield field, "is not in ascending order: sort it"
    if len({value.value() for value in values}) < len(values):
        yield field, "has a value twice: remove one"
    for value in values:
        if value > total:
            yield field, f"{value} is more than the capacity has ({total}): remove it"
    if default not in values:
        yield field, f"does not contain the default {default}: add it"


def _range(field: str, bounds: CapacityRange, default: Quantity, total: Quantity) -> Found:
    low = Quantity.parse(_text(bounds.min))
    high = None if bounds.max is None else Quantity.parse(_text(bounds.max))
    step = None if bounds.step is None else Quantity.parse(_text(bounds.step))
    if low > total:
        yield f"{field}.min", f"{low} is more than the capacity has ({total}): lower it"
    if default < low:
        yield field, f"the default {default} is less than min {low}: raise the default"
    if high is not None:
        if low > high:
            yield f"{field}.max", f"{high} is less than min {low}: raise it"
        if high > total:
            yield f"{field}.max", f"{high} is more than the capacity has ({total}): lower it"
        if default > high:
            yield field, f"the default {default} is more than max {high}: lower the default"
    if step is not None:
        yield from _steps(field, low, step, [value for value in (default, high) if value is not None], total)


def _steps(field: str, low: Quantity, step: Quantity, values: list[Quantity], total: Quantity) -> Found:
    if step.sign() <= 0:
        yield f"{field}.step", f"{step} must be above 0"
        return
    if low.add(step) > total:
        yield f"{field}.step", f"min plus one step ({low.add(step)}) is more than the capacity has ({total}): lower it"
    outside = [value for value in (low, step, *values) if value.sign() < 0 or value.value() > _INT64_MAX]
    if outside:
        yield field, f"{outside[0]} is not between 0 and {_INT64_MAX}"
        return
    for value in values:
        if (value.value() - low.value()) % step.value():
            yield f"{field}.step", f"{value} is not min {low} plus a multiple of {step}: round it"


def _text(text: QuantityText) -> str:
    # JSON numbers are allowed; Kubernetes reads them by their text
    return text if isinstance(text, str) else str(text)


def _parse(text: QuantityText) -> Quantity | None:
    try:
        return Quantity.parse(_text(text))
    except InvalidQuantity:
        return None

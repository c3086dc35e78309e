"""matchAttribute and distinctAttribute: attributes that the devices of a claim must have in common,
or must not.

Called by the search: `add` before a device is taken, `remove` in reverse order. In: requests and
devices. Out: yes or no. Both refuse a device without the attribute.

Rules: upstream's matchAttributeConstraint and distinctAttributeConstraint (v0.37). With
DRAListTypeAttributes a value is a set (one element for a plain attribute): all must share an
element, or be disjoint in pairs. Without it lists are unknown values: a constraint accepts one as
its first device and never another.
"""

from collections.abc import Sequence
from typing import Protocol

from controller.allocation.resolved import ResolvedRequest
from controller.inventory.model import Device
from hami_dra.api import resource as api

Scalar = int | bool | str
Value = tuple[str, frozenset[Scalar]]
"""Type and elements; one element if there are no lists. Values of different types are never equal."""
UNKNOWN: Value = ("", frozenset())


class Constraint(Protocol):
    def add(self, view: ResolvedRequest, device: Device) -> bool:
        """Add the device, unless it breaks the constraint. Raises AllocatorError (derived attributes)."""

    def remove(self) -> None:
        """Undo the latest successful `add`."""

    def value(self, view: ResolvedRequest, device: Device) -> Value | None:
        """Return the device's value for the constraint; None if it has no such attribute. Raises AllocatorError."""


def build(claim: api.ResourceClaim, *, lists: bool) -> tuple[Constraint, ...]:
    """Return the claim's constraints in order, without devices. `ResolvedRequest.constraints` says
    which requests they cover.
    """
    return tuple(
        Match(constraint.match_attribute, lists=lists)
        if constraint.match_attribute is not None
        else Distinct(constraint.distinct_attribute or "", lists=lists)
        for constraint in claim.spec.devices.constraints
    )


class _Attribute:
    def __init__(self, name: str, *, lists: bool) -> None:
        self._name = name
        self._lists = lists
        self._known: dict[tuple[Device, int | None], Value | None] = {}

    def value(self, view: ResolvedRequest, device: Device) -> Value | None:
        # Only a derived attribute depends on the request.
        key = (device, view.shape_index if self._name in view.derived else None)
        if key not in self._known:
            self._known[key] = value_of(self._name, view, device, lists=self._lists)
        return self._known[key]


class Match(_Attribute):
    """matchAttribute. `_common` holds the values shared by all devices, after each of them.

    With lists, devices on the NUMA nodes {0, 1}, {1} and {0}: after two devices {1} is common, so
    the third breaks the constraint. `remove` returns to the state before:

        add {0, 1}   _common [{0, 1}]
        add {1}      _common [{0, 1}, {1}]
        add {0}      refused: {1} & {0} is empty
        remove       _common [{0, 1}]: now {0} would fit
    """

    def __init__(self, name: str, *, lists: bool) -> None:
        super().__init__(name, lists=lists)
        self._common: list[Value] = []

    def add(self, view: ResolvedRequest, device: Device) -> bool:
        value = self.value(view, device)
        if value is None or (value is UNKNOWN and (self._lists or self._common)):
            return False
        if self._common:
            kind, elements = self._common[-1]
            elements &= value[1]
            if kind != value[0] or not elements:
                return False
            value = (kind, elements)
        self._common.append(value)
        return True

    def remove(self) -> None:
        self._common.pop()


class Distinct(_Attribute):
    """distinctAttribute. `_values` holds the value of each device."""

    def __init__(self, name: str, *, lists: bool) -> None:
        super().__init__(name, lists=lists)
        self._values: list[Value] = []

    def add(self, view: ResolvedRequest, device: Device) -> bool:
        value = self.value(view, device)
        if value is None or (value is UNKNOWN and (self._lists or self._values)):
            return False
        if any(kind == value[0] and not elements.isdisjoint(value[1]) for kind, elements in self._values):
            return False
        self._values.append(value)
        return True

    def remove(self) -> None:
        self._values.pop()


def value_of(name: str, view: ResolvedRequest, device: Device, *, lists: bool) -> Value | None:
    """Return what the request sees of the device's attribute; None if it has none. Raises AllocatorError."""
    derived = view.derived.get(name)
    attribute = device.attribute(name) if derived is None else derived.of(device)
    return None if attribute is None else _value(attribute, lists=lists)


def _value(attribute: api.DeviceAttribute, *, lists: bool) -> Value:
    """Return the typed value. Versions compare as text: semver has one spelling for each."""
    plural: Sequence[tuple[str, Sequence[Scalar]]] = (
        ("int", attribute.ints or ()),
        ("bool", attribute.bools or ()),
        ("string", attribute.strings or ()),
        ("version", attribute.versions or ()),
    )
    for kind, values in plural if lists else ():
        if values:
            return kind, frozenset(values)
    singular: Sequence[tuple[str, Scalar | None]] = (
        ("string", attribute.string),
        ("int", attribute.int_),
        ("bool", attribute.bool_),
        ("version", attribute.version),
    )
    for kind, scalar in singular:
        if scalar is not None:
            return kind, frozenset((scalar,))
    return UNKNOWN

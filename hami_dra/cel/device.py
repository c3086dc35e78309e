"""The device as a selector sees it. Built once per device and cached: evaluation never changes it."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from hami_dra.api.core import QuantityText
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.api.resource import Device, DeviceAttribute
from hami_dra.api.semver import InvalidVersion, SemVer
from hami_dra.cel.values import OpenMap

RawAttribute = DeviceAttribute | Mapping[str, Any]


class DeviceInput:
    """Input of a selector.

    `attributes` and `capacity` are by domain, then by name; names without a domain belong to the
    driver's. Values are int, bool, str, SemVer, lists of these, and Quantity. `problem` says why no
    selector can be evaluated on this device, or is empty. `largest` bounds the size of every
    string, list and map in it.
    """

    __slots__ = ("_whole", "allow_multiple_allocations", "attributes", "capacity", "driver", "largest", "problem")

    def __init__(
        self,
        driver: str,
        attributes: Mapping[str, Mapping[str, Any]],
        capacity: Mapping[str, Mapping[str, Quantity]],
        *,
        allow_multiple_allocations: bool = False,
        problem: str = "",
    ) -> None:
        self.driver: Final = driver
        self.attributes: Final = OpenMap((domain, dict(values)) for domain, values in attributes.items())
        self.capacity: Final = OpenMap((domain, dict(values)) for domain, values in capacity.items())
        self.allow_multiple_allocations: Final = allow_multiple_allocations
        self.problem: Final = problem
        self.largest: Final = max(
            len(driver),
            *(_largest(values) for values in self.attributes.items()),
            *(_largest(values) for values in self.capacity.items()),
            0,
        )
        self._whole: dict[str, Any] | None = None

    @staticmethod
    def of(
        driver: str,
        attributes: Mapping[str, RawAttribute] | None = None,
        capacity: Mapping[str, QuantityText] | None = None,
        *,
        allow_multiple_allocations: bool | None = False,
    ) -> "DeviceInput":
        """Build the input from the parts of a published device.

        Attributes are given as in the API ({"string": "T4"}), capacity as quantities. As in
        Kubernetes, an unusable value makes the whole device unusable for selectors (`problem`).
        """
        problem = ""
        values: dict[str, dict[str, Any]] = {}
        quantities: dict[str, dict[str, Quantity]] = {}
        for name, raw in (attributes or {}).items():
            try:
                _file(values, driver, name, _value(raw))
            except (ValueError, msgspec.ValidationError) as error:
                problem = f"attribute {name}: {error}"
        for name, amount in (capacity or {}).items():
            try:
                _file(quantities, driver, name, Quantity.parse(amount))
            except InvalidQuantity as error:
                problem = f"capacity {name}: {error}"
        return DeviceInput(
            driver, values, quantities, allow_multiple_allocations=bool(allow_multiple_allocations), problem=problem
        )

    @staticmethod
    def from_device(driver: str, device: Device) -> "DeviceInput":
        return DeviceInput.of(
            driver,
            device.attributes,
            {name: capacity.value for name, capacity in device.capacity.items()},
            allow_multiple_allocations=device.allow_multiple_allocations,
        )

    @property
    def whole(self) -> dict[str, Any]:
        """Return the device as one map: the value of `dyn(device)`."""
        if self._whole is None:
            self._whole = {
                "driver": self.driver,
                "allowMultipleAllocations": self.allow_multiple_allocations,
                "attributes": self.attributes,
                "capacity": self.capacity,
            }
        return self._whole


def _file(target: dict[str, dict[str, Any]], driver: str, name: str, value: Any) -> None:
    domain, slash, identifier = name.partition("/")
    if slash:
        target.setdefault(domain, {})[identifier] = value
    else:
        target.setdefault(driver, {})[name] = value


def _value(raw: RawAttribute) -> Any:
    """Return the value that is set; lists take precedence, as in Kubernetes."""
    attribute = raw if isinstance(raw, DeviceAttribute) else msgspec.convert(raw, DeviceAttribute)
    for values in (attribute.ints, attribute.bools, attribute.strings):
        if values is not None:
            return [_clean(value) for value in values]
    if attribute.versions is not None:
        return [_version(version) for version in attribute.versions]
    for value in (attribute.int_, attribute.bool_, attribute.string):
        if value is not None:
            return _clean(value)
    if attribute.version is not None:
        return _version(attribute.version)
    raise ValueError("unsupported attribute value")


def _version(text: str) -> SemVer:
    try:
        return SemVer.parse(text)
    except InvalidVersion as error:
        raise ValueError(f"parse semantic version: {error}") from None


def _clean(value: Any) -> Any:
    # The API contains only valid UTF-8, but a file may contain other text.
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return value


def _largest(entry: tuple[str, dict[str, Any]]) -> int:
    domain, values = entry
    sizes = [len(domain), len(values)]
    for name, value in values.items():
        sizes.append(len(name))
        if isinstance(value, str | list):
            sizes.append(len(value))
        if isinstance(value, list):
            sizes.extend(len(element) for element in value if isinstance(element, str))
    return max(sizes)

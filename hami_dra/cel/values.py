"""Run-time values that are not plain Python values; equality and order over all values.

| CEL | Python |
|---|---|
| bool, int, double, string, bytes, null | bool, int, float, str, bytes, None |
| uint | Uint |
| list, map | list, dict; neither is changed once an expression has seen it |
| duration, timestamp, optional, type | Duration, Timestamp, Optional, TypeName |
| Quantity, Semver | api.Quantity, api.SemVer |

A map is a dict with plain strings and integers as keys, and anything else wrapped (`map_key`),
because True, 1 and 1.0 are one key in Python. Semantics: cel-go common/types.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from hami_dra.api.quantity import Quantity
from hami_dra.api.semver import SemVer
from hami_dra.cel.errors import CelError, no_such_overload

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1
SECOND: Final = 10**9  # durations and timestamps count nanoseconds
MIN_TIMESTAMP: Final = -62_135_596_800 * SECOND  # 0001-01-01
MAX_TIMESTAMP: Final = 253_402_300_800 * SECOND - 1  # the end of 9999
MISSING: Final = object()

Work = Callable[[int], None]
"""Called with a number of steps before they run; may raise CostExceeded: Meter.work, or `free_work`
if no count is needed.
"""


def free_work(_: int) -> None:
    """Count nothing."""


class Uint(int):
    """An unsigned integer; use `unsigned` for the sum of two."""

    __slots__ = ()


class Duration(int):
    """Nanoseconds."""

    __slots__ = ()


class Timestamp(Struct, eq=False):
    """An instant, and the offset from UTC that it was written with (used only in its text)."""

    nanos: int
    offset_seconds: int = 0


class TypeName(Struct, eq=False):
    """A type as a value: `int`, or the result of type(x)."""

    name: str


class Optional(Struct, eq=False):
    """optional.of(value), or optional.none() where value is MISSING."""

    value: Any


class SumQuantity(Quantity, frozen=True, eq=False):
    """Result of Quantity.add or .sub: Kubernetes cannot compare with it on the right of `==`."""


class OpenMap(dict[Any, Any]):
    """device.attributes and device.capacity: a missing domain reads as an empty map, but is not `in`."""

    __slots__ = ()


NONE: Final = Optional(MISSING)
EMPTY: Final[dict[Any, Any]] = {}

TYPE_NAMES: Final[dict[type, str]] = {
    bool: "bool", int: "int", Uint: "uint", float: "double", str: "string", bytes: "bytes", type(None): "null_type",
    list: "list", dict: "map", OpenMap: "map", Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp", TypeName: "type", Optional: "optional_type",
    Quantity: "kubernetes.Quantity", SumQuantity: "kubernetes.Quantity", SemVer: "kubernetes.Semver",
}  # fmt: skip
"""The network types add themselves (library/network.py and similar modules)."""

_NUMBERS: Final = {int, Uint, float}
_PLAIN_KEYS: Final = {str, int, Uint}
_COMPARABLE: Final = {int, Uint, float, str, bool, bytes, Duration, Timestamp}


def type_name(value: Any) -> str:
    return TYPE_NAMES[type(value)]


def map_key(value: Any) -> Any:
    """Return the dict key for a CEL key. Raises CelError for bytes, lists and maps."""
    kind = type(value)
    if kind in _PLAIN_KEYS:
        return value
    if kind is bytes or kind is list or isinstance(value, dict):
        raise CelError(f"unsupported key type: {TYPE_NAMES[kind]}")
    return (kind, value)


def key_value(key: Any) -> Any:
    return key[1] if type(key) is tuple else key


def find(mapping: dict[Any, Any], key: Any) -> Any:
    """Return the entry, or MISSING; an OpenMap returns an empty map for a missing entry."""
    found = mapping.get(key, MISSING) if type(key) is str else _find(mapping, key)
    if found is MISSING and type(mapping) is OpenMap:
        return EMPTY
    return found


def contains_key(mapping: dict[Any, Any], key: Any) -> bool:
    """Return `key in mapping`: an OpenMap contains only its real entries."""
    return _find(mapping, key) is not MISSING


def _find(mapping: dict[Any, Any], key: Any) -> Any:
    kind = type(key)
    if kind in _PLAIN_KEYS:
        return mapping.get(key, MISSING)
    if kind is list or isinstance(key, dict):
        return MISSING
    found = mapping.get((kind, key), MISSING)
    if found is MISSING and kind is float and key.is_integer() and INT_MIN <= key <= UINT_MAX:
        found = mapping.get(int(key), MISSING)  # a double finds the integer of the same value
    return found


def equal(left: Any, right: Any, work: Work = free_work) -> bool:
    """Return CEL's `==`. Raises CelError where Kubernetes' own types refuse comparison with another type."""
    kind, other = type(left), type(right)
    if kind is str or kind is bool or kind is bytes:
        return kind is other and bool(left == right)
    if kind in _NUMBERS:
        return other in _NUMBERS and _numbers_equal(left, right)
    if left is None or right is None:
        return left is right
    test = _EQUALITY.get(kind)
    if test is not None:
        return test(left, right, work)
    if other is not (Quantity if kind is SumQuantity else kind):
        raise no_such_overload()
    return bool(left == right)


def surely_equal(left: Any, right: Any, work: Work = free_work) -> bool:
    """Return `equal`, with errors as False: the rule of `in` and of the list functions."""
    try:
        return equal(left, right, work)
    except CelError:
        return False


def _not_unequal(left: Any, right: Any, work: Work) -> bool:
    # Inside lists and maps an error counts as equal, as in cel-go.
    try:
        return equal(left, right, work)
    except CelError:
        return True


def _lists_equal(left: Any, right: Any, work: Work) -> bool:
    if type(right) is not list or len(left) != len(right):
        return False
    work(len(left))
    return all(_not_unequal(first, second, work) for first, second in zip(left, right, strict=True))


def _maps_equal(left: Any, right: Any, work: Work) -> bool:
    if not isinstance(right, dict) or len(left) != len(right):
        return False
    work(len(left))
    for key, value in left.items():
        other = find(right, key_value(key))
        if other is MISSING or not _not_unequal(value, other, work):
            return False
    return True


def _optionals_equal(left: Any, right: Any, work: Work) -> bool:
    if type(right) is not Optional or (left.value is MISSING) != (right.value is MISSING):
        return False
    return left.value is MISSING or equal(left.value, right.value, work)


_EQUALITY: Final[dict[type, Callable[[Any, Any, Work], bool]]] = {
    list: _lists_equal,
    dict: _maps_equal,
    OpenMap: _maps_equal,
    Optional: _optionals_equal,
    Timestamp: lambda left, right, _work: type(right) is Timestamp and left.nanos == right.nanos,
    Duration: lambda left, right, _work: type(right) is Duration and int(left) == int(right),
    TypeName: lambda left, right, _work: type(right) is TypeName and left.name == right.name,
}


def _numbers_equal(left: Any, right: Any) -> bool:
    if type(left) is float or type(right) is float:
        return not (math.isnan(left) or math.isnan(right)) and _compare_with_float(left, right) == 0
    return int(left) == int(right)


def compare(left: Any, right: Any) -> int:
    """Return -1, 0 or 1. Raises CelError for values without a common order."""
    kind, other = type(left), type(right)
    if kind in _NUMBERS and other in _NUMBERS:
        if kind is float or other is float:
            if math.isnan(left) or math.isnan(right):
                raise CelError("NaN values cannot be ordered")
            return _compare_with_float(left, right)
        return _order(left, right)
    if kind is other:
        if kind is str or kind is bool or kind is bytes or kind is Duration:
            return _order(left, right)
        if kind is Timestamp:
            return _order(left.nanos, right.nanos)
    raise no_such_overload()


def is_comparable(value: Any) -> bool:
    return type(value) in _COMPARABLE


def _compare_with_float(left: Any, right: Any) -> int:
    # cel-go converts the integer to a double unless the double is beyond all integers.
    return _order(float(left), float(right))


def _order(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def is_zero(value: Any) -> bool:
    """Return whether optional.ofNonZeroValue treats `value` as empty."""
    if value is None:
        return True
    if isinstance(value, (bool, int, float, str, bytes, list, dict)):
        return not value
    if type(value) is Timestamp:
        return value.nanos == MIN_TIMESTAMP
    return False


def integer(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    raise CelError("integer overflow")


def unsigned(value: int) -> Uint:
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise CelError("unsigned integer overflow")


def duration(nanos: int) -> Duration:
    if INT_MIN <= nanos <= INT_MAX:
        return Duration(nanos)
    raise CelError("integer overflow")


def timestamp(nanos: int, offset_seconds: int = 0) -> Timestamp:
    if MIN_TIMESTAMP <= nanos <= MAX_TIMESTAMP:
        return Timestamp(nanos, offset_seconds)
    raise CelError("timestamp overflow")


def show(value: Any) -> str:
    if value is True or value is False:
        return "true" if value else "false"
    return str(value)

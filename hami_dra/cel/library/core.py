"""Operators and size: cel-go's standard library (common/stdlib) without time."""

import math
import operator as native
from collections.abc import Callable
from typing import Any, Final

from hami_dra.cel import meter
from hami_dra.cel.errors import CelError, no_such_overload
from hami_dra.cel.library.registry import declare, heavy, loops, operators, wants_meter
from hami_dra.cel.values import (
    Duration,
    Timestamp,
    Uint,
    compare,
    contains_key,
    duration,
    free_work,
    integer,
    surely_equal,
    timestamp,
    unsigned,
)

declare("_&&_", "bool, bool -> bool")
declare("_||_", "bool, bool -> bool")
declare("!_", "bool -> bool")
declare("_?_:_", "bool, A, A -> A")
declare("_==_", "A, A -> bool")
declare("_!=_", "A, A -> bool", cost=meter.scan_shorter)
declare("@in", "A, list(A) -> bool", cost=meter.size_of_second)
declare("@in", "A, map(A, B) -> bool")
declare(
    "_[_]",
    "list(A), int -> A",
    "map(A, B), A -> B",
    "optional(list(V)), int -> optional(V)",
    "optional(map(K, V)), K -> optional(V)",
)
declare(
    "_[?_]",
    "list(V), int -> optional(V)",
    "optional(list(V)), int -> optional(V)",
    "map(K, V), K -> optional(V)",
    "optional(map(K, V)), K -> optional(V)",
)
declare("-_", "double -> double", "int -> int")
declare("_+_", "bytes, bytes -> bytes", cost=meter.scan_both)
declare(
    "_+_",
    "double, double -> double",
    "Duration, Duration -> Duration",
    "Duration, Timestamp -> Timestamp",
    "Timestamp, Duration -> Timestamp",
    "int, int -> int",
    "list(A), list(A) -> list(A)",
)
declare("_+_", "string, string -> string", cost=meter.scan_both)
declare("_+_", "uint, uint -> uint")
declare(
    "_-_",
    "double, double -> double",
    "Duration, Duration -> Duration",
    "int, int -> int",
    "Timestamp, Duration -> Timestamp",
    "Timestamp, Timestamp -> Duration",
    "uint, uint -> uint",
)
for _name in ("_*_", "_/_"):
    declare(_name, "double, double -> double", "int, int -> int", "uint, uint -> uint")
declare("_%_", "int, int -> int", "uint, uint -> uint")
for _name in ("_<_", "_<=_", "_>_", "_>=_"):
    declare(_name, "bool, bool -> bool")
    declare(
        _name,
        *(f"{left}, {right} -> bool" for left in ("int", "uint", "double") for right in ("int", "uint", "double")),
    )
    declare(_name, "string, string -> bool", "bytes, bytes -> bool", cost=meter.scan_shorter)
    declare(_name, "Timestamp, Timestamp -> bool", "Duration, Duration -> bool")
declare("size", "bytes -> int", "list(A) -> int", "map(A, B) -> int", "string -> int")
declare("size", "bytes -> int", "list(A) -> int", "map(A, B) -> int", "string -> int", member=True)
heavy.add("_+_")
loops.add("@in")
wants_meter.update({"_+_", "@in"})


def add(counter: meter.Meter | None, left: Any, right: Any) -> Any:
    """Return `left + right`. Only results that grow need a meter, and selectors with + always have one."""
    kind = type(left)
    other = type(right)
    if kind is other:
        if kind is int:
            return integer(left + right)
        if kind is float:
            return left + right
        if kind is str or kind is bytes or kind is list:
            if counter is not None:
                counter.allocate(len(left) + len(right))
            return left + right
        if kind is Uint:
            return unsigned(int(left) + int(right))
        if kind is Duration:
            return duration(int(left) + int(right))
    if kind is Duration and other is Timestamp:
        return timestamp(right.nanos + int(left), right.offset_seconds)
    if kind is Timestamp and other is Duration:
        return timestamp(left.nanos + int(right), left.offset_seconds)
    raise _unsupported(left, "_+_", _ADDABLE)


def subtract(left: Any, right: Any) -> Any:
    kind = type(left)
    other = type(right)
    if kind is other:
        if kind is int:
            return integer(left - right)
        if kind is float:
            return left - right
        if kind is Uint:
            return unsigned(int(left) - int(right))
        if kind is Duration:
            return duration(int(left) - int(right))
        if kind is Timestamp:
            return duration(left.nanos - right.nanos)
    if kind is Timestamp and other is Duration:
        return timestamp(left.nanos - int(right), left.offset_seconds)
    raise _unsupported(left, "_-_", _SUBTRACTABLE)


def multiply(left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is type(right):
        if kind is int:
            return integer(left * right)
        if kind is float:
            return left * right
        if kind is Uint:
            return unsigned(int(left) * int(right))
    raise _unsupported(left, "_*_", _NUMBERS)


def divide(left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is type(right):
        if kind is float:
            return _divide_floats(left, right)
        if kind is int or kind is Uint:
            if right == 0:
                raise CelError("division by zero")
            quotient = abs(int(left)) // abs(int(right))
            return unsigned(quotient) if kind is Uint else integer(quotient if (left < 0) == (right < 0) else -quotient)
    raise _unsupported(left, "_/_", _NUMBERS)


def modulo(left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is type(right) and (kind is int or kind is Uint):
        if right == 0:
            raise CelError("modulus by zero")
        if kind is Uint:
            return Uint(int(left) % int(right))
        if left == -(2**63) and right == -1:
            raise CelError("integer overflow")
        rest = abs(left) % abs(right)
        return rest if left >= 0 else -rest
    raise _unsupported(left, "_%_", {int, Uint})


def negate(value: Any) -> Any:
    if type(value) is int:
        return integer(-value)
    if type(value) is float:
        return -value
    if type(value) is Duration:
        return duration(-int(value))
    raise no_such_overload() if type(value) is bool else CelError("no such overload: -_")


def invert(value: Any) -> bool:
    if value is True:
        return False
    if value is False:
        return True
    raise no_such_overload()


def contained(counter: meter.Meter | None, element: Any, container: Any) -> bool:
    if type(container) is list:
        work = counter.work if counter is not None else free_work
        return any(surely_equal(element, other, work) for other in container)
    if isinstance(container, dict):
        return contains_key(container, element)
    raise no_such_overload()


def size(value: Any) -> int:
    if isinstance(value, (str, list, dict, bytes)):
        return len(value)
    raise CelError("no such overload: size")


def _unsupported(left: Any, operator: str, supporting: set[type]) -> CelError:
    # cel-go names the operator only if the left side does not support it at all.
    return no_such_overload() if type(left) in supporting else CelError(f"no such overload: {operator}")


_NUMBERS: Final[set[type]] = {int, Uint, float}
_SUBTRACTABLE: Final = _NUMBERS | {Duration, Timestamp}
_ADDABLE: Final = _SUBTRACTABLE | {str, bytes, list}
_COMPARABLE: Final = _SUBTRACTABLE | {str, bytes, bool}


def _comparison(operator: str, holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compared(left: Any, right: Any) -> bool:
        if type(left) is int and type(right) is int:
            return holds(left, right)
        if type(left) not in _COMPARABLE:
            raise CelError(f"no such overload: {operator}")
        return holds(compare(left, right), 0)

    return compared


operators.update(
    {
        "_+_": add,
        "_-_": subtract,
        "_*_": multiply,
        "_/_": divide,
        "_%_": modulo,
        "-_": negate,
        "!_": invert,
        "@in": contained,
        "size": size,
        "_<_": _comparison("_<_", native.lt),
        "_<=_": _comparison("_<=_", native.le),
        "_>_": _comparison("_>_", native.gt),
        "_>=_": _comparison("_>=_", native.ge),
    }
)


def _divide_floats(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1, right)

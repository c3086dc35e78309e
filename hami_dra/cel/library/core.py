"""Operators, conversions and size: cel-go's standard library (common/stdlib) without time."""

import math
import operator as native
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from hami_dra.cel import meter
from hami_dra.cel.errors import CelError, no_such_overload
from hami_dra.cel.library.registry import declare, function, heavy, loops, operators, wants_meter
from hami_dra.cel.values import (
    Duration,
    Timestamp,
    TypeName,
    Uint,
    compare,
    contains_key,
    duration,
    free_work,
    integer,
    surely_equal,
    timestamp,
    type_name,
    unsigned,
)

_FLOAT: Final = re.compile(
    r"[+-]?(?:[0-9](?:_?[0-9])*\.?(?:[0-9](?:_?[0-9])*)?|\.[0-9](?:_?[0-9])*)(?:[eE][+-]?[0-9]+)?"
)
_HEX_FLOAT: Final = re.compile(r"[+-]?0[xX](?=_?[0-9a-fA-F]|\.)(?:_?[0-9a-fA-F])*\.?(?:_?[0-9a-fA-F])*[pP][+-]?[0-9]+")
_SPECIAL_FLOAT: Final = re.compile(r"[+-]?(?:inf|infinity|nan)", re.IGNORECASE)
_SIGNED: Final = re.compile(r"[+-]?[0-9]{1,1000}")
_UNSIGNED: Final = re.compile(r"[0-9]{1,1000}")
_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}

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
    """Return `left + right`.

    Only results that grow need a meter, and selectors with + always have one.
    """
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
    """Return `element in container`."""
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


# ---- conversions ----


def _cannot(value: Any, target: str) -> CelError:
    return CelError(f"type conversion error from '{type_name(value)}' to '{target}'")


@function("dyn", "A -> dyn", conversion=True)
@function("bool", "bool -> bool", conversion=True)
@function("bytes", "bytes -> bytes", conversion=True)
@function("double", "double -> double", conversion=True)
@function("int", "int -> int", conversion=True)
@function("string", "string -> string", conversion=True)
@function("uint", "uint -> uint", conversion=True)
def identity(value: Any) -> Any:
    return value


@function("type", "A -> type(A)", conversion=True)
def type_of(value: Any) -> TypeName:
    return TypeName(type_name(value))


@function("bool", "string -> bool", conversion=True)
def to_bool(text: str) -> bool:
    value = _BOOLS.get(text)
    if value is None:
        raise _cannot(text, "bool")
    return value


@function("bytes", "string -> bytes", cost=meter.scan_first, conversion=True)
def to_bytes(text: str) -> bytes:
    return text.encode()


@function("double", "int -> double", conversion=True)
@function("double", "uint -> double", conversion=True)
def to_double(value: int) -> float:
    return float(value)


@function("double", "string -> double", conversion=True)
def text_to_double(text: str) -> float:
    if _FLOAT.fullmatch(text):
        value = float(text)
        if math.isfinite(value):
            return value
    elif _HEX_FLOAT.fullmatch(text):
        try:
            return float.fromhex(text.replace("_", ""))
        except (OverflowError, ValueError):
            raise _cannot(text, "double") from None
    elif _SPECIAL_FLOAT.fullmatch(text):
        return float(text)
    raise _cannot(text, "double")


@function("int", "double -> int", conversion=True)
def double_to_int(value: float) -> int:
    if not -(2.0**63) < value < 2.0**63:
        raise CelError("integer overflow")
    return int(value)


@function("int", "uint -> int", conversion=True)
def uint_to_int(value: Uint) -> int:
    return integer(int(value))


@function("int", "string -> int", conversion=True)
def text_to_int(text: str) -> int:
    if _SIGNED.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    raise _cannot(text, "int")


@function("uint", "double -> uint", conversion=True)
def double_to_uint(value: float) -> Uint:
    if not 0 <= value < 2.0**64:
        raise CelError("unsigned integer overflow")
    return Uint(value)


@function("uint", "int -> uint", conversion=True)
def int_to_uint(value: int) -> Uint:
    return unsigned(value)


@function("uint", "string -> uint", conversion=True)
def text_to_uint(text: str) -> Uint:
    if _UNSIGNED.fullmatch(text) and int(text) < 2**64:
        return Uint(text)
    raise _cannot(text, "uint")


@function("string", "bool -> string", conversion=True)
def bool_to_text(value: bool) -> str:
    return "true" if value else "false"


@function("string", "bytes -> string", cost=meter.scan_first, conversion=True)
def bytes_to_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise CelError("invalid UTF-8 in bytes, cannot convert to string") from None


@function("string", "int -> string", conversion=True)
@function("string", "uint -> string", conversion=True)
def int_to_text(value: int) -> str:
    return str(int(value))


@function("string", "double -> string", conversion=True)
def double_to_text(value: float) -> str:
    """Return Go's %g: the shortest digits that mean `value`.

    It has an exponent of at least two digits below 1e-4 and from 1e6 on.
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, power = decimal_digits(value)
    if -4 <= power < 6:
        return sign + positional(digits, power)
    tail = "." + digits[1:] if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{'-' if power < 0 else '+'}{abs(power):02d}"


def decimal_digits(value: float) -> tuple[str, str, int]:
    """Return (sign, shortest digits, power of ten of the first digit)."""
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    power = len(digits) - 1 + int(exponent) if text != "0" else 0
    return "-" if sign else "", text, power


def positional(digits: str, power: int) -> str:
    """Return the number without an exponent; its first digit stands for 10^power."""
    if power < 0:
        return "0." + "0" * (-power - 1) + digits
    if len(digits) <= power + 1:
        return digits + "0" * (power + 1 - len(digits))
    return digits[: power + 1] + "." + digits[power + 1 :]

"""Conversions between types, and `type`: cel-go's standard library (common/stdlib) without time."""

import math
import re
from decimal import Decimal
from typing import Any, Final

from hami_dra.api.booleans import parse_bool
from hami_dra.cel import meter
from hami_dra.cel.errors import CelError
from hami_dra.cel.library.registry import function
from hami_dra.cel.values import TypeName, Uint, integer, type_name, unsigned

_FLOAT: Final = re.compile(
    r"[+-]?(?:[0-9](?:_?[0-9])*\.?(?:[0-9](?:_?[0-9])*)?|\.[0-9](?:_?[0-9])*)(?:[eE][+-]?[0-9]+)?"
)
_HEX_FLOAT: Final = re.compile(r"[+-]?0[xX](?=_?[0-9a-fA-F]|\.)(?:_?[0-9a-fA-F])*\.?(?:_?[0-9a-fA-F])*[pP][+-]?[0-9]+")
_SPECIAL_FLOAT: Final = re.compile(r"[+-]?(?:inf|infinity|nan)", re.IGNORECASE)
_SIGNED: Final = re.compile(r"[+-]?[0-9]{1,1000}")
_UNSIGNED: Final = re.compile(r"[0-9]{1,1000}")


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


function("type", "A -> type(A)", conversion=True)(lambda value: TypeName(type_name(value)))
function("bytes", "string -> bytes", cost=meter.scan_first, conversion=True)(str.encode)
function("double", "int -> double", conversion=True)(float)
function("double", "uint -> double", conversion=True)(float)
function("int", "uint -> int", conversion=True)(lambda value: integer(int(value)))
function("uint", "int -> uint", conversion=True)(unsigned)
function("string", "bool -> string", conversion=True)(lambda value: "true" if value else "false")
function("string", "int -> string", conversion=True)(str)
function("string", "uint -> string", conversion=True)(lambda value: str(int(value)))


@function("bool", "string -> bool", conversion=True)
def to_bool(text: str) -> bool:
    value = parse_bool(text)
    if value is None:
        raise _cannot(text, "bool")
    return value


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


@function("uint", "string -> uint", conversion=True)
def text_to_uint(text: str) -> Uint:
    if _UNSIGNED.fullmatch(text) and int(text) < 2**64:
        return Uint(text)
    raise _cannot(text, "uint")


@function("string", "bytes -> string", cost=meter.scan_first, conversion=True)
def bytes_to_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise CelError("invalid UTF-8 in bytes, cannot convert to string") from None


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

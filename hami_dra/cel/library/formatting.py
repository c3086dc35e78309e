"""string.format(list): clauses %s %d %f %e %b %x %X %o, as in cel-go's ext/formatting.go for en_US.

Used by the strings library at run time, and by the checker (`clauses`) for literal templates.
"""

import math
import re
from collections.abc import Iterator
from typing import Any, Final

from hami_dra.cel.errors import CelError
from hami_dra.cel.library import conversions
from hami_dra.cel.library.times import duration_to_text, timestamp_to_text
from hami_dra.cel.meter import ALLOCATION_LIMIT, Meter, traversal
from hami_dra.cel.values import Duration, Timestamp, TypeName, Uint, key_value, type_name

_CLAUSE: Final = re.compile(r"%(?:%|(?P<dot>\.)?(?P<precision>(?<=\.)[0-9]*)?(?P<verb>[\s\S])?)")
_DEFAULT_PRECISION: Final = 6
_SUPERSCRIPT: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_WANTED: Final = {
    "d": "decimal clause can only be used on integers, was given {}",
    "f": "fixed-point clause can only be used on doubles, was given {}",
    "e": "scientific clause can only be used on doubles, was given {}",
    "b": "only integers and bools can be formatted as binary, was given {}",
    "x": "only integers, byte buffers, and strings can be formatted as hex, was given {}",
    "o": "octal clause can only be used on integers, was given {}",
    "s": "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, "
    "and timestamps, was given {}",
}
ACCEPTED: Final = {
    "d": {"int", "uint"},
    "f": {"double", "string"},  # "NaN", "Infinity" and "-Infinity" are strings
    "e": {"double", "string"},
    "b": {"int", "uint", "bool"},
    "x": {"int", "uint", "string", "bytes"},
    "o": {"int", "uint"},
    "s": {
        "list", "map", "int", "uint", "double", "bool", "string", "bytes", "type", "null_type",
        "google.protobuf.Timestamp", "google.protobuf.Duration",
    },
}  # fmt: skip
_BASES: Final = {"b": "b", "x": "x", "X": "X", "o": "o"}


def refusal(verb: str, given: str) -> str:
    """Return the message for an argument that the clause cannot format."""
    return "error during formatting: " + _WANTED[verb.lower()].format(given)


def clauses(template: str, arguments: int) -> Iterator[tuple[str, str, int]]:
    """Yield the parts of a template: (text before, verb or "", precision); the last has no verb.

    `arguments` is the number of arguments. Raises CelError.
    """
    position = used = 0
    text = ""
    for match in _CLAUSE.finditer(template):
        text += template[position : match.start()]
        position = match.end()
        if match.group() == "%%":
            text += "%"
            continue
        if used >= arguments:
            raise CelError(f"index {used} out of range")
        used += 1
        yield (text, *_clause(match))
        text = ""
    yield text + template[position:], "", 0


def _clause(match: re.Match[str]) -> tuple[str, int]:
    verb, precision = match["verb"], _DEFAULT_PRECISION
    if match["dot"]:
        problem = "could not parse formatting clause: error while parsing precision: "
        if verb is None:
            raise CelError(problem + "could not find end of precision specifier")
        digits = match["precision"]
        if not digits:
            raise CelError(
                problem + 'error while converting precision to integer: strconv.Atoi: parsing "": invalid syntax'
            )
        precision = int(digits) if len(digits) < 10 else ALLOCATION_LIMIT
    if verb is None:
        raise CelError("unexpected end of string")
    if verb not in "sdfebxXo":
        raise CelError(f'could not parse formatting clause: unrecognized formatting clause "{verb}"')
    return verb, precision


def format_text(meter: Meter, template: str, args: list[Any]) -> str:
    """Return the formatted text. Raises CelError."""
    parts: list[str] = []
    remaining = iter(args)
    for text, verb, precision in clauses(template, len(args)):
        parts.append(text)
        if verb:
            if verb in "fe":
                meter.allocate(precision)
            value = next(remaining)
            if isinstance(value, list | dict):
                traversal(value, meter)  # refuses values that are too large to format
            part = _show(verb, value, precision)
            meter.allocate(len(part))
            parts.append(part)
    return "".join(parts)


def _show(verb: str, value: Any, precision: int) -> str:
    kind = type(value)
    if verb == "s":
        return _plain(value)
    if verb in "fe":
        number = _as_double(value)
        if number is None:
            raise CelError(refusal(verb, type_name(value)))
        return _fixed(number, precision) if verb == "f" else _scientific(number, precision)
    if type_name(value) not in ACCEPTED[verb.lower()]:
        raise CelError(refusal(verb, type_name(value)))
    if verb == "d":
        return str(int(value))
    if kind is str or kind is bytes:
        digits = bytes(value.encode() if kind is str else value).hex()
        return digits.upper() if verb == "X" else digits
    return format(int(value), _BASES[verb])


def _as_double(value: Any) -> float | None:
    if type(value) is float:
        return value
    if isinstance(value, str) and value in {"NaN", "Infinity", "-Infinity"}:
        return float(value)
    return None


def _fixed(number: float, precision: int) -> str:
    return _special(number) or f"{number or 0.0:,.{precision}f}"


def _scientific(number: float, width: int) -> str:
    """Format with six digits always: cel-go takes the given precision as the width."""
    text = _special(number)
    if not text:
        mantissa, _, exponent = f"{number or 0.0:.{_DEFAULT_PRECISION}e}".partition("e")
        text = f"{mantissa}\u00d710{exponent.lstrip('+').translate(_SUPERSCRIPT)}"
    return text.rjust(width)


def _special(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    return ""


def _plain(value: Any) -> str:  # noqa: C901 (one case for each type)
    """Format a top-level value."""
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
        case str():
            return value
        case bytes():
            return conversions.bytes_to_text(value)
        case float():
            return conversions.double_to_text(value)
        case Duration():
            return duration_to_text(value)
        case int():
            return str(int(value))
        case Timestamp():
            return timestamp_to_text(value)
        case TypeName():
            return value.name
        case list():
            return "[" + ", ".join(map(_literal, value)) + "]"
        case dict():
            entries = sorted((_key(key_value(key)), _literal(entry)) for key, entry in value.items())
            return "{" + ", ".join(f"{key}:{entry}" for key, entry in entries) + "}"
    raise CelError(refusal("s", type_name(value)))


def _key(key: Any) -> str:
    if type(key) in {str, bool, int, Uint}:
        return _literal(key)
    raise CelError(f"error during formatting: no formatting function for map key of type {type_name(key)}")


def _literal(value: Any) -> str:
    """Format a value inside a list or map: as in an expression."""
    match value:
        case str():
            return go_quote(value)
        case bytes():
            return "b" + go_quote(conversions.bytes_to_text(value))
        case Timestamp():
            return f"timestamp({go_quote(timestamp_to_text(value))})"
        case Duration():
            return f"duration({go_quote(duration_to_text(value))})"
        case float():
            if not math.isfinite(value):
                return go_quote("NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf")
            return f"{value:.{_DEFAULT_PRECISION}f}"
    try:
        return _plain(value)
    except CelError:
        raise CelError(f"error during formatting: no formatting function for {type_name(value)}") from None


def go_quote(text: str) -> str:
    """Return the result of strconv.Quote."""
    return '"' + "".join(map(_go_quoted, text)) + '"'


_GO_ESCAPES: Final = dict(zip('\a\b\f\n\r\t\v\\"', 'abfnrtv\\"', strict=True))


def _go_quoted(character: str) -> str:
    escape = _GO_ESCAPES.get(character)
    if escape:
        return "\\" + escape
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

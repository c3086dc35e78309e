"""Durations and timestamps: conversions and accessors.

Sources: cel-go common/types, and Go's time package for the text formats. Named time zones come from
the machine's database (zoneinfo).
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from hami_dra.cel.errors import CelError
from hami_dra.cel.library.conversions import decimal_digits, identity, positional
from hami_dra.cel.library.registry import function, method
from hami_dra.cel.values import INT_MAX, MAX_TIMESTAMP, MIN_TIMESTAMP, SECOND, Duration, Timestamp, timestamp

_UNITS: Final = {
    "ns": 1, "us": 1_000, "\u00b5s": 1_000, "\u03bcs": 1_000, "ms": 1_000_000,
    "s": SECOND, "m": 60 * SECOND, "h": 3_600 * SECOND,
}  # fmt: skip
_PART: Final = re.compile(r"(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<unit>[^0-9.]+)")
_DURATION: Final = re.compile(r"(?P<sign>[+-]?)(?P<parts>(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)[^0-9.]+)+)")
_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d{1,2}):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE: Final = timedelta(days=146_097)
_MARGIN: Final = 2 * 86_400 * SECOND

for _name in ("Duration", "Timestamp"):
    function(_name.lower(), f"{_name} -> {_name}", conversion=True)(identity)


@function("duration", "string -> Duration", conversion=True)
def text_to_duration(text: str) -> Duration:
    """Parse like Go's time.ParseDuration: "1h30m", "-1.5s", "0"."""
    unsigned_text = text[1:] if text[:1] in {"+", "-"} else text
    if unsigned_text == "0":
        return Duration(0)
    match = _DURATION.fullmatch(text)
    total = 0
    for part in _PART.finditer(match["parts"] if match and len(text) <= 1_000 else ""):
        unit = _UNITS.get(part["unit"])
        if unit is None:
            total = 0
            match = None
            break
        fraction = part["fraction"] or ""
        # Go reads as many fraction digits as an int64 holds, and drops anything below a nanosecond.
        total += int(part["whole"] or "0") * unit + int(fraction[:18] or "0") * unit // 10 ** len(fraction[:18])
    if match is None or total > INT_MAX + (match["sign"] == "-"):
        raise CelError("type conversion error from 'string' to 'google.protobuf.Duration'")
    return Duration(-total if match["sign"] == "-" else total)


@function("string", "Duration -> string", conversion=True)
def duration_to_text(value: Duration) -> str:
    """Return seconds, with the shortest digits of a double, without exponent."""
    seconds, rest = divmod(abs(int(value)), SECOND)
    sign, digits, power = decimal_digits((seconds + rest / SECOND) * (-1 if value < 0 else 1))
    return sign + positional(digits, power) + "s"


function("int", "Duration -> int", conversion=True)(int)


@function("timestamp", "string -> Timestamp", conversion=True)
def text_to_timestamp(text: str) -> Timestamp:
    """Parse RFC 3339 as liberally as Go's time.Parse.

    That is: hours of one digit, a comma before the fraction, offsets up to 24:60.
    """
    failed = CelError("type conversion error from 'string' to 'google.protobuf.Timestamp'")
    match = _RFC3339.fullmatch(text) if len(text) <= 1_000 else None
    if match is None:
        raise failed
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, sign, offset_hours, offset_minutes = match.groups()[6:]
    offset = (int(offset_hours or 0) * 60 + int(offset_minutes or 0)) * 60
    if int(offset_hours or 0) > 24 or int(offset_minutes or 0) > 60:
        raise failed
    try:
        # A year that Python's datetime does not support is outside CEL's range, too.
        moment = datetime(max(year, 1), month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        raise failed from None
    if year == 0:
        raise CelError("timestamp overflow")
    if sign == "-":
        offset = -offset
    nanos = int((fraction or "0")[:9].ljust(9, "0"))
    return timestamp(((moment - _EPOCH) // timedelta(seconds=1) - offset) * SECOND + nanos, offset)


function("timestamp", "int -> Timestamp", conversion=True)(lambda seconds: timestamp(seconds * SECOND))
function("int", "Timestamp -> int", conversion=True)(lambda value: value.nanos // SECOND)


@function("string", "Timestamp -> string", conversion=True)
def timestamp_to_text(value: Timestamp) -> str:
    """Return RFC 3339 in the timestamp's original offset, with all digits of the fraction."""
    seconds, nanos = divmod(value.nanos, SECOND)
    moment = _EPOCH.replace(tzinfo=None) + timedelta(seconds=seconds + value.offset_seconds)
    fraction = f".{nanos:09d}".rstrip("0") if nanos else ""
    minutes = abs(value.offset_seconds) // 60
    zone = f"{'-' if value.offset_seconds < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}" if minutes else "Z"
    return moment.isoformat(timespec="seconds") + fraction + zone


def _zone(name: str) -> tzinfo:
    hours, colon, minutes = name.partition(":")
    if not colon:
        return _named_zone(name)
    if not re.fullmatch(r"[+-]?[0-9]{1,4}", hours, re.ASCII) or not re.fullmatch(r"[+-]?[0-9]{1,4}", minutes, re.ASCII):
        raise CelError(f'strconv.Atoi: parsing "{name}": invalid syntax')
    if not 0 <= int(minutes) <= 59:
        raise CelError(f"timezone offset minutes out of range [0, 59]: {name}")
    offset = int(hours) * 60 + (-int(minutes) if name[0] == "-" else int(minutes))
    if abs(offset) >= 24 * 60:
        raise CelError(f"timezone offset out of range: {name}")
    return timezone(timedelta(minutes=offset))


def _named_zone(name: str) -> tzinfo:
    if name in {"", "UTC"}:
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise CelError(f"unknown time zone {name}") from None


def _moment(value: Timestamp, zone: str) -> datetime:
    moment = _EPOCH + timedelta(seconds=value.nanos // SECOND)
    return (moment + _shift(value)).astimezone(_zone(zone))


def _shift(value: Timestamp) -> timedelta:
    """Return a shift for values near the ends of Python's range.

    It is 400 years, after which weekdays and leap years repeat.
    """
    if value.nanos < MIN_TIMESTAMP + _MARGIN:
        return _CYCLE
    return -_CYCLE if value.nanos > MAX_TIMESTAMP - _MARGIN else timedelta()


def _accessor(name: str, read: Callable[[datetime], int]) -> None:
    method(name, "Timestamp -> int")(lambda value: read(_moment(value, "UTC")))
    method(name, "Timestamp, string -> int")(lambda value, zone: read(_moment(value, zone)))


@method("getFullYear", "Timestamp -> int")
@method("getFullYear", "Timestamp, string -> int")
def _year(value: Timestamp, zone: str = "UTC") -> int:
    return _moment(value, zone).year - 400 * (_shift(value) // _CYCLE)


_accessor("getMonth", lambda moment: moment.month - 1)
_accessor("getDayOfYear", lambda moment: moment.timetuple().tm_yday - 1)
_accessor("getDayOfMonth", lambda moment: moment.day - 1)
_accessor("getDate", lambda moment: moment.day)
_accessor("getDayOfWeek", lambda moment: moment.isoweekday() % 7)
_accessor("getHours", lambda moment: moment.hour)
_accessor("getMinutes", lambda moment: moment.minute)
_accessor("getSeconds", lambda moment: moment.second)


@method("getMilliseconds", "Timestamp -> int")
@method("getMilliseconds", "Timestamp, string -> int")
def milliseconds(value: Timestamp, zone: str = "UTC") -> int:
    _zone(zone)  # refuses one that does not exist
    return value.nanos % SECOND // 1_000_000


def _whole(unit: int) -> Callable[[Duration], int]:
    return lambda value: abs(int(value)) // unit * (-1 if value < 0 else 1)


method("getHours", "Duration -> int")(_whole(3_600 * SECOND))
method("getMinutes", "Duration -> int")(_whole(60 * SECOND))
method("getSeconds", "Duration -> int")(_whole(SECOND))
method("getMilliseconds", "Duration -> int")(_whole(1_000_000))

"""Kubernetes resource quantities, exact.

Used by everything that counts bytes, percent or slots. In: the string (or integer) of an API
object. Out: an immutable `Quantity` whose amount is an integer of nano units (the finest unit
Kubernetes keeps). On the wire quantities stay plain `str | int`; parse where you compute, `str()`
where you write.

Semantics and spelling are those of k8s.io/apimachinery/pkg/api/resource (quantity.go, amount.go)
v0.37: which strings parse, rounding of amounts below one nano away from zero, the cap of binary
amounts at 2^63-1, and the canonical form, bug for bug (`1000E` is written `1`, because there is no
suffix above E). The one difference: strings longer than `MAX_TEXT` characters and exponents beyond
±`MAX_EXPONENT` are refused, where Go would use excessive memory.

This module must not use floats, except in `approximate_float`, which exists for CEL.
"""

import re
from enum import StrEnum
from typing import Final

import msgspec

from hami_dra.api.short_texts import cached_if_short

NANO: Final = 10**9
MAX_TEXT: Final = 1_000
MAX_EXPONENT: Final = 999

_INT64_MAX: Final = 2**63 - 1
_INT64_DIGITS: Final = 18  # decimal digits that always fit an int64; Go's fast path stops there
_BINARY_DIGITS: Final = 15  # the limit for binary amounts, as Go estimates it


class InvalidQuantity(ValueError):
    """The text is not a quantity; the message says what was expected."""


class Format(StrEnum):
    """The family of suffixes that a quantity was written with, and will be written with again."""

    BINARY_SI = "BinarySI"
    DECIMAL_SI = "DecimalSI"
    DECIMAL_EXPONENT = "DecimalExponent"


_BINARY_SHIFTS: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_EXPONENTS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES: Final = {shift: suffix for suffix, shift in _BINARY_SHIFTS.items()}
_DECIMAL_SUFFIXES: Final = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENTS.items()}

# Sign, leading zeros, integer digits, fraction digits, suffix. As in Go, the digits may be missing
# ("." and "-" are zero).
_TEXT: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<zeros>0*)(?P<integer>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<suffix>[eEinumkKMGTP]*[-+]?[0-9]*)"
)
_EXPONENT: Final = re.compile(r"[eE]([+-]?[0-9]+)")


class Quantity(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An exact amount. Equal, ordered and hashed by amount alone: 1Gi == 1024Mi.

    Make one with `Quantity.parse` or `Quantity.from_int`; the fields below `format` are bookkeeping
    for the canonical form.
    """

    nanos: int
    """The amount in units of 10^-9."""
    format: Format = Format.DECIMAL_SI
    scale: int = 0
    """Power of ten of the unit in which Go keeps the amount; affects only `is_int64` and `approximate_float`."""
    wide: bool = False
    """Go keeps the amount as a big decimal instead of an int64."""
    text: str = ""
    """The parsed spelling, if Go keeps it although it is not canonical ("+1", "01"); else empty."""

    @staticmethod
    def parse(source: "str | float") -> "Quantity":
        """Parse a quantity. Raises InvalidQuantity.

        Numbers, as JSON may carry them, count whole units and mean the digits they print with.
        Cached: parsing the same text again costs a look-up.
        """
        if isinstance(source, str):
            return _parse(source)
        if isinstance(source, int | float) and not isinstance(source, bool):
            return _parse(str(source))
        raise InvalidQuantity(f"a quantity is a string or a number, not {type(source).__name__}: {source!r}")

    @staticmethod
    def or_zero(source: "str | float | None") -> "Quantity":
        """Return zero for what is no quantity: the API server admits none, files may contain one."""
        try:
            return Quantity.parse(source) if source is not None else _ZERO
        except InvalidQuantity:
            return _ZERO

    @staticmethod
    def from_int(value: int, format: Format = Format.DECIMAL_SI) -> "Quantity":  # noqa: A002 (Kubernetes' own word)
        """Return `value` whole units, like resource.NewQuantity."""
        return Quantity(value * NANO, format, wide=not _is_int64(value))

    @staticmethod
    def from_nanos(nanos: int, format: Format = Format.DECIMAL_SI) -> "Quantity":  # noqa: A002 (Kubernetes' own word)
        return Quantity(nanos, format, scale=-9, wide=not _is_int64(nanos))

    def value(self) -> int:
        """Return whole units, rounded up away from zero (Go's Value(), without its overflow)."""
        return _divide_up(self.nanos, NANO)

    def milli_value(self) -> int:
        """Return thousandths, rounded up away from zero."""
        return _divide_up(self.nanos, NANO // 1000)

    def sign(self) -> int:
        return (self.nanos > 0) - (self.nanos < 0)

    def is_zero(self) -> bool:
        return self.nanos == 0

    def is_whole(self) -> bool:
        return self.nanos % NANO == 0

    def add(self, other: "Quantity") -> "Quantity":
        """Return the sum in this quantity's format, or in the other's if this one is zero (as Go)."""
        return self._combine(other, other.nanos)

    def sub(self, other: "Quantity") -> "Quantity":
        return self._combine(other, -other.nanos)

    def _combine(self, other: "Quantity", nanos: int) -> "Quantity":
        wide = self.wide or other.wide
        scale = min(self.scale, other.scale)
        if not wide and nanos == 0:
            scale = self.scale
        elif not wide and self.nanos == 0:
            scale = other.scale
        total = self.nanos + nanos
        unit = 10 ** (9 + scale)
        wide = wide or not all(_is_int64(amount // unit) for amount in (total, self.nanos, nanos))
        return Quantity(total, self.format if self.nanos else other.format, scale, wide)

    def as_int64(self) -> "int | None":
        """Return the number of whole units if Go's AsInt64 has one.

        That is: kept as an int64 of whole units, without overflow.
        """
        if self.wide or self.scale < 0:
            return None
        whole = self.nanos // NANO
        return whole if _is_int64(whole) else None

    def approximate_float(self) -> float:
        """Return Go's AsApproximateFloat64 with its rounding (0.3 is 3 x 0.1). For CEL only. May be infinite."""
        unscaled = self.nanos // 10 ** (9 + self.scale)
        try:
            base = float(unscaled)
        except OverflowError:
            return float("inf") if unscaled > 0 else float("-inf")
        return base if self.scale == 0 else base * _power_of_ten(self.scale)

    def canonical(self) -> str:
        """Return the canonical text: no fraction, the largest suffix that keeps every digit.

        Numbers below 1024 lose a binary suffix.
        """
        if self.nanos == 0:
            return "0"
        if self.format is Format.BINARY_SI and self.is_whole() and abs(self.nanos) >= 1024 * NANO:
            number, times = _strip_factor(self.nanos // NANO, 1024)
            return f"{number}{_BINARY_SUFFIXES.get(10 * times, '')}"
        number, times = _strip_factor(self.nanos, 10)
        exponent = times - 9
        number *= 10 ** (exponent % 3)
        exponent -= exponent % 3
        if self.format is not Format.DECIMAL_EXPONENT:
            return f"{number}{_DECIMAL_SUFFIXES.get(exponent, '')}"
        return f"{number}e{exponent}" if exponent else str(number)

    def __str__(self) -> str:
        return self.text or self.canonical()

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: "Quantity") -> bool:
        return self.nanos < other.nanos if isinstance(other, Quantity) else NotImplemented

    def __le__(self, other: "Quantity") -> bool:
        return self.nanos <= other.nanos if isinstance(other, Quantity) else NotImplemented

    def __gt__(self, other: "Quantity") -> bool:
        return self.nanos > other.nanos if isinstance(other, Quantity) else NotImplemented

    def __ge__(self, other: "Quantity") -> bool:
        return self.nanos >= other.nanos if isinstance(other, Quantity) else NotImplemented


ZERO: Final = Quantity(0, text="0")


@cached_if_short(16_384)
def _parse(text: str) -> Quantity:
    if text == "0":
        return ZERO
    match = _TEXT.fullmatch(text) if len(text) <= MAX_TEXT else None
    if not text or match is None:
        raise InvalidQuantity(
            f"{_shorten(text)} is not a quantity: a number with an optional suffix was expected, such as 2, 500m, 1.5Gi or 1e3"
        )
    suffix = match["suffix"]
    if suffix in _BINARY_SHIFTS:
        return _parse_binary(text, match, _BINARY_SHIFTS[suffix])
    if suffix in _DECIMAL_EXPONENTS:
        return _parse_decimal(text, match, _DECIMAL_EXPONENTS[suffix], Format.DECIMAL_SI)
    return _parse_decimal(text, match, _read_exponent(text, suffix), Format.DECIMAL_EXPONENT)


def _parse_decimal(text: str, match: re.Match[str], exponent: int, format_: Format) -> Quantity:
    integer, fraction = match["integer"], match["fraction"] or ""
    digits, scale = int(integer + fraction or "0"), exponent - len(fraction)
    sign = -1 if match["sign"] == "-" else 1
    if (len(integer) or 1) + len(fraction) <= _INT64_DIGITS and scale >= -9:
        # Go keeps a spelling that its quick check takes for canonical.
        kept = scale % 3 == 0 and not (integer + fraction).endswith("000") and integer != ""
        return Quantity(sign * digits * 10 ** (9 + scale), format_, scale, text=text if kept else "")
    _require_digits(text, match)
    nanos = digits * 10 ** (9 + scale) if scale >= -9 else _divide_up(digits, 10 ** (-9 - scale))
    return Quantity(sign * nanos, format_, scale=-9 if nanos else max(scale, -9), wide=True)


def _parse_binary(text: str, match: re.Match[str], shift: int) -> Quantity:
    integer, fraction = match["integer"], match["fraction"] or ""
    digits = int(integer + fraction or "0") << shift
    sign = -1 if match["sign"] == "-" else 1
    if not fraction and (len(integer) or 1) + shift * 3 // 10 < _BINARY_DIGITS:
        # Not a multiple of 8, so not of 1024: the spelling is canonical, and Go keeps it.
        kept = (digits >> shift) % 8 != 0
        return Quantity(sign * digits * NANO, Format.BINARY_SI, text=text if kept else "")
    _require_digits(text, match)
    nanos = min(_divide_up(digits * NANO, 10 ** len(fraction)), _INT64_MAX * NANO)
    scale = 0 if nanos == _INT64_MAX * NANO else -9 if nanos else max(-len(fraction), -9)
    format_ = Format.DECIMAL_SI if 0 < nanos < NANO else Format.BINARY_SI
    return Quantity(sign * nanos, format_, scale, wide=True)


def _read_exponent(text: str, suffix: str) -> int:
    match = _EXPONENT.fullmatch(suffix)
    if match is None:
        raise InvalidQuantity(
            f"{_shorten(text)} is not a quantity: unknown suffix {suffix!r}; "
            "use one of n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent such as e3"
        )
    exponent = int(match[1])
    if abs(exponent) > MAX_EXPONENT:
        raise InvalidQuantity(f"{_shorten(text)} is not a quantity: the exponent is beyond ±{MAX_EXPONENT}")
    return exponent


def _require_digits(text: str, match: re.Match[str]) -> None:
    # If an int64 suffices, Go reads a number without digits as zero.
    if not (match["zeros"] or match["integer"] or match["fraction"]):
        raise InvalidQuantity(f"{_shorten(text)} is not a quantity: it has no digits")


def _power_of_ten(exponent: int) -> float:
    """Return Go's math.Pow10, a product of two table entries and not always the nearest float."""
    if exponent < 0:
        return float(f"1e-{-exponent // 32 * 32}") / float(f"1e{-exponent % 32}")
    return float(f"1e{exponent // 32 * 32}") * float(f"1e{exponent % 32}")


def _is_int64(number: int) -> bool:
    return -_INT64_MAX - 1 <= number <= _INT64_MAX


def _divide_up(number: int, divisor: int) -> int:
    """Divide, rounding away from zero."""
    return -(-number // divisor) if number > 0 else number // divisor


def _strip_factor(number: int, factor: int) -> tuple[int, int]:
    """Return (n, times) with number == n * factor**times and the largest possible times. `number` must not be zero."""
    times = 0
    while True:
        quotient, rest = divmod(number, factor)
        if rest:
            return number, times
        number, times = quotient, times + 1


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:61] + "...")


_ZERO: Final = Quantity.from_int(0)

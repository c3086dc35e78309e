"""Settings that an operator gives for one vendor's cards.

An option is declared once, by the vendor that reads it (`VendorPlugin.options`). The commands make
a flag of each, and the fleet file has a field for those that change what is published. The
vendor's code asks for a value by the option itself, so that the type is known:

>>> SLICES = VendorOption(name="card-slices", help="Slices of a card", default=4, read=whole(1, 10))
>>> VendorSettings()[SLICES]
4
>>> VendorSettings.of({SLICES: 3})[SLICES]
3
>>> VendorSettings.of({SLICES: 0})
Traceback (most recent call last):
hami_dra.api.options.InvalidOption: --card-slices: 0 is not a whole number from 1 to 10
"""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final, Generic, Self, TypeVar

from msgspec import Struct, field

from hami_dra.api.quantity import InvalidQuantity, Quantity

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
T_co = TypeVar("T_co", covariant=True)
Written = int | float | str | bool
"""A value as an operator writes it, in a flag or in a file."""


class InvalidOption(ValueError):
    """A value that its option does not allow; the message names both."""

    def __init__(self, option: "VendorOption[Any]", problem: str) -> None:
        super().__init__(f"--{option.name}: {problem}")
        self.option = option
        self.problem = problem
        """The value, and what it should be."""


class VendorOption(Struct, Generic[T_co], frozen=True, kw_only=True, eq=False):
    """One setting. Raises ValueError if its own default is not allowed."""

    name: str
    """`card-slices`: the flag is `--card-slices`."""
    help: str
    """What it says, without the names of vendors."""
    default: Written
    """As written. Its type is that of the flag; a boolean makes a switch (`--x/--no-x`)."""
    read: Callable[[Written], T_co]
    """Convert a written value. Raises ValueError, whose text names the value and the fix."""
    choices: tuple[str, ...] = ()
    """All values, where they are few."""
    envvar: str = ""
    field: str = ""
    """Name in the `sharing` of a fleet file (`slices`), if it changes what is published."""

    def __post_init__(self) -> None:
        self.read(self.default)

    @property
    def default_value(self) -> T_co:
        return self.read(self.default)

    def value_of(self, written: Written) -> T_co:
        """Convert a written value. Raises InvalidOption."""
        try:
            return self.read(written)
        except ValueError as error:
            raise InvalidOption(self, str(error)) from None


class VendorSettings(Struct, frozen=True):
    """The values of all vendors' options."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Name of an option → its value, as read; an option that is absent has its default."""

    @classmethod
    def of(cls, written: Mapping[VendorOption[Any], Written]) -> Self:
        """Read written values. Raises InvalidOption."""
        return cls({option.name: option.value_of(value) for option, value in written.items()})

    def __getitem__(self, option: VendorOption[T]) -> T:
        value: T = self.values.get(option.name, option.default_value)
        return value


# --- ways to read ---------------------------------------------------------------------------------


def whole(least: int, most: int | None = None) -> Callable[[Written], int]:
    """Read a whole number from `least`; `most` None: no maximum."""
    wanted = f"of at least {least}" if most is None else f"from {least} to {most}"

    def read(written: Written) -> int:
        if isinstance(written, int) and written >= least and (most is None or written <= most):
            return written
        raise ValueError(f"{written!r} is not a whole number {wanted}")

    return read


def one_of(values: type[E]) -> Callable[[Written], E]:
    """Read one of the values of an enumeration."""

    def read(written: Written) -> E:
        try:
            return values(str(written))
        except ValueError:
            raise ValueError(f"{written!r} is none of {', '.join(values)}") from None

    return read


def fraction(least: Fraction | None = None) -> Callable[[Written], Fraction]:
    """Read a number of at least `least`; None: above 0. Floats are read by their text, so 1.8 is exactly 18/10."""
    wanted = "above 0" if least is None else f"of at least {least}"

    def read(written: Written) -> Fraction:
        try:
            number = Fraction(str(written))
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{written!r} is not a number such as 1.5") from None
        if number <= 0 or (least is not None and number < least):
            raise ValueError(f"{written!r} is not a number {wanted}")
        return number

    return read


def size(least: str, most: str) -> Callable[[Written], int]:
    """Read a quantity of bytes between these two quantities."""
    bounds = Quantity.parse(least).value(), Quantity.parse(most).value()

    def read(written: Written) -> int:
        try:
            found = Quantity.parse(str(written)).value()
        except InvalidQuantity as error:
            raise ValueError(str(error)) from error
        if not bounds[0] <= found <= bounds[1]:
            raise ValueError(f"{written} is not between {least} and {most}")
        return found

    return read


def absolute_path(written: Written) -> str:
    """Read an absolute path, or nothing."""
    if written and not str(written).startswith("/"):
        raise ValueError(f"{written!r} is not an absolute path")
    return str(written)


def matching(pattern: str, wanted: str) -> Callable[[Written], str]:
    """Read text that a regular expression matches, or nothing."""

    def read(written: Written) -> str:
        if written and not re.fullmatch(pattern, str(written)):
            raise ValueError(f"{written!r} is not {wanted}")
        return str(written)

    return read


text: Final[Callable[[Written], str]] = str
switch: Final[Callable[[Written], bool]] = bool

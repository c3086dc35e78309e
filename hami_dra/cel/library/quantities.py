"""Kubernetes' quantity and semver libraries."""

from typing import Final

from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.api.semver import InvalidVersion, SemVer
from hami_dra.cel import meter
from hami_dra.cel.errors import CelError
from hami_dra.cel.library.registry import cost_by_name, function, method
from hami_dra.cel.values import SumQuantity

_QUANTITY_ERROR: Final = r"quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"

cost_by_name.update(dict.fromkeys(["quantity", "isQuantity", "semver", "isSemver"], meter.scan_first))


@function("quantity", "string -> Quantity")
def quantity(text: str) -> Quantity:
    try:
        return Quantity.parse(text)
    except InvalidQuantity as error:
        reason = "unable to parse quantity's suffix" if "unknown suffix" in str(error) else _QUANTITY_ERROR
        raise CelError(reason) from None


@function("isQuantity", "string -> bool")
def is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except InvalidQuantity:
        return False
    return True


@function("sign", "Quantity -> int")
def sign(value: Quantity) -> int:
    return value.sign()


@method("isInteger", "Quantity -> bool")
def is_integer(value: Quantity) -> bool:
    return value.as_int64() is not None


@method("asInteger", "Quantity -> int")
def as_integer(value: Quantity) -> int:
    whole = value.as_int64()
    if whole is None:
        raise CelError("cannot convert value to integer")
    return whole


@method("asApproximateFloat", "Quantity -> double")
def as_approximate_float(value: Quantity) -> float:
    return value.approximate_float()


@method("add", "Quantity, Quantity -> Quantity")
def add(left: Quantity, right: Quantity) -> Quantity:
    return _sum(left.add(right))


@method("add", "Quantity, int -> Quantity")
def add_int(left: Quantity, right: int) -> Quantity:
    return _sum(left.add(Quantity.from_int(right)))


@method("sub", "Quantity, Quantity -> Quantity")
def sub(left: Quantity, right: Quantity) -> Quantity:
    return _sum(left.sub(right))


@method("sub", "Quantity, int -> Quantity")
def sub_int(left: Quantity, right: int) -> Quantity:
    return _sum(left.sub(Quantity.from_int(right)))


def _sum(value: Quantity) -> SumQuantity:
    return SumQuantity(value.nanos, value.format, value.scale, value.wide)


@method("isGreaterThan", "Quantity, Quantity -> bool")
@method("isGreaterThan", "Semver, Semver -> bool")
def is_greater(left: Quantity, right: Quantity) -> bool:
    return left > right


@method("isLessThan", "Quantity, Quantity -> bool")
@method("isLessThan", "Semver, Semver -> bool")
def is_less(left: Quantity, right: Quantity) -> bool:
    return left < right


@method("compareTo", "Quantity, Quantity -> int")
@method("compareTo", "Semver, Semver -> int")
def compare_to(left: Quantity, right: Quantity) -> int:
    return (left > right) - (left < right)


@function("semver", "string -> Semver")
def semver(text: str) -> SemVer:
    return semver_of(text, normalize=False)


def semver_of(text: str, *, normalize: bool) -> SemVer:
    try:
        return SemVer.parse(text, normalize=normalize)
    except InvalidVersion as error:
        reason = "No Major.Minor.Patch elements found" if text and text.count(".") < 2 else str(error)
        raise CelError(reason if text else "Version string empty") from None


@function("semver", "string, bool -> Semver")
def semver_normalized(text: str, normalize: bool) -> SemVer:
    return semver_of(text, normalize=normalize)


@function("isSemver", "string -> bool")
def is_semver(text: str) -> bool:
    return is_semver_normalized(text, False)


@function("isSemver", "string, bool -> bool")
def is_semver_normalized(text: str, normalize: bool) -> bool:
    try:
        SemVer.parse(text, normalize=normalize)
    except InvalidVersion:
        return False
    return True


def _as_int64(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number  # Go converts the uint64 without a check


@method("major", "Semver -> int")
def major(value: SemVer) -> int:
    return _as_int64(value.major)


@method("minor", "Semver -> int")
def minor(value: SemVer) -> int:
    return _as_int64(value.minor)


@method("patch", "Semver -> int")
def patch(value: SemVer) -> int:
    return _as_int64(value.patch)

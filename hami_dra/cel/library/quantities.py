"""Kubernetes' quantity and semver libraries."""

import operator
from typing import Final

from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.api.semver import InvalidVersion, SemVer
from hami_dra.cel import meter
from hami_dra.cel.errors import CelError
from hami_dra.cel.library.registry import cost_by_name, function, method, parses
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


function("isQuantity", "string -> bool")(parses(Quantity.parse, InvalidQuantity))
function("sign", "Quantity -> int")(Quantity.sign)
method("isInteger", "Quantity -> bool")(lambda value: value.as_int64() is not None)
method("asApproximateFloat", "Quantity -> double")(Quantity.approximate_float)


@method("asInteger", "Quantity -> int")
def as_integer(value: Quantity) -> int:
    whole = value.as_int64()
    if whole is None:
        raise CelError("cannot convert value to integer")
    return whole


def _sum(value: Quantity) -> SumQuantity:
    return SumQuantity(value.nanos, value.format, value.scale, value.wide)


method("add", "Quantity, Quantity -> Quantity")(lambda left, right: _sum(left.add(right)))
method("add", "Quantity, int -> Quantity")(lambda left, right: _sum(left.add(Quantity.from_int(right))))
method("sub", "Quantity, Quantity -> Quantity")(lambda left, right: _sum(left.sub(right)))
method("sub", "Quantity, int -> Quantity")(lambda left, right: _sum(left.sub(Quantity.from_int(right))))
for _type in ("Quantity", "Semver"):
    method("isGreaterThan", f"{_type}, {_type} -> bool")(operator.gt)
    method("isLessThan", f"{_type}, {_type} -> bool")(operator.lt)
    method("compareTo", f"{_type}, {_type} -> int")(lambda left, right: (left > right) - (left < right))


@function("semver", "string -> Semver")
@function("semver", "string, bool -> Semver")
def semver(text: str, normalize: bool = False) -> SemVer:
    try:
        return SemVer.parse(text, normalize=normalize)
    except InvalidVersion as error:
        reason = "No Major.Minor.Patch elements found" if text and text.count(".") < 2 else str(error)
        raise CelError(reason if text else "Version string empty") from None


def _as_int64(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number  # Go converts the uint64 without a check


_is_semver = parses(lambda text, normalize=False: SemVer.parse(text, normalize=normalize), InvalidVersion)
function("isSemver", "string -> bool")(_is_semver)
function("isSemver", "string, bool -> bool")(_is_semver)
method("major", "Semver -> int")(lambda value: _as_int64(value.major))
method("minor", "Semver -> int")(lambda value: _as_int64(value.minor))
method("patch", "Semver -> int")(lambda value: _as_int64(value.patch))

"""Closures for `&&`, `||`, `==`, `!=` and `in`.

Used by compiler.Compiler. `&&` and `||` are the only operators that can absorb an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from hami_dra.api.quantity import Quantity
from hami_dra.api.semver import SemVer
from hami_dra.cel import meter
from hami_dra.cel.access import Run
from hami_dra.cel.errors import CelError, no_such_overload
from hami_dra.cel.library.formats import Format
from hami_dra.cel.library.network import CIDR, IP
from hami_dra.cel.library.urls import URL
from hami_dra.cel.tree import Call
from hami_dra.cel.values import MISSING, SumQuantity, Uint, Work, equal, free_work

if TYPE_CHECKING:
    from hami_dra.cel.compiler import Compiler

_ONE_PRICE: Final = {Quantity, SumQuantity, SemVer, IP, CIDR, Format, URL}  # comparing these costs 1
_UNHASHABLE: Final = {bytes: "types.Bytes", SemVer: "cel.Semver", Format: "cel.Format"}  # in Go, which then gives up
_HASHED: Final = {str, bool, int, Uint, float}


def conjunction(terms: Sequence[Run]) -> Run:
    """Return code for `&&`: false if any term is, else the first error, else true."""
    return _junction(terms, decisive=False)


def disjunction(terms: Sequence[Run]) -> Run:
    """Return code for `||`: true if any term is, else the first error, else false."""
    return _junction(terms, decisive=True)


def _junction(terms: Sequence[Run], *, decisive: bool) -> Run:
    otherwise = not decisive

    def run(env: list[Any]) -> Any:
        failure: CelError | None = None
        for term in terms:
            try:
                value = term(env)
            except CelError as error:
                failure = failure or error
                continue
            if value is decisive:
                return decisive
            if value is not otherwise:
                failure = failure or no_such_overload()
        if failure is not None:
            raise failure
        return otherwise

    return run


def compile_equality(compiler: Compiler, node: Call) -> Run:
    left, right = map(compiler.compile, node.args)
    negated = node.function == "_!=_"
    if compiler.metered:
        return _metered_equality(left, right, negated=negated)
    constant = compiler.constant(node.args[1])
    if type(constant) is str:
        return _equals_text(left, constant, negated=negated)
    if negated:
        return lambda env: not _or_false(left(env), right(env), free_work)
    return lambda env: equal(left(env), right(env))


def _or_false(left: Any, right: Any, work: Work) -> bool:
    # Values that cannot be compared are different for `!=`, while `==` fails.
    try:
        return equal(left, right, work)
    except CelError:
        return False


def _equals_text(left: Run, constant: str, *, negated: bool) -> Run:
    def run(env: list[Any]) -> bool:
        value = left(env)
        if type(value) is str:
            return (value == constant) is not negated
        return not _or_false(value, constant, free_work) if negated else equal(value, constant)

    return run


def _metered_equality(left: Run, right: Run, *, negated: bool) -> Run:
    def run(env: list[Any]) -> bool:
        counter = env[1]
        try:
            first, second = left(env), right(env)
        except CelError:
            counter.spend(1)
            raise
        counter.spend(1 if type(first) in _ONE_PRICE and not negated else meter.equality(first, second))
        return not _or_false(first, second, counter.work) if negated else equal(first, second, counter.work)

    return run


def constant_members(compiler: Compiler, node: Call) -> frozenset[tuple[bool, Any]] | None:
    """Return the elements of a constant list of numbers, strings and booleans, else None.

    cel-go turns such lists into sets.
    """
    values = compiler.constant(node.args[1]) if len(node.overloads) == 1 else MISSING
    if type(values) is not list or not all(type(value) in _HASHED for value in values):
        return None
    return frozenset((type(value) is bool, value) for value in values)


def membership(element: Run, members: frozenset[tuple[bool, Any]]) -> Run:
    """Return code for `element in [constants]`, which is free in Kubernetes."""
    texts = frozenset(value for _, value in members if type(value) is str)

    def run(env: list[Any]) -> bool:
        value = element(env)
        kind = type(value)
        if kind is str:
            return value in texts
        if kind in _UNHASHABLE:
            raise CelError(f"internal error: runtime error: hash of unhashable type {_UNHASHABLE[kind]}")
        return kind in _HASHED and (kind is bool, value) in members

    return run

"""Declaration of the library: every function once, its signature next to its code.

The checker reads the signatures, the compiler the code and its price. Signatures are written as in
the CEL documents: `string, int -> string`; capitals are type variables; a method has its receiver
first.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from msgspec import Struct

from hami_dra.cel.errors import CelError
from hami_dra.cel.meter import CostFunction
from hami_dra.cel.types import Type, has_variables, is_dyn, is_variable, read_type, read_types
from hami_dra.cel.values import TYPE_NAMES, key_value, type_name

Guard = Callable[[Any], bool]
Code = TypeVar("Code", bound=Callable[..., Any])


class Overload(Struct, frozen=True, eq=False):
    """One signature of a function."""

    name: str
    member: bool
    params: tuple[Type, ...]
    result: Type
    code: Callable[..., Any] | None
    """None for operators, which are part of the compiler or of `operators`."""
    cost: CostFunction | None = None
    """Used if this overload is the only one that fits; None is 1."""
    conversion: bool = False
    """Evaluated while compiling if the argument is a constant."""
    generic: bool = False
    """The signature has type variables."""


functions: Final[dict[str, list[Overload]]] = {}
operators: Final[dict[str, Callable[..., Any]]] = {}
"""Code of functions that check their arguments' types themselves."""
cost_by_name: Final[dict[str, CostFunction]] = {}
"""Prices by function name, for any overload, as in Kubernetes."""
wants_meter: Final[set[str]] = set()
"""Functions whose code takes the Meter first (None in a selector that needs none), for any overload."""
heavy: Final[set[str]] = set()
"""Functions that may use or return much more than the size of their arguments; selectors with them
are always metered.
"""
loops: Final[set[str]] = set()
"""Functions that iterate over their list arguments."""


def declare(name: str, *signatures: str, member: bool = False, cost: CostFunction | None = None) -> None:
    """Declare signatures without code."""
    for signature in signatures:
        _add(name, signature, None, member=member, cost=cost)


def function(
    name: str, signature: str, *, cost: CostFunction | None = None, conversion: bool = False
) -> Callable[[Code], Code]:
    """Declare a global function (decorator)."""

    def register(code: Code) -> Code:
        _add(name, signature, code, member=False, cost=cost, conversion=conversion)
        return code

    return register


def method(name: str, signature: str, *, cost: CostFunction | None = None) -> Callable[[Code], Code]:
    """Declare a method (decorator); the first type is the receiver's."""

    def register(code: Code) -> Code:
        _add(name, signature, code, member=True, cost=cost)
        return code

    return register


def parses(parse: Callable[..., object], error: type[Exception]) -> Callable[..., bool]:
    """Return a function that returns whether `parse` takes its arguments."""

    def test(*args: Any) -> bool:
        try:
            parse(*args)
        except error:
            return False
        return True

    return test


def _add(name: str, signature: str, code: Callable[..., Any] | None, *, member: bool, **more: Any) -> None:
    params, _, result = signature.partition("->")
    types = tuple(read_types(params))
    generic = any(map(has_variables, types)) or has_variables(read_type(result))
    overload = Overload(name, member, types, read_type(result), code, generic=generic, **more)
    functions.setdefault(name, []).append(overload)


def guard(param: Type) -> Guard | None:
    """Return a test whether a run-time value fits `param`; None if any value does.

    Only the first element of a list is tested.
    """
    if is_dyn(param) or is_variable(param):
        return None
    if param.name in {"list", "map"} and any(map(guard, param.params)):
        return _guard_elements(param)
    name = param.name
    return lambda value: TYPE_NAMES[type(value)] == name


def _guard_elements(param: Type) -> Guard:
    guards = [guard(part) for part in param.params]

    def fits(value: Any) -> bool:
        if type_name(value) != param.name:
            return False
        if not value:
            return True
        first = next(iter(value))
        parts = (key_value(first), value[first]) if param.name == "map" else (first,)
        return all(test is None or test(part) for test, part in zip(guards, parts, strict=True))

    return fits


def mismatch(name: str, args: tuple[Any, ...]) -> CelError:
    return CelError(f"no such overload: {name}({', '.join(map(type_name, args))})")

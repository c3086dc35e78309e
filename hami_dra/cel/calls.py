"""Closures for operators and function calls.

Used by compiler.Compiler. A call whose overload the checker settled goes straight to its code, with a test of those
arguments that the checker could not know; a call with several possible overloads picks one by the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hami_dra.api.quantity import Quantity
from hami_dra.api.semver import SemVer
from hami_dra.cel import meter
from hami_dra.cel.access import Run
from hami_dra.cel.errors import CelError, CompileError, no_such_overload
from hami_dra.cel.library import Overload, text
from hami_dra.cel.library.formats import Format
from hami_dra.cel.library.network import CIDR, IP
from hami_dra.cel.library.registry import Guard, cost_by_name, functions, guard, mismatch, operators
from hami_dra.cel.library.urls import URL
from hami_dra.cel.tree import Call, Node
from hami_dra.cel.types import Type, is_dyn
from hami_dra.cel.values import MISSING, SumQuantity, Uint, equal

if TYPE_CHECKING:
    from hami_dra.cel.compiler import Compiler

_PATTERN_FUNCTIONS: Final = {"matches", "find", "findAll"}
_ONE_PRICE: Final = {Quantity, SumQuantity, SemVer, IP, CIDR, Format, URL}  # comparing these costs 1


def conjunction(terms: Sequence[Run]) -> Run:
    """`&&`: false if any term is, else the first error, else true."""
    return _junction(terms, decisive=False)


def disjunction(terms: Sequence[Run]) -> Run:
    """`||`: true if any term is, else the first error, else false."""
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


def constant_call(compiler: Compiler, node: Call) -> Any:
    """The value of a call that cel-go computes while planning: a conversion of a constant, `x in []`. Else MISSING."""
    if node.function == "@in" and _only(node) and compiler.constant(node.args[1]) == []:
        return False
    if node.target is not None or len(node.args) != 1 or not functions[node.function][0].conversion:
        return MISSING
    value = compiler.constant(node.args[0])
    if value is MISSING:
        return MISSING
    try:
        return _code(node)(value)
    except CelError as error:
        raise CompileError(f"program instantiation failed: {error}") from None


def compile_call(compiler: Compiler, node: Call) -> Run:
    args = ([node.target] if node.target else []) + node.args
    if node.function in {"_==_", "_!=_"}:
        return _equality(compiler, node)
    if node.function == "@in":
        members = _constant_members(compiler, node)
        if members is not None:
            return _membership(compiler.compile(args[0]), members)
    codes = [compiler.compile(arg) for arg in args]
    code = _code(node)
    if node.function in _PATTERN_FUNCTIONS:
        pattern = compiler.constant(args[1])
        if type(pattern) is str:
            code = _with_pattern(node.function, pattern, code)
    if compiler.metered:
        return _metered_call(codes, code, _price(node), takes_meter=_takes_meter(node))
    known = _computed_now(compiler, node, code, args)
    if known is not MISSING:
        return lambda _: known
    return _plain_call(codes, partial(code, None) if _takes_meter(node) else code)


def _computed_now(compiler: Compiler, node: Call, code: Callable[..., Any], args: Sequence[Node]) -> Any:
    """The value of quantity("8Gi") and the like, or MISSING: with constant arguments once is enough, if it succeeds."""
    values = [compiler.constant(arg) for arg in args]
    if not values or any(value is MISSING for value in values) or _takes_meter(node):
        return MISSING
    try:
        return code(*values)
    except CelError:
        return MISSING


def _only(node: Call) -> Overload | None:
    """The overload, where only one fits."""
    overload: Overload | None = node.overloads[0] if len(node.overloads) == 1 else None
    return overload


def _price(node: Call) -> meter.CostFunction | None:
    overload = _only(node)
    if overload is not None and overload.cost is not None:
        return overload.cost
    return cost_by_name.get(node.function)


def _code(node: Call) -> Callable[..., Any]:
    """What runs the call on its arguments; code that wants the meter gets it first."""
    if node.function in operators:
        return operators[node.function]
    overload = _only(node)
    args = ([node.target] if node.target else []) + node.args
    if overload is not None and overload.code is not None:
        guards = _needed_guards(overload, args)
        return _guarded(node.function, overload.code, guards, offset=overload.wants_meter) if guards else overload.code
    return _dispatcher(node)


def _needed_guards(overload: Overload, args: Sequence[Node]) -> list[tuple[int, Guard]]:
    """Tests for the arguments whose type the checker did not settle."""
    guards: list[tuple[int, Guard]] = []
    for index, (param, arg) in enumerate(zip(overload.params, args, strict=True)):
        test = None if _is_sure(param, arg.type) else guard(param)
        if test:
            guards.append((index, test))
    return guards


def _is_sure(param: Type, static: Type) -> bool:
    return param == static and not param.params and not is_dyn(param)


def _guarded(
    name: str, code: Callable[..., Any], guards: list[tuple[int, Guard]], *, offset: bool
) -> Callable[..., Any]:
    if len(guards) == 1 and not offset:
        ((index, test),) = guards

        def with_one_test(*args: Any) -> Any:
            if test(args[index]):
                return code(*args)
            raise mismatch(name, args)

        return with_one_test

    def with_tests(*args: Any) -> Any:
        for index, test in guards:
            if not test(args[index + offset]):
                raise mismatch(name, args[offset:])
        return code(*args)

    return with_tests


def _dispatcher(node: Call) -> Callable[..., Any]:
    """Pick the first overload that the arguments fit at run time, out of all the function has."""
    arity = len(node.args) + (node.target is not None)
    candidates = [
        (overload.code, [guard(param) for param in overload.params], overload.wants_meter)
        for overload in functions[node.function]
        if overload.code is not None and len(overload.params) == arity and overload.member == (node.target is not None)
    ]
    offset = _takes_meter(node)
    # what fits is remembered by the arguments' types, unless elements of lists or maps were looked at
    by_type = not any(part.name in {"list", "map"} for overload in node.overloads for part in overload.params)
    known: dict[tuple[type, ...], tuple[Callable[..., Any], bool]] = {}

    def dispatch(*args: Any) -> Any:
        values = args[offset:] if offset else args
        kinds = tuple(map(type, values))
        found = known.get(kinds) or choose(values)
        if by_type:
            known[kinds] = found
        code, wants_meter = found
        return code(*args) if wants_meter else code(*values)

    def choose(values: tuple[Any, ...]) -> tuple[Callable[..., Any], bool]:
        for code, guards, wants_meter in candidates:
            if all(test is None or test(value) for test, value in zip(guards, values, strict=True)):
                return code, wants_meter
        raise mismatch(node.function, values)

    return dispatch


def _takes_meter(node: Call) -> bool:
    """Whether the code of the call has the meter as its first parameter."""
    return node.function == "_+_" or any(overload.wants_meter for overload in functions[node.function])


def _plain_call(codes: list[Run], code: Callable[..., Any]) -> Run:
    if len(codes) == 1:
        (only,) = codes
        return lambda env: code(only(env))
    if len(codes) == 2:
        first, second = codes
        return lambda env: code(first(env), second(env))
    return lambda env: code(*[argument(env) for argument in codes])


def _metered_call(
    codes: list[Run], code: Callable[..., Any], price: meter.CostFunction | None, *, takes_meter: bool
) -> Run:
    def run(env: list[Any]) -> Any:
        try:
            args = [argument(env) for argument in codes]
            result = code(env[1], *args) if takes_meter else code(*args)
        except CelError:
            env[1].spend(1)
            raise
        env[1].spend(1 if price is None else price(args, result))
        return result

    return run


# ---- equality and membership ----


def _equality(compiler: Compiler, node: Call) -> Run:
    left, right = map(compiler.compile, node.args)
    negated = node.function == "_!=_"
    if compiler.metered:
        return _metered_equality(left, right, negated=negated)
    constant = compiler.constant(node.args[1])
    if type(constant) is str:
        return _equals_text(left, constant, negated=negated)
    if negated:
        return lambda env: not _not_unequal(left(env), right(env))
    return lambda env: equal(left(env), right(env))


def _not_unequal(left: Any, right: Any) -> bool:
    # values that cannot be compared are different for `!=`, while `==` fails
    try:
        return equal(left, right)
    except CelError:
        return False


def _equals_text(left: Run, constant: str, *, negated: bool) -> Run:
    def run(env: list[Any]) -> bool:
        value = left(env)
        if type(value) is str:
            return (value == constant) is not negated
        return not _not_unequal(value, constant) if negated else equal(value, constant)

    return run


def _metered_equality(left: Run, right: Run, *, negated: bool) -> Run:
    def run(env: list[Any]) -> bool:
        try:
            first, second = left(env), right(env)
        except CelError:
            env[1].spend(1)
            raise
        env[1].spend(1 if type(first) in _ONE_PRICE and not negated else meter.equality(first, second))
        return not _not_unequal(first, second) if negated else equal(first, second)

    return run


def _constant_members(compiler: Compiler, node: Call) -> frozenset[tuple[bool, Any]] | None:
    """The elements of a constant list of numbers, texts and booleans, which cel-go turns into a set."""
    values = compiler.constant(node.args[1]) if _only(node) else MISSING
    if type(values) is not list or not all(type(value) in {str, bool, int, Uint, float} for value in values):
        return None
    return frozenset((type(value) is bool, value) for value in values)


def _membership(element: Run, members: frozenset[tuple[bool, Any]]) -> Run:
    texts = frozenset(value for _, value in members if type(value) is str)

    def run(env: list[Any]) -> bool:
        value = element(env)
        kind = type(value)
        if kind is str:
            return value in texts
        if kind is bytes:
            raise CelError("internal error: runtime error: hash of unhashable type types.Bytes")
        return kind in {int, float, bool, Uint} and (kind is bool, value) in members

    return run


def _with_pattern(name: str, pattern: str, code: Callable[..., Any]) -> Callable[..., Any]:
    """A constant pattern is compiled now, and refused now if it is wrong."""
    try:
        compiled = text.compile_pattern(pattern)
    except text.BadPattern as error:
        raise CompileError(f"program instantiation failed: {error}") from None
    search = compiled.search

    def matches(subject: Any, _: Any) -> bool:
        if type(subject) is not str:
            raise no_such_overload()
        return bool(search(subject))

    return matches if name == "matches" else code

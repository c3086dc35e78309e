"""Closures for function and operator calls.

Used by compiler.Compiler. If the checker determined the overload, the call goes straight to its
code, after tests of the arguments whose types the checker could not know. A call with several
possible overloads selects one by its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hami_dra.cel import logic
from hami_dra.cel.access import Run
from hami_dra.cel.errors import CelError, CompileError, no_such_overload
from hami_dra.cel.library import Overload, text
from hami_dra.cel.library.registry import Guard, cost_by_name, functions, guard, loops, mismatch, operators, wants_meter
from hami_dra.cel.meter import CostFunction, Meter, traversal, traverse_first
from hami_dra.cel.tree import Call, Constant, Node
from hami_dra.cel.types import Type, is_dyn
from hami_dra.cel.values import MISSING

if TYPE_CHECKING:
    from hami_dra.cel.compiler import Compiler

_PATTERN_FUNCTIONS: Final = {"matches", "find", "findAll"}


class _Plan(NamedTuple):
    """Steps of a call: test the arguments, pay, run the code."""

    name: str
    code: Callable[..., Any]
    guards: list[tuple[int, Guard]]
    price: CostFunction | None
    """None: the price is 1."""
    takes_meter: bool


def constant_call(compiler: Compiler, node: Call) -> Any:
    """Return the value of a call that cel-go computes while planning, else MISSING.

    These are conversions of a constant, and `x in []`.
    """
    if node.function == "@in" and _only(node) and compiler.constant(node.args[1]) == []:
        compiler.compile(node.args[0])  # for its errors; it will never run
        return False
    if node.target is not None or len(node.args) != 1 or not functions[node.function][0].conversion:
        return MISSING
    value = compiler.constant(node.args[0])
    if value is MISSING:
        return MISSING
    try:
        return _run_now(_plan(node), [value])
    except CelError as error:
        raise CompileError(f"program instantiation failed: {error}") from None


def compile_call(compiler: Compiler, node: Call) -> Run:
    if node.function in {"_==_", "_!=_"}:
        return logic.compile_equality(compiler, node)
    args = _arguments(node)
    if node.function == "@in":
        members = logic.constant_members(compiler, node)
        if members is not None:
            return logic.membership(compiler.compile(args[0]), members)
    codes = [compiler.compile(arg) for arg in args]
    plan = _plan(node)
    if node.function in _PATTERN_FUNCTIONS:
        plan = _with_constant_pattern(plan, compiler.constant(args[1]))
    if compiler.metered:
        return _metered_call(codes, plan)
    values = [compiler.constant(arg) for arg in args]
    if values and not any(value is MISSING for value in values):
        try:
            known = _run_now(plan, values)
        except CelError:
            pass  # an error at run time, which `||` may absorb
        else:
            return lambda _: known
    return _plain_call(codes, plan)


def _arguments(node: Call) -> list[Node]:
    return ([node.target] if node.target else []) + node.args


def _only(node: Call) -> Overload | None:
    overload: Overload | None = node.overloads[0] if len(node.overloads) == 1 else None
    return overload


def _plan(node: Call) -> _Plan:
    overload = _only(node)
    price = overload.cost if overload is not None and overload.cost is not None else cost_by_name.get(node.function)
    takes_meter = node.function in wants_meter
    if node.function in operators:
        return _Plan(node.function, operators[node.function], [], price, takes_meter)
    if overload is not None and overload.code is not None:
        return _Plan(node.function, overload.code, _needed_guards(overload, _arguments(node)), price, takes_meter)
    return _Plan(node.function, _dispatcher(node, takes_meter=takes_meter), [], price, takes_meter)


def _needed_guards(overload: Overload, args: Sequence[Node]) -> list[tuple[int, Guard]]:
    """Return tests for the arguments whose types the checker did not determine."""
    guards: list[tuple[int, Guard]] = []
    for index, (param, arg) in enumerate(zip(overload.params, args, strict=True)):
        test = None if _is_sure(param, arg) else guard(param)
        if test:
            guards.append((index, test))
    return guards


def _is_sure(param: Type, arg: Node) -> bool:
    """Return whether `arg` can only be of this type.

    The checker's type is not enough: it guesses when it meets `dyn`.
    """
    if isinstance(arg, Constant):
        return param == arg.type
    if not isinstance(arg, Call) or not arg.overloads or param.params or is_dyn(param):
        return False
    return all(overload.result == param for overload in arg.overloads)


def _dispatcher(node: Call, *, takes_meter: bool) -> Callable[..., Any]:
    """Return code that selects the first overload of the function that the arguments fit at run time."""
    arity = len(_arguments(node))
    candidates = [
        (overload.code, [guard(param) for param in overload.params])
        for overload in functions[node.function]
        if overload.code is not None and len(overload.params) == arity and overload.member == (node.target is not None)
    ]
    # The selection is cached by the arguments' types, unless it depends on elements of lists or
    # maps.
    by_type = not any(param.name in {"list", "map"} for overload in node.overloads for param in overload.params)
    known: dict[tuple[type, ...], Callable[..., Any]] = {}

    def dispatch(*args: Any) -> Any:
        values = args[1:] if takes_meter else args
        kinds = tuple(map(type, values))
        code = known.get(kinds) or choose(values)
        if by_type:
            known[kinds] = code
        return code(*args)

    def choose(values: tuple[Any, ...]) -> Callable[..., Any]:
        for code, guards in candidates:
            if all(test is None or test(value) for test, value in zip(guards, values, strict=True)):
                return code
        raise mismatch(node.function, values)

    return dispatch


def _with_constant_pattern(plan: _Plan, pattern: Any) -> _Plan:
    """Compile a constant pattern now, and refuse it now if it is wrong."""
    if type(pattern) is not str:
        return plan
    try:
        search = text.compile_pattern(pattern).search
    except text.BadPattern as error:
        raise CompileError(f"program instantiation failed: {error}") from None

    def matches(counter: Meter | None, subject: Any, _: Any) -> bool:
        if type(subject) is not str:
            raise no_such_overload()
        text.count_search(counter, pattern, subject)
        return bool(search(subject.encode()))

    return plan._replace(code=matches, guards=[]) if plan.name == "matches" else plan


def _test(plan: _Plan, args: Sequence[Any]) -> None:
    for index, fits in plan.guards:
        if not fits(args[index]):
            raise mismatch(plan.name, tuple(args))


def _run_now(plan: _Plan, values: list[Any]) -> Any:
    _test(plan, values)
    return plan.code(Meter(), *values) if plan.takes_meter else plan.code(*values)


def _plain_call(codes: list[Run], plan: _Plan) -> Run:
    code = partial(plan.code, None) if plan.takes_meter else plan.code
    if plan.guards:

        def guarded(env: list[Any]) -> Any:
            args = [argument(env) for argument in codes]
            _test(plan, args)
            return code(*args)

        return guarded
    if len(codes) == 1:
        (only,) = codes
        return lambda env: code(only(env))
    if len(codes) == 2:
        first, second = codes
        return lambda env: code(first(env), second(env))
    return lambda env: code(*[argument(env) for argument in codes])


def _metered_call(codes: list[Run], plan: _Plan) -> Run:
    looping = plan.name in loops
    walking = plan.price is traverse_first

    def run(env: list[Any]) -> Any:
        counter = env[1]
        try:
            args = [argument(env) for argument in codes]
            _test(plan, args)
        except CelError:
            counter.spend(1)
            raise
        if looping:
            counter.work(sum(len(arg) for arg in args if type(arg) is list))
        if walking:
            counter.spend(traversal(args[0], counter))
        else:
            counter.spend(1 if plan.price is None else plan.price(args))
        return plan.code(counter, *args) if plan.takes_meter else plan.code(*args)

    return run

"""Closures for macros with a variable: loops over lists and maps, and bindings.

Used by compiler.Compiler. The prices are those of the comprehensions to which cel-go expands the
macros: the loop condition and the accumulator for each element, the result once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from hami_dra.cel.access import FIRST_SLOT, Run
from hami_dra.cel.errors import CelError, no_such_overload
from hami_dra.cel.tree import Fold
from hami_dra.cel.validate import children, walk
from hami_dra.cel.values import MISSING, key_value, map_key, show, type_name

if TYPE_CHECKING:
    from hami_dra.cel.compiler import Compiler

_UNSET: Final = object()
_RESULT: Final = 1  # reading the accumulator at the end
_COMPARE: Final = 1  # exists_one compares it
_NODES_OF_A_STEP: Final = 4


class _Failed(Struct, eq=False):
    """A bound value that could not be computed: every use of it raises the error again."""

    error: CelError


def lazy_variable(index: int, code: Run) -> Run:
    """Return code for a variable of cel.bind, which is computed at its first use."""

    def run(env: list[Any]) -> Any:
        value = env[index]
        if value is _UNSET:
            try:
                value = code(env)
            except CelError as error:
                value = _Failed(error)
            env[index] = value
        if type(value) is _Failed:
            raise value.error
        return value

    return run


def compile_fold(compiler: Compiler, node: Fold) -> Run:
    if node.kind == "bind":
        return _bind(compiler, node)
    over = compiler.compile(node.over)
    step = compiler.compile(node.step)
    match node.kind:
        case "all":
            body = _quantifier(step, decisive=False, price=3, check_price=2)
        case "exists":
            body = _quantifier(step, decisive=True, price=4, check_price=3)
        case "exists_one":
            body = _exactly_one(step)
        case "append":
            # The accumulator, a new list with the element unless that is a constant, and their sum.
            price = 2 if compiler.constant(node.step) is not MISSING else 12
            body = _collect(_predicate(compiler, node), step, price)
        case _:
            body = _insert(_predicate(compiler, node), step, node)
    return _loop(over, node, body)


Body = Callable[[list[Any], Iterable[Any]], Any]


def _bind(compiler: Compiler, node: Fold) -> Run:
    index = node.slot + FIRST_SLOT
    compiler.lazy[node.slot] = compiler.compile(node.over)
    result = compiler.compile(node.step)

    def run(env: list[Any]) -> Any:
        env[index] = _UNSET
        return result(env)

    return run


def _loop(over: Run, node: Fold, body: Body) -> Run:
    """Return code that sets the variables to each element in turn.

    `body` gets a generator that does so. Each iteration counts as work, because much of what a body
    may contain has no price.
    """
    first = node.slot + FIRST_SLOT
    two = node.variable2 is not None
    steps = 1 + sum(1 for part in children(node)[1:] for _ in walk(part)) // _NODES_OF_A_STEP

    def run(env: list[Any]) -> Any:
        values = over(env)
        if two:
            return body(env, _set_both(env, first, _pairs(values), steps))
        if type(values) is list:
            return body(env, _set_one(env, first, values, steps))
        if isinstance(values, dict):
            return body(env, _set_one(env, first, map(key_value, values), steps))
        raise CelError(f"got '{type_name(values)}', expected iterable type")

    return run


def _pairs(values: Any) -> Iterable[tuple[Any, Any]]:
    if type(values) is list:
        return enumerate(values)
    if isinstance(values, dict):
        return ((key_value(key), value) for key, value in values.items())
    raise CelError(f"unsupported comprehension range type: {type_name(values)}")


def _set_one(env: list[Any], slot: int, values: Iterable[Any], steps: int) -> Iterable[None]:
    for value in values:
        env[1].work(steps)
        env[slot] = value
        yield


def _set_both(env: list[Any], slot: int, pairs: Iterable[tuple[Any, Any]], steps: int) -> Iterable[None]:
    for env[slot], env[slot + 1] in pairs:
        env[1].work(steps)
        yield


def _predicate(compiler: Compiler, node: Fold) -> Run | None:
    return compiler.compile(node.predicate) if node.predicate is not None else None


def _quantifier(step: Run, *, decisive: bool, price: int, check_price: int) -> Body:
    """Return the body of all (decided by false) or exists (decided by true).

    An error counts only if no element decides.
    """

    def body(env: list[Any], elements: Iterable[Any]) -> bool:
        spend = env[1].spend
        failure: CelError | None = None
        decided = False
        for _ in elements:
            if decided:
                spend(check_price)
                break
            spend(price)
            try:
                value = step(env)
            except CelError as error:
                failure = failure or error
                continue
            if value is decisive:
                decided = True
            elif value is not (not decisive):
                failure = failure or no_such_overload()
        spend(_RESULT)
        if decided:
            return decisive
        if failure is not None:
            raise failure
        return not decisive

    return body


def _is_true(condition: Run, env: list[Any]) -> bool:
    value = condition(env)
    if value is True or value is False:
        return bool(value)
    raise no_such_overload()


def _exactly_one(step: Run) -> Body:
    def body(env: list[Any], elements: Iterable[Any]) -> bool:
        count = 0
        for _ in elements:
            if _is_true(step, env):
                env[1].spend(2)
                count += 1
        env[1].spend(_RESULT + _COMPARE)
        return count == 1

    return body


def _collect(predicate: Run | None, step: Run, price: int) -> Body:
    def body(env: list[Any], elements: Iterable[Any]) -> list[Any]:
        collected: list[Any] = []
        for _ in elements:
            if predicate is None or _is_true(predicate, env):
                collected.append(step(env))
                env[1].spend(price)
        env[1].spend(_RESULT)
        return collected

    return body


def _insert(predicate: Run | None, step: Run, node: Fold) -> Body:
    slot = node.slot + FIRST_SLOT
    price = 3 if node.keyed else 2  # the accumulator, the key, the call

    def body(env: list[Any], elements: Iterable[Any]) -> dict[Any, Any]:
        collected: dict[Any, Any] = {}
        for _ in elements:
            if predicate is None or _is_true(predicate, env):
                value = step(env)
                env[1].spend(price)
                _add_entries(collected, {map_key(env[slot]): value} if node.keyed else value)
        env[1].spend(_RESULT)
        return collected

    return body


def _add_entries(collected: dict[Any, Any], entries: Any) -> None:
    if not isinstance(entries, dict):
        raise CelError(f"no such overload: cel.@mapInsert(map, {type_name(entries)})")
    for key, value in entries.items():
        if key in collected:
            raise CelError(f"insert failed: key {show(key_value(key))} already exists")
        collected[key] = value

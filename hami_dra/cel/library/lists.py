"""Lists: cel-go's extension library lists (version 3) and sets, Kubernetes' lists library, and optionals."""

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from itertools import pairwise
from typing import Any, Final

from hami_dra.cel import meter
from hami_dra.cel.errors import CelError, no_such_overload
from hami_dra.cel.library.core import add
from hami_dra.cel.library.registry import cost_by_name, declare, function, heavy, loops, method, operators, wants_meter
from hami_dra.cel.values import (
    MISSING,
    NONE,
    Duration,
    Optional,
    Uint,
    Work,
    compare,
    free_work,
    is_comparable,
    is_zero,
    show,
    surely_equal,
)

COMPARABLE: Final = ("int", "uint", "double", "bool", "Duration", "Timestamp", "string", "bytes")
_ZEROS: Final = {"int": 0, "uint": Uint(0), "double": 0.0, "Duration": Duration(0)}

cost_by_name.update(dict.fromkeys(["isSorted", "sum", "max", "min", "includes"], meter.traverse_first))
_SETS: Final = {"sets.contains", "sets.equivalent", "sets.intersects"}
heavy.update(_SETS | {"lists.range", "distinct", "sort", "@sortByAssociatedKeys", "flatten"})
wants_meter.update(_SETS | {"distinct", "flatten", "includes", "indexOf", "lastIndexOf"})
loops.update({"isSorted", "sum", "max", "min", "indexOf", "lastIndexOf", "includes", "sort", "@sortByAssociatedKeys"})
loops.update({"optional.unwrap", "unwrapOpt"})


# ---- Kubernetes' lists ----


def is_sorted(values: list[Any]) -> bool:
    return all(_order(left, right) <= 0 for left, right in pairwise(values))


def _order(left: Any, right: Any) -> int:
    # As in Kubernetes, two values that cannot be compared are in order.
    try:
        return compare(left, right)
    except CelError:
        return 0


def _extreme(name: str, wanted: int) -> Callable[[list[Any]], Any]:
    def pick(values: list[Any]) -> Any:
        if not values:
            raise CelError(f"{name} called on empty list")
        best = values[0]
        for value in values:
            if not is_comparable(value):
                raise no_such_overload()
            if _order(value, best) == wanted:
                best = value
        return best

    return pick


def _sum_from(zero: Any) -> Callable[[list[Any]], Any]:
    def total(values: list[Any]) -> Any:
        result = zero
        for value in values:
            result = add(None, result, value)
        return result

    return total


for _type in COMPARABLE:
    method("isSorted", f"list({_type}) -> bool")(is_sorted)
    method("max", f"list({_type}) -> {_type}")(_extreme("max", 1))
    method("min", f"list({_type}) -> {_type}")(_extreme("min", -1))
for _type, _zero in _ZEROS.items():
    method("sum", f"list({_type}) -> {_type}")(_sum_from(_zero))


def _work(counter: meter.Meter | None) -> Work:
    return counter.work if counter is not None else free_work


@method("indexOf", "list(A), A -> int")
def index_of(counter: meter.Meter | None, values: list[Any], wanted: Any) -> int:
    work = _work(counter)
    return next((index for index, value in enumerate(values) if surely_equal(value, wanted, work)), -1)


@method("lastIndexOf", "list(A), A -> int")
def last_index_of(counter: meter.Meter | None, values: list[Any], wanted: Any) -> int:
    work = _work(counter)
    return next((index for index in range(len(values) - 1, -1, -1) if surely_equal(values[index], wanted, work)), -1)


@method("includes", "dyn, dyn -> bool")
def includes(counter: meter.Meter | None, target: Any, wanted: Any) -> bool:
    if type(target) is list:
        return any(surely_equal(value, wanted, _work(counter)) for value in target)
    return surely_equal(target, wanted, _work(counter))


# ---- cel-go's lists ----


def _slice_cost(args: Sequence[Any]) -> int:
    values, start, end = args
    return meter.build_list(end - start if 0 <= start <= end <= len(values) else 1)


@method("slice", "list(T), int, int -> list(T)", cost=_slice_cost)
def slice_(values: list[Any], start: int, end: int) -> list[Any]:
    problem = ""
    if start < 0 or end < 0:
        problem = "negative indexes not supported"
    elif start > end:
        problem = "start index must be less than or equal to end index"
    elif len(values) < end:
        problem = f"list is length {len(values)}"
    if problem:
        raise CelError(f"cannot slice({start}, {end}), {problem}")
    return values[start:end]


def _flatten_cost(args: Sequence[Any]) -> int:
    depth = args[1] if len(args) == 2 and type(args[1]) is int else 1
    return meter.build_list(meter.size(args[0]) * (depth if depth >= 0 else 1))


declare("flatten", "list(list(T)) -> list(T)", "list(dyn), int -> list(dyn)", member=True, cost=_flatten_cost)


def flatten(counter: meter.Meter, values: Any, depth: Any = 1) -> list[Any]:
    if type(values) is not list or type(depth) is not int:
        raise no_such_overload()
    if depth < 0:
        raise CelError("level must be non-negative")
    counter.work(len(values))
    flat: list[Any] = []
    for value in values:
        if type(value) is list and depth > 0:
            flat.extend(flatten(counter, value, depth - 1))
        else:
            flat.append(value)
    return flat


@function("lists.range", "int -> list(int)", cost=lambda args: meter.build_list(max(args[0], 1)))
def range_(count: int) -> list[int]:
    if count < 0:
        raise CelError(f"lists.range: size must be non-negative, got {count}")
    return list(range(count))


method("reverse", "list(T) -> list(T)", cost=lambda args: meter.build_list(len(args[0])))(lambda values: values[::-1])


@method("distinct", "list(T) -> list(T)", cost=lambda args: meter.compare_all_pairs(args[0]))
def distinct(counter: meter.Meter, values: list[Any]) -> list[Any]:
    unique: list[Any] = []
    for value in values:
        if not any(surely_equal(value, other, counter.work) for other in unique):
            unique.append(value)
    return unique


def sort(values: Any) -> list[Any]:
    return sort_by_keys(values, values)


def sort_by_keys(values: Any, keys: Any) -> list[Any]:
    """Return `values` in the order of `keys`, one key for each value."""
    if type(values) is not list or type(keys) is not list:
        raise CelError("no such overload: sort")
    if len(values) != len(keys):
        raise CelError(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, "
            f"but got {len(values)} and {len(keys)} elements respectively"
        )
    if not keys:
        return values
    if not is_comparable(keys[0]):
        raise CelError("list elements must be comparable")
    if any(type(key) is not type(keys[0]) for key in keys):
        raise CelError("list elements must have the same type")

    def by_key(left: int, right: int) -> int:
        return _order(keys[left], keys[right])

    return [values[index] for index in sorted(range(len(keys)), key=cmp_to_key(by_key))]


for _type in COMPARABLE:
    declare("sort", f"list({_type}) -> list({_type})", member=True, cost=lambda args: meter.compare_all_pairs(args[0]))
    declare(
        "@sortByAssociatedKeys",
        f"list(T), list({_type}) -> list(T)",
        member=True,
        cost=lambda args: meter.compare_all_pairs(args[1]),
    )
operators.update({"sort": sort, "@sortByAssociatedKeys": sort_by_keys, "flatten": flatten})


# ---- sets ----


@function("sets.contains", "list(T), list(T) -> bool", cost=meter.cross_product(1))
def sets_contains(counter: meter.Meter, values: list[Any], wanted: list[Any]) -> bool:
    return all(includes(counter, values, value) for value in wanted)


@function("sets.equivalent", "list(T), list(T) -> bool", cost=meter.cross_product(2))
def sets_equivalent(counter: meter.Meter, left: list[Any], right: list[Any]) -> bool:
    return sets_contains(counter, left, right) and sets_contains(counter, right, left)


@function("sets.intersects", "list(T), list(T) -> bool", cost=meter.cross_product(1))
def sets_intersects(counter: meter.Meter, left: list[Any], right: list[Any]) -> bool:
    return any(includes(counter, right, value) for value in left)


# ---- optionals ----

declare("or", "optional(V), optional(V) -> optional(V)", member=True)
declare("orValue", "optional(V), V -> V", member=True)


function("optional.of", "V -> optional(V)")(Optional)
function("optional.ofNonZeroValue", "V -> optional(V)")(lambda value: NONE if is_zero(value) else Optional(value))
function("optional.none", "-> optional(V)")(lambda: NONE)
method("hasValue", "optional(V) -> bool")(lambda value: value.value is not MISSING)
method("first", "list(V) -> optional(V)")(lambda values: Optional(values[0]) if values else NONE)
method("last", "list(V) -> optional(V)")(lambda values: Optional(values[-1]) if values else NONE)


@method("value", "optional(V) -> V")
def optional_value(value: Optional) -> Any:
    if value.value is MISSING:
        raise CelError("optional.none() dereference")
    return value.value


@function("optional.unwrap", "list(optional(V)) -> list(V)")
@method("unwrapOpt", "list(optional(V)) -> list(V)")
def unwrap(values: list[Any]) -> list[Any]:
    for value in values:
        if type(value) is not Optional:
            raise CelError(f"value {show(value)} is not optional")
    return [value.value for value in values if value.value is not MISSING]

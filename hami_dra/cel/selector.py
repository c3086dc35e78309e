"""Compile a selector once, evaluate it on many devices. The public interface of the package.

Callers: the allocator and the admission checks. In: an expression; then DeviceInputs. Out: true,
false, or an error with Kubernetes' message. Pure: no clock, no I/O, no shared state but the cache
of compiled selectors.
"""

import math
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, TypeGuard

from msgspec import Struct

from hami_dra.cel import validate
from hami_dra.cel.checker import check, require_condition
from hami_dra.cel.compiler import Compiler
from hami_dra.cel.device import DeviceInput
from hami_dra.cel.environment import Features
from hami_dra.cel.errors import CelError, CompileError, CostExceeded, CostLimitExceeded, EvaluationError
from hami_dra.cel.library.registry import heavy
from hami_dra.cel.meter import COST_LIMIT, KUBERNETES, Limits, Meter
from hami_dra.cel.parser import parse
from hami_dra.cel.tree import Call, Constant, Fold, Ident, ListLiteral, MapLiteral, Node, Select
from hami_dra.cel.validate import children
from hami_dra.cel.values import MISSING, Optional, type_name

_SELECTIONS: Final = {"_[_]", "_[?_]", "_?._"}
_SCALARS: Final = {"driver", "allowMultipleAllocations"}


class References(Struct, frozen=True):
    """(domain, name) of literal references; the domain is None if it is computed.

    `complete`: otherwise the expression depends only on the driver and on whether multiple
    allocations are allowed.
    """

    names: frozenset[tuple[str | None, str]]
    complete: bool


class _Map(Struct, frozen=True):
    """An expression that is the device, its attributes or capacity ("part"), or those of one domain."""

    level: str  # device, part, domain
    domain: str | None = None


def find_references(nodes: list[Node]) -> References:
    """Return the references in all nodes of a checked tree, the root first."""
    bound = {node.slot: node.over for node in nodes if isinstance(node, Fold) and node.kind == "bind"}
    names: set[tuple[str | None, str]] = set()
    complete = _map(nodes[0], bound) is None
    for node in nodes:
        for child in children(node):
            found = _map(child, bound)
            if found is None or (isinstance(node, Fold) and node.kind == "bind" and child is node.over):
                continue
            key = _key(node, child)
            if found.level == "domain" and key is not None:
                names.add((found.domain, key))
            if found.level == "domain":
                complete = complete and key is not None and found.domain is not None
            else:  # membership in a part depends on its other entries
                complete = complete and key is not None and not _is_membership(node)
    return References(frozenset(names), complete)


def _map(node: Node, bound: dict[int, Node]) -> _Map | None:
    while isinstance(node, Ident) and node.slot in bound:
        node = bound[node.slot]
    if isinstance(node, Ident):
        return _Map("device") if node.slot < 0 and node.name.removeprefix(".") == "device" else None
    if isinstance(node, Select) and node.name and not node.test_only:
        operand: Node = node.operand
        key: str | None = node.name
    elif isinstance(node, Call) and node.function in _SELECTIONS:
        operand, key = node.args[0], _literal(node.args[1])
    else:
        return None
    within = _map(operand, bound)
    if within is None or within.level == "domain":
        return None
    if within.level == "device":
        return None if key in _SCALARS else _Map("part")
    return _Map("domain", key)


def _key(node: Node, operand: Node) -> str | None:
    """Return the literal key with which `node` reads `operand`, or None."""
    if isinstance(node, Select) and node.name:
        return node.name
    if isinstance(node, Call) and node.function in _SELECTIONS and operand is node.args[0]:
        return _literal(node.args[1])
    if _is_membership(node) and operand is node.args[1]:
        return _literal(node.args[0])
    return None


def _is_membership(node: Node) -> TypeGuard[Call]:
    return isinstance(node, Call) and node.function == "@in"


def _literal(node: Node) -> str | None:
    return node.value if isinstance(node, Constant) and isinstance(node.value, str) else None


SMALL_DEVICE: Final = 1_024
"""Devices whose strings and lists are at most this large are evaluated without counting, if the expression allows."""
_LONG: Final = 512
"""Characters. A compiled expression takes some 100 bytes for each, so few longer ones are cached."""
_NUMBERS: Final = {"int", "uint", "double", "google.protobuf.Duration", "google.protobuf.Timestamp"}
_LIMIT: Final = "operation cancelled: the expression is nested too deeply"


class Selector:
    """A compiled expression. Immutable; evaluation stores nothing."""

    __slots__ = ("_fast", "_metered", "_slots", "_tree", "expression", "references")

    def __init__(self, expression: str, tree: Node, slots: int) -> None:
        self.expression: Final = expression
        nodes = list(validate.walk(tree))
        self.references: Final[References] = find_references(nodes)
        self._slots: Final = [None] * slots
        cheap = worst_cost(nodes) <= COST_LIMIT
        self._tree: Final = tree if cheap else None
        """Kept for as long as it may be compiled once more: it is as large as what it is compiled to."""
        self._fast: Final = Compiler(metered=False).compile(tree) if cheap else None
        self._metered: Any = None if cheap else Compiler(metered=True).compile(tree)

    @property
    def attributes(self) -> frozenset[tuple[str | None, str]]:
        """Return (domain, name) of the attributes and capacities that the expression names.

        The domain is None if it is computed. `references.complete` says whether the expression can
        read anything else.
        """
        return self.references.names

    def evaluate(self, device: DeviceInput, limits: Limits = KUBERNETES) -> bool:
        """Return whether the device matches. Raises EvaluationError, which is neither yes nor no.

        `limits` do not apply to expressions without loops whose cost is bounded beforehand: their
        time is negligible.
        """
        if device.problem:
            raise EvaluationError(device.problem)
        try:
            if self._fast is not None and device.largest <= SMALL_DEVICE:
                value = self._fast([device, None, *self._slots])
            else:
                value = self.run_metered(device, Meter(limits))
        except CelError as error:
            raise EvaluationError(str(error)) from None
        except CostExceeded as error:
            raise CostLimitExceeded(str(error)) from None
        except RecursionError:
            raise EvaluationError(_LIMIT) from None
        if value is True or value is False:
            return bool(value)
        return _as_bool(value)

    def cost(self, device: DeviceInput) -> int:
        """Return what Kubernetes would count for this evaluation (or for its part before an error)."""
        meter = Meter()
        with suppress(CelError, CostExceeded, RecursionError):
            self.run_metered(device, meter)
        return meter.cost

    def run_metered(self, device: DeviceInput, meter: Meter) -> Any:
        """Return the unconverted value, with counting. Raises CelError and CostExceeded."""
        if self._metered is None:
            assert self._tree is not None
            self._metered = Compiler(metered=True).compile(self._tree)
        return self._metered([device, meter, *self._slots])

    def __repr__(self) -> str:
        return f"Selector({self.expression!r})"


def compile_selector(expression: str, *, features: Features = Features()) -> Selector:  # noqa: B008 (frozen)
    """Compile a selector. Raises CompileError.

    Results are cached, errors included: compiling the same text again costs a look-up.
    """
    try:
        outcome = (_compile if len(expression) <= _LONG else _compile_long)(expression, features)
    except RecursionError:  # depends on the caller's stack, so it is not cached
        raise CompileError("compilation failed: ERROR: <input>:-1:0: max recursion depth exceeded") from None
    if isinstance(outcome, CompileError):
        raise outcome.with_traceback(None)
    return outcome


def checked(expression: str, features: Features) -> tuple[Node, int]:
    """Return the checked tree, and how many slots its variables need. Raises CompileError."""
    try:
        expression.encode()
    except UnicodeEncodeError:
        raise CompileError("compilation failed: the expression is not valid UTF-8") from None
    tree = parse(expression)
    slots = check(tree, expression, features)
    validate.validate(tree, expression)
    return tree, slots


def _compiled(expression: str, features: Features) -> Selector | CompileError:
    try:
        tree, slots = checked(expression, features)
        require_condition(tree, features)
        return Selector(expression, tree, slots)
    except CompileError as error:
        return error


_compile = lru_cache(maxsize=256)(_compiled)
_compile_long = lru_cache(maxsize=8)(_compiled)


def worst_cost(nodes: list[Node]) -> float:
    """Return a bound on the cost for any device up to SMALL_DEVICE.

    It is infinite if the expression may loop or build large values.
    """
    largest = SMALL_DEVICE
    for node in nodes:
        if isinstance(node, Constant) and isinstance(node.value, str | bytes):
            largest = max(largest, len(node.value))
    price = 40 + math.ceil(largest * 0.2)
    if any(isinstance(node, Fold) for node in nodes) and any(map(_is_built, nodes)):
        # with bound variables, a value can be exponentially larger than its expression
        return math.inf
    total = 0.0
    for node in nodes:
        if isinstance(node, Fold) and node.kind != "bind":
            return math.inf
        total += price
        if isinstance(node, Call):
            if node.function in heavy and not (node.function == "_+_" and node.type.name in _NUMBERS):
                return math.inf
            if node.function in {"matches", "find", "findAll"}:
                pattern = node.args[-1] if node.function != "findAll" else node.args[0]
                size = (
                    len(pattern.value) if isinstance(pattern, Constant) and isinstance(pattern.value, str) else largest
                )
                total += price * math.ceil(size / 4)
            if node.function == "validate":
                total += price * 300
    return total


def _is_built(node: Node) -> bool:
    if isinstance(node, ListLiteral):
        return not all(isinstance(element, Constant) for element in node.elements)
    return isinstance(node, MapLiteral)


def _as_bool(value: Any) -> bool:
    """Return the result as a bool: an expression of unknown type may return anything."""
    inner = value
    while type(inner) is Optional:
        if inner.value is MISSING:
            raise _no_bool(value, "optional.none() dereference")
        inner = inner.value
    if inner is True or inner is False:
        return bool(inner)
    raise _no_bool(value, _REFUSALS.get(type(inner), "type conversion error to 'bool'"))


_REFUSALS: Final = {
    str: "unsupported native conversion from string to 'bool'",
    int: "unsupported type conversion from 'int' to bool",
    float: "type conversion error from Double to 'bool'",
    list: "type conversion error from list to 'bool'",
    dict: "type conversion error from map to 'bool'",
    bytes: "type conversion error from Bytes to 'bool'",
}


def _no_bool(value: Any, why: str) -> EvaluationError:
    return EvaluationError(f"CEL result of type {type_name(value)} could not be converted to bool: {why}")

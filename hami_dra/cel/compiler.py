"""Compiles a checked tree to Python closures.

Called by selector.compile_selector. Every closure takes the evaluation's list: the device, the
meter, then the slots of the variables of macros. With `metered` the closures pay for their work,
exactly as cel-go's CostTracker counts; without it they rely on `worst_cost` having shown that the
limit cannot be reached.
"""

from collections.abc import Callable
from typing import Any, Final

from hami_dra.cel import access, calls, folds, logic
from hami_dra.cel.access import FIRST_SLOT, Run, Step
from hami_dra.cel.environment import TYPE_IDENTIFIERS
from hami_dra.cel.errors import CelError, CompileError, no_such_overload
from hami_dra.cel.tree import Call, Constant, Fold, Ident, ListLiteral, MapLiteral, Node, Select
from hami_dra.cel.values import EMPTY, MISSING, Optional, TypeName, map_key, show

_CHAIN_CALLS: Final = {"_[_]", "_[?_]", "_?._"}
_LIST_PRICE: Final = 10
_MAP_PRICE: Final = 30


class Compiler:
    """Compiler of one tree. Call `compile` once; it raises CompileError for an invalid constant."""

    def __init__(self, *, metered: bool) -> None:
        self.metered = metered
        self.lazy: dict[int, Run] = {}  # slot of a bound variable -> code of its value

    def compile(self, node: Node) -> Run:  # noqa: C901 (one case for each kind of node)
        value = self.constant(node)
        if value is not MISSING:
            return lambda _: value
        match node:
            case Call(function="_&&_"):
                return logic.conjunction([self.compile(arg) for arg in node.args])
            case Call(function="_||_"):
                return logic.disjunction([self.compile(arg) for arg in node.args])
            case Call(function="_?_:_"):
                return self._conditional(node)
            case Call(function=function) if function in _CHAIN_CALLS:
                return self._chain(node)
            case Call(function="or" | "orValue"):
                return self._alternative(node)
            case Call():
                return calls.compile_call(self, node)
            case Ident() | Select():
                return self._chain(node)
            case ListLiteral():
                return self._list(node)
            case MapLiteral():
                return self._map(node)
            case Fold():
                return folds.compile_fold(self, node)
        raise AssertionError(f"unknown node {node!r}")

    def paid(self, run: Run, price: int) -> Run:
        if not self.metered or price == 0:
            return run

        def metered(env: list[Any]) -> Any:
            env[1].spend(price)
            return run(env)

        return metered

    def constant(self, node: Node) -> Any:
        """Return the value of a node that is known at compile time, or MISSING.

        Known are literals, types, aggregates of constants, and conversions.
        """
        match node:
            case Constant():
                return node.value
            case Ident() if node.slot < 0 and node.name.removeprefix(".") != "device":
                return TypeName(node.name.removeprefix("."))
            case Ident() if node.type.name == "type":
                # cel-go treats a variable that holds a type as the name of a type, whatever its
                # value.
                if node.name not in TYPE_IDENTIFIERS:
                    raise _instantiation_error(CelError(f"reference to undefined type: {node.name}"))
                return TypeName(node.name)
            case Select() if not node.name and isinstance(node.operand, Ident):  # a qualified type, see the checker
                return TypeName(node.operand.name)
            case ListLiteral() if not node.optional:
                elements = [self.constant(element) for element in node.elements]
                return MISSING if any(element is MISSING for element in elements) else elements
            case MapLiteral() if not any(entry.optional for entry in node.entries):
                pairs = [(self.constant(entry.key), self.constant(entry.value)) for entry in node.entries]
                if any(key is MISSING or value is MISSING for key, value in pairs):
                    return MISSING
                return _now(lambda: {map_key(key): value for key, value in pairs})
            case Call():
                return calls.constant_call(self, node)
        return MISSING

    # ---- names and selections ----

    def _chain(self, node: Node, *, free_root: bool = False) -> Run:
        """Return code for a variable or expression with all its selections.

        The root has one price, and so has each step. `free_root`: the root is free, as in a branch
        of a conditional.
        """
        steps: list[Step] = []
        test_only = isinstance(node, Select) and node.test_only
        root: Node = node
        while (found := self._step(root)) is not None:
            root, step = found
            steps.insert(0, step)
        price = len(steps) + (0 if free_root or _is_conditional(root) else 1) - test_only
        fused = None if test_only else _device_chain(root, steps)
        if fused:
            return self.paid(fused, price)
        code = self._root(root)
        if test_only:
            name = steps.pop()[0]
            return self.paid(_fused_presence(root, steps, name) or access.test_presence(code, steps, name), price)
        if not steps:
            return self.paid(code, price)
        if self.metered and any(optional for _, _, optional in steps):
            return self.paid(access.follow_metered(code, steps), price - len(steps))
        return self.paid(access.follow(code, steps), price)

    def _step(self, node: Node) -> tuple[Node, Step] | None:
        if isinstance(node, Select) and node.name:
            return node.operand, (node.name, None, False)
        if not (isinstance(node, Call) and node.function in _CHAIN_CALLS):
            return None
        operand, key = node.args
        constant = self.constant(key)
        if constant is MISSING:
            return operand, (None, self._key(key), node.function != "_[_]")
        try:
            access.require_key(constant)
        except CelError as error:
            raise _instantiation_error(error) from None
        return operand, (constant, None, node.function != "_[_]")

    def _key(self, key: Node) -> Run:
        # A variable as key has no price of its own: the step is paid for.
        return self._chain(key, free_root=True) if _is_attribute(key) else self.compile(key)

    def _root(self, node: Node) -> Run:
        if not isinstance(node, Ident):
            return self.compile(node)
        if node.slot < 0:
            return lambda env: env[0].whole
        index = node.slot + FIRST_SLOT
        value = self.lazy.get(node.slot)
        return folds.lazy_variable(index, value) if value else lambda env: env[index]

    def _conditional(self, node: Call) -> Run:
        condition = self.compile(node.args[0])
        yes, no = (
            self._chain(branch, free_root=True) if _is_attribute(branch) else self.compile(branch)
            for branch in node.args[1:]
        )

        def run(env: list[Any]) -> Any:
            chosen = condition(env)
            if chosen is True:
                return yes(env)
            if chosen is False:
                return no(env)
            raise no_such_overload()

        return run

    def _alternative(self, node: Call) -> Run:
        """Return code for optional.or(optional) and optional.orValue(value).

        The right side is evaluated only if needed, and is free.
        """
        assert node.target is not None
        left, right = self.compile(node.target), self.compile(node.args[0])
        unwrap = node.function == "orValue"

        def run(env: list[Any]) -> Any:
            value = left(env)
            if type(value) is not Optional:
                raise no_such_overload()
            if value.value is MISSING:
                return right(env)
            return value.value if unwrap else value

        return run

    # ---- aggregates ----

    def _list(self, node: ListLiteral) -> Run:
        elements = [(self.compile(element), index in node.optional) for index, element in enumerate(node.elements)]

        def plain(env: list[Any]) -> list[Any]:
            return [element(env) for element, _ in elements]

        def with_optionals(env: list[Any]) -> list[Any]:
            values: list[Any] = []
            for element, optional in elements:
                value = element(env)
                if optional:
                    value = _require_optional(value, "cannot initialize optional list element from")
                if value is not MISSING:
                    values.append(value)
            return values

        return self.paid(with_optionals if node.optional else plain, _LIST_PRICE)

    def _map(self, node: MapLiteral) -> Run:
        entries = [(self.compile(entry.key), self.compile(entry.value), entry.optional) for entry in node.entries]

        def run(env: list[Any]) -> dict[Any, Any]:
            values: dict[Any, Any] = {}
            for key_code, value_code, optional in entries:
                key = key_code(env)
                value = value_code(env)
                if optional:
                    value = _require_optional(value, f"cannot initialize optional entry '{show(key)}' from")
                if value is MISSING:
                    values.pop(map_key(key), None)
                else:
                    values[map_key(key)] = value
            return values

        return self.paid(run, _MAP_PRICE)


def _require_optional(value: Any, problem: str) -> Any:
    if type(value) is not Optional:
        raise CelError(f"{problem} non-optional value {show(value)}")
    return value.value


def _now(code: Callable[[], Any]) -> Any:
    try:
        return code()
    except CelError as error:
        raise _instantiation_error(error) from None


def _instantiation_error(error: Exception) -> CompileError:
    return CompileError(f"program instantiation failed: {error}")


def _is_conditional(node: Node) -> bool:
    return isinstance(node, Call) and node.function == "_?_:_"


def _is_attribute(node: Node) -> bool:
    """Return whether cel-go plans the node as an attribute, which is free in some places."""
    if isinstance(node, Ident):
        return node.slot >= 0 or node.name.removeprefix(".") == "device"
    if isinstance(node, Select):
        return bool(node.name)
    return isinstance(node, Call) and node.function in _CHAIN_CALLS


# ---- common selections of selectors ----


def _constant_names(root: Node, steps: list[Step]) -> list[str] | None:
    """Return the names of a chain on `device` that consists of constant names only."""
    if not (isinstance(root, Ident) and root.slot < 0):
        return None
    if any(code is not None or optional or type(key) is not str for key, code, optional in steps):
        return None
    return [key for key, _, _ in steps]


def _device_chain(root: Node, steps: list[Step]) -> Run | None:
    """Return code for device.driver, device.attributes["d"] and similar chains.

    It needs no intermediate map of the device.
    """
    names = _constant_names(root, steps)
    match names:
        case ["driver"]:
            return lambda env: env[0].driver
        case ["allowMultipleAllocations"]:
            return lambda env: env[0].allow_multiple_allocations
        case ["attributes"]:
            return lambda env: env[0].attributes
        case ["capacity"]:
            return lambda env: env[0].capacity
        case ["attributes", domain]:
            return lambda env: env[0].attributes.get(domain, EMPTY)
        case ["capacity", domain]:
            return lambda env: env[0].capacity.get(domain, EMPTY)
        case ["attributes", domain, name]:
            return _attribute(domain, name)
        case ["capacity", domain, name]:
            return _capacity(domain, name)
    return None


def _attribute(domain: str, name: str) -> Run:
    def run(env: list[Any]) -> Any:
        try:
            return env[0].attributes[domain][name]
        except KeyError:
            raise access.no_such_key(name) from None

    return run


def _capacity(domain: str, name: str) -> Run:
    def run(env: list[Any]) -> Any:
        try:
            return env[0].capacity[domain][name]
        except KeyError:
            raise access.no_such_key(name) from None

    return run


def _fused_presence(root: Node, steps: list[Step], name: str) -> Run | None:
    match _constant_names(root, steps):
        case ["attributes", domain]:
            return lambda env: name in env[0].attributes.get(domain, EMPTY)
        case ["capacity", domain]:
            return lambda env: name in env[0].capacity.get(domain, EMPTY)
    return None

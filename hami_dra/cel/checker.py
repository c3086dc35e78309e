"""The static check: resolves names, selects overloads, gives every node a type.

A transcription of cel-go's checker. Called by selector.compile_selector between parser and
compiler. It writes `type`, `overloads` and `slot` into the tree. The first problem found is
reported.
"""

from typing import Final, NoReturn

from hami_dra.cel import types as t
from hami_dra.cel.environment import TYPE_IDENTIFIERS, VARIABLES, Features, device_fields
from hami_dra.cel.errors import CompileError, located
from hami_dra.cel.library import Overload, functions
from hami_dra.cel.tree import Call, Constant, Fold, Ident, ListLiteral, MapLiteral, Node, Select
from hami_dra.cel.types import Type
from hami_dra.cel.values import TYPE_NAMES

MAX_TYPE_PARTS: Final = 1_000  # types can grow exponentially with the length of the expression


def check(tree: Node, source: str, features: Features) -> int:
    """Check the tree and return how many slots the variables of macros need. Raises CompileError."""
    checker = _Checker(source, features)
    checker.check(tree)
    checker.finish()
    return checker.slots


def require_condition(tree: Node, features: Features) -> None:
    """Require that the whole expression is a bool or of unknown type. Raises CompileError."""
    if tree.type not in (t.BOOL, features.attribute_type):
        raise CompileError(f"must evaluate to bool or the unknown type, not {tree.type}")


def shown(type_: Type) -> str:
    if type_ == t.NULL:
        return "null"
    if type_ in (t.DURATION, t.TIMESTAMP):
        return type_.name.rpartition(".")[2].lower()
    return f"{type_.name}({', '.join(map(shown, type_.params))})" if type_.params else str(type_)


class _Checker:
    def __init__(self, source: str, features: Features) -> None:
        self._source = source
        self._features = features
        self._fields = device_fields(features)
        self._substitutions = t.Substitutions()
        self._scopes: list[dict[str, tuple[Type, int]]] = []  # name -> type and slot
        self._nodes: list[Node] = []
        self.slots = 0

    def finish(self) -> None:
        for node in self._nodes:
            node.type = self._substitutions.resolve(node.type, free_as_dyn=True)

    def check(self, node: Node) -> Type:
        match node:
            case Call():
                found = self._call(node)
            case Select():
                found = self._select(node)
            case Ident():
                found = self._ident(node)
            case Constant():
                found = Type(TYPE_NAMES[type(node.value)])
            case ListLiteral():
                found = self._list(node)
            case MapLiteral():
                found = self._map(node)
            case Fold():
                found = self._fold(node)
            case _:
                raise AssertionError(f"unknown node {node!r}")
        self._limit(found, node)
        node.type = found
        self._nodes.append(node)
        return found

    def _fail(self, at: int, message: str) -> NoReturn:
        raise located(self._source, at, message)

    def _limit(self, type_: Type, node: Node) -> None:
        parts, pending = 0, [type_]
        while pending:
            parts += 1
            if parts > MAX_TYPE_PARTS:
                self._fail(node.at, "the type of this expression is too large")
            pending.extend(pending.pop().params)

    def _mismatch(self, node: Node, expected: Type, actual: Type) -> NoReturn:
        self._fail(node.at, f"expected type '{shown(expected)}' but found '{shown(actual)}'")

    def _resolved(self, type_: Type) -> Type:
        return self._substitutions.resolve(type_)

    # ---- names ----

    def _variable(self, name: str) -> tuple[Type, int] | None:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return None

    def _ident(self, node: Ident) -> Type:
        local = None if node.name.startswith(".") else self._variable(node.name)
        if local:
            node.slot = local[1]
            return local[0]
        name = node.name.removeprefix(".")
        if name in VARIABLES:
            return VARIABLES[name]
        if name in TYPE_IDENTIFIERS:
            return _type_of_type(name)
        return self._fail(node.at, f"undeclared reference to '{node.name}' (in container '')")

    def _qualified_type(self, node: Select) -> Ident | None:
        """Return the type that a chain such as google.protobuf.Duration names."""
        dotted = _dotted(node)
        if dotted is None:
            return None
        first = dotted.partition(".")[0]
        name = dotted.removeprefix(".")
        if name not in TYPE_IDENTIFIERS or (first and self._variable(first)):
            return None
        return Ident(node.at, name)

    def _select(self, node: Select) -> Type:
        named = None if node.test_only else self._qualified_type(node)
        if named:
            node.operand, node.name = named, ""  # the compiler reads this as the type itself
            return _type_of_type(named.name)
        found = self._field(node, node.operand, node.name)
        return t.BOOL if node.test_only else self._resolved(found)

    def _field(self, node: Node, operand: Node, name: str, *, optional: bool = False) -> Type:
        operand_type = self._resolved(self.check(operand))
        target, was_optional = _unwrapped(operand_type)
        if target.name == "map":
            found = target.params[1]
        elif target == t.DEVICE:
            if name not in self._fields:
                self._fail(node.at, f"undefined field '{name}'")
            found = self._fields[name]
        elif t.is_variable(target):
            self._substitutions.assignable(t.DYN, target)
            found = t.DYN
        elif t.is_dyn(target):
            found = t.DYN
        else:
            self._fail(node.at, f"type '{shown(target)}' does not support field selection")
        return t.optional_of(found) if was_optional or optional else found

    # ---- calls ----

    def _call(self, node: Call) -> Type:
        if node.function == "_?._":
            operand, field = node.args
            assert isinstance(field, Constant)
            return self._resolved(self._field(node, operand, field.value, optional=True))
        for arg in node.args:
            self.check(arg)
        name = node.function
        if node.target is not None:
            prefix = _dotted(node.target)
            qualified = f"{prefix}.{name}".removeprefix(".") if prefix is not None else None
            if qualified in functions:
                node.function, node.target = qualified, None
            else:
                self.check(node.target)
        else:
            node.function = name = name.removeprefix(".")
        overloads = functions.get(node.function)
        if overloads is None or (node.function == "includes" and not self._features.lists):
            self._fail(node.at, f"undeclared reference to '{name}' (in container '')")
        if node.function in {"_&&_", "_||_"}:
            return self._logic(node, overloads)
        return self._resolve_overload(node, overloads)

    def _logic(self, node: Call, overloads: list[Overload]) -> Type:
        for arg in node.args:
            if not self._substitutions.assignable(arg.type, t.BOOL):
                self._mismatch(arg, t.BOOL, self._resolved(arg.type))
        node.overloads = tuple(overloads)
        return t.BOOL

    def _resolve_overload(self, node: Call, overloads: list[Overload]) -> Type:
        member = node.target is not None
        arg_types = tuple(arg.type for arg in ([node.target] if node.target else []) + node.args)
        fitting: list[Overload] = []
        result: Type | None = None
        for overload in overloads:
            if overload.member is not member or len(overload.params) != len(arg_types):
                continue
            found, params = overload.result, overload.params
            if overload.generic:
                found, *fresh = t.rename_variables((found, *params), self._substitutions)
                params = tuple(fresh)
            if not self._substitutions.all_assignable(arg_types, params):
                continue
            fitting.append(overload)
            found = self._resolved(found)
            if result is None:
                result = found
            elif not t.is_dyn(result) and found != result:
                result = t.DYN
        if result is None:
            types = [shown(self._substitutions.resolve(arg, free_as_dyn=True)) for arg in arg_types]
            signature = f"{types[0]}.({', '.join(types[1:])})" if member else f"({', '.join(types)})"
            self._fail(node.at, f"found no matching overload for '{node.function}' applied to '{signature}'")
        node.overloads = tuple(fitting)
        return result

    # ---- literals ----

    def _joined(self, previous: Type | None, current: Type) -> Type:
        """Return the type of an aggregate with one more element.

        validate.py reports mixed types, except inside format().
        """
        if previous is None or previous == current:
            return current
        return t.most_general(previous, current) if self._substitutions.assignable(previous, current) else t.DYN

    def _value_of_optional(self, node: Node, type_: Type) -> Type:
        value, was_optional = _unwrapped(self._resolved(type_))
        if not was_optional and not t.is_dyn(value):
            self._mismatch(node, t.optional_of(value), value)
        return value

    def _list(self, node: ListLiteral) -> Type:
        joined: Type | None = None
        for index, element in enumerate(node.elements):
            found = self.check(element)
            if index in node.optional:
                found = self._value_of_optional(element, found)
            joined = self._joined(joined, found)
        return t.list_of(joined or self._substitutions.new_variable())

    def _map(self, node: MapLiteral) -> Type:
        keys: Type | None = None
        values: Type | None = None
        for entry in node.entries:
            keys = self._joined(keys, self.check(entry.key))
            found = self.check(entry.value)
            if entry.optional:
                found = self._value_of_optional(entry.value, found)
            values = self._joined(values, found)
        new = self._substitutions.new_variable
        return t.map_of(keys or new(), values or new())

    # ---- macros ----

    def _fold(self, node: Fold) -> Type:
        over = self._resolved(self.check(node.over))
        node.slot = self.slots
        self.slots += 2
        if node.kind == "bind":
            self._scopes.append({node.variable: (over, node.slot)})
            result = self.check(node.step)
            self._scopes.pop()
            return self._resolved(result)
        first, second = self._range_types(node, over)
        scope = {node.variable: (first, node.slot)}
        if node.variable2 is not None:
            scope[node.variable2] = (second, node.slot + 1)
        self._scopes.append(scope)
        if node.predicate is not None:
            self.check(node.predicate)
            self._require_condition(node, node.predicate)
        step = self.check(node.step)
        result = self._fold_result(node, first, step)
        self._scopes.pop()
        return self._resolved(result)

    def _fold_result(self, node: Fold, key: Type, step: Type) -> Type:
        match node.kind:
            case "append":
                return t.list_of(step)
            case "insert" if node.keyed:
                return t.map_of(key, step)
            case "insert":
                entries = t.map_of(self._substitutions.new_variable(), self._substitutions.new_variable())
                if not self._substitutions.assignable(step, entries):
                    types = f"map(dyn, dyn), {shown(self._resolved(step))}"
                    self._fail(node.at, f"found no matching overload for 'cel.@mapInsert' applied to '({types})'")
                return entries
            case "exists_one":
                self._require_condition(node, node.step)
            case _:
                if not self._substitutions.assignable(step, t.BOOL):
                    self._mismatch(node.step, t.BOOL, self._resolved(step))
        return t.BOOL

    def _require_condition(self, node: Fold, condition: Node) -> None:
        if not self._substitutions.assignable(condition.type, t.BOOL):
            types = f"{shown(self._resolved(condition.type))}, ..."
            self._fail(node.at, f"found no matching overload for '_?_:_' applied to '({types})'")

    def _range_types(self, node: Fold, over: Type) -> tuple[Type, Type]:
        """Return the types of the variables of a loop over `over`. A single variable of a map is its key."""
        two = node.variable2 is not None
        if over.name == "list":
            return (t.INT, over.params[0]) if two else (over.params[0], t.DYN)
        if over.name == "map":
            return over.params[0], over.params[1]
        if t.is_variable(over):
            self._substitutions.assignable(t.DYN, over)
        elif over.name != "dyn":
            self._fail(
                node.over.at,
                f"expression of type '{shown(over)}' cannot be range of a comprehension (must be list, map, or dynamic)",
            )
        return t.DYN, t.DYN


def _type_of_type(name: str) -> Type:
    params = {"list": (t.DYN,), "map": (t.DYN, t.DYN), "optional_type": (t.DYN,)}.get(name, ())
    return Type("type", (Type(name, params),))


def _unwrapped(type_: Type) -> tuple[Type, bool]:
    return (type_.params[0], True) if type_.name == "optional_type" else (type_, False)


def _dotted(node: Node) -> str | None:
    """Return the name that a chain of selections spells."""
    names: list[str] = []
    root = node
    while isinstance(root, Select) and not root.test_only:
        names.append(root.name)
        root = root.operand
    return ".".join([root.name, *reversed(names)]) if isinstance(root, Ident) else None

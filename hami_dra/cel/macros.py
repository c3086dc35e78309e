"""Macros: calls that are rewritten while parsing, as in cel-go, its extensions and Kubernetes.

Called by the parser. In: name, receiver and arguments of a call. Out: the node that replaces it, or
None for an ordinary call.
"""

from collections.abc import Callable
from typing import Final

from hami_dra.cel.tree import Call, Constant, Entry, Fold, FoldKind, Ident, ListLiteral, MapLiteral, Node, Select

# nodes; optMap copies its receiver, so a chain of them would grow without bound
MAX_COPIED: Final = 5_000
SORT_VARIABLE: Final = "@sorted"
_ACCUMULATORS: Final = {"@result", "__result__"}

Expander = Callable[[int, Node, list[Node]], Node | None]


class MacroError(ValueError):
    """The arguments do not suit the macro."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at


def expand(at: int, name: str, target: Node | None, args: list[Node]) -> Node | None:
    """Expand a call. Raises MacroError."""
    if target is None:
        return _has(at, args[0]) if name == "has" and len(args) == 1 else None
    expander = _RECEIVER_MACROS.get((name, len(args)))
    return expander(at, target, args) if expander else None


def _has(at: int, selection: Node) -> Node:
    if isinstance(selection, Select):
        return Select(at, selection.operand, selection.name, test_only=True)
    raise MacroError(selection.at, "invalid argument to has() macro")


def _quantifier(kind: FoldKind) -> Expander:
    def expander(at: int, target: Node, args: list[Node]) -> Node:
        first, second = _variables(args[:-1])
        return Fold(at, kind, target, first, second, args[-1])

    return expander


def _map(at: int, target: Node, args: list[Node]) -> Node:
    variable, _ = _variables(args[:1], "argument is not an identifier")
    return Fold(at, "append", target, variable, None, args[-1], args[1] if len(args) == 3 else None)


def _filter(at: int, target: Node, args: list[Node]) -> Node:
    variable, _ = _variables(args[:1], "argument is not an identifier")
    return Fold(at, "append", target, variable, None, Ident(args[0].at, variable), args[1])


def _transform(kind: FoldKind, *, keyed: bool = True) -> Expander:
    def expander(at: int, target: Node, args: list[Node]) -> Node:
        first, second = _variables(args[:2])
        return Fold(at, kind, target, first, second, args[-1], args[2] if len(args) == 4 else None, keyed)

    return expander


def _bind(at: int, target: Node, args: list[Node]) -> Node | None:
    if not (isinstance(target, Ident) and target.name == "cel"):
        return None
    if not isinstance(args[0], Ident):
        raise MacroError(args[0].at, "cel.bind() variable names must be simple identifiers")
    return Fold(at, "bind", args[1], args[0].name, None, args[2])


def _opt_map(name: str, *, wrap: bool) -> Expander:
    def expander(at: int, target: Node, args: list[Node]) -> Node:
        if not isinstance(args[0], Ident):
            raise MacroError(args[0].at, f"{name}() variable name must be a simple identifier")
        value = Call(at, "value", _Copier(at).copy(target), [])
        bound: Node = Fold(at, "bind", value, args[0].name, None, args[1])
        if wrap:
            bound = Call(at, "optional.of", None, [bound])
        return Call(at, "_?_:_", None, [Call(at, "hasValue", target, []), bound, Call(at, "optional.none", None, [])])

    return expander


def _sort_by(at: int, target: Node, args: list[Node]) -> Node:
    if isinstance(target, Constant | MapLiteral):
        raise MacroError(
            target.at, "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        )
    keys = _map(at, Ident(at, SORT_VARIABLE), args)
    ordered = Call(at, "@sortByAssociatedKeys", Ident(at, SORT_VARIABLE), [keys])
    return Fold(at, "bind", target, SORT_VARIABLE, None, ordered)


def _variables(args: list[Node], not_a_name: str = "argument must be a simple name") -> tuple[str, str | None]:
    names: list[str] = []
    for arg in args:
        if not isinstance(arg, Ident):
            raise MacroError(arg.at, not_a_name)
        if arg.name in names:
            raise MacroError(arg.at, f"duplicate variable name: {arg.name}")
        if arg.name in _ACCUMULATORS:
            raise MacroError(arg.at, "iteration variable overwrites accumulator variable")
        names.append(arg.name)
    return names[0], names[1] if len(names) == 2 else None


class _Copier:
    """Deep copies, counted."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._copied = 0

    def copy(self, node: Node) -> Node:
        self._copied += 1
        if self._copied > MAX_COPIED:
            raise MacroError(self._at, "the expression grows too large: too many chained optMap or optFlatMap calls")
        copied = self._copy_of(node)
        copied.depth = node.depth
        return copied

    def _copy_of(self, node: Node) -> Node:
        match node:
            case Constant():
                return Constant(node.at, node.value)
            case Ident():
                return Ident(node.at, node.name)
            case Select():
                return Select(node.at, self.copy(node.operand), node.name, node.test_only)
            case Call():
                target = self.copy(node.target) if node.target else None
                return Call(node.at, node.function, target, [self.copy(arg) for arg in node.args])
            case ListLiteral():
                return ListLiteral(node.at, [self.copy(element) for element in node.elements], node.optional)
            case MapLiteral():
                entries = [
                    Entry(self.copy(entry.key), self.copy(entry.value), entry.optional) for entry in node.entries
                ]
                return MapLiteral(node.at, entries)
            case Fold():
                predicate = self.copy(node.predicate) if node.predicate else None
                over, step = self.copy(node.over), self.copy(node.step)
                return Fold(node.at, node.kind, over, node.variable, node.variable2, step, predicate, node.keyed)
        raise AssertionError(f"unknown node {node!r}")


_RECEIVER_MACROS: Final[dict[tuple[str, int], Expander]] = {
    ("all", 2): _quantifier("all"),
    ("all", 3): _quantifier("all"),
    ("exists", 2): _quantifier("exists"),
    ("exists", 3): _quantifier("exists"),
    ("exists_one", 2): _quantifier("exists_one"),
    ("exists_one", 3): _quantifier("exists_one"),
    ("existsOne", 3): _quantifier("exists_one"),
    ("map", 2): _map,
    ("map", 3): _map,
    ("filter", 2): _filter,
    ("transformList", 3): _transform("append"),
    ("transformList", 4): _transform("append"),
    ("transformMap", 3): _transform("insert"),
    ("transformMap", 4): _transform("insert"),
    ("transformMapEntry", 3): _transform("insert", keyed=False),
    ("transformMapEntry", 4): _transform("insert", keyed=False),
    ("bind", 3): _bind,
    ("optMap", 2): _opt_map("optMap", wrap=True),
    ("optFlatMap", 2): _opt_map("optFlatMap", wrap=False),
    ("sortBy", 2): _sort_by,
}

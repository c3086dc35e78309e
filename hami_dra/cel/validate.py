"""Checks of literals after the types: patterns, durations, timestamps, format strings, mixed
aggregates.

These are Kubernetes' own (cel-go: cel/validator.go, ext/formatting.go). Called by
selector.compile_selector on a checked tree.
"""

from collections.abc import Iterator

from hami_dra.cel.checker import shown
from hami_dra.cel.errors import CelError, CompileError, located
from hami_dra.cel.library import formatting, functions, text
from hami_dra.cel.library.registry import guard
from hami_dra.cel.tree import Call, Constant, Fold, ListLiteral, MapLiteral, Node, Select
from hami_dra.cel.types import Type


def validate(tree: Node, source: str) -> None:
    """Check all literals. Raises CompileError."""
    for node, in_format in _walk(tree):
        match node:
            case Call(function="matches" | "duration" | "timestamp"):
                _validate_call(node, source)
            case Call(function="format", target=Constant(value=str())):
                _validate_format(node, source)
            case ListLiteral() if not in_format:
                _validate_list(node, source)
            case MapLiteral() if not in_format:
                _validate_map(node, source)


def children(node: Node) -> list[Node]:
    match node:
        case Call():
            return ([node.target] if node.target else []) + node.args
        case Select():
            return [node.operand]
        case ListLiteral():
            return node.elements
        case MapLiteral():
            return [child for entry in node.entries for child in (entry.key, entry.value)]
        case Fold():
            return [node.over, node.step] + ([node.predicate] if node.predicate else [])
    return []


def walk(tree: Node) -> Iterator[Node]:
    """Yield every node, parents first."""
    return (node for node, _ in _walk(tree))


def _walk(tree: Node) -> Iterator[tuple[Node, bool]]:
    """Yield every node, and whether it is inside a call of format (whose list may mix types)."""
    pending = [(tree, False)]
    while pending:
        node, in_format = pending.pop()
        yield node, in_format
        inside = in_format or (isinstance(node, Call) and node.function == "format")
        pending.extend((child, inside) for child in reversed(children(node)))


def _validate_call(node: Call, source: str) -> None:
    literal = node.args[0] if node.args else None
    if not isinstance(literal, Constant):
        return
    try:
        if node.function == "matches":
            text.compile_pattern(literal.value)
        else:
            _convert(node.function, literal.value)
    except (text.BadPattern, CelError):
        raise located(source, literal.at, f"invalid {node.function} argument") from None


def _convert(function: str, value: object) -> None:
    for overload in functions[function]:
        test = guard(overload.params[0])
        if overload.code and test and test(value):
            overload.code(value)


def _validate_format(node: Call, source: str) -> None:
    template, args = node.target, node.args[0]
    if not isinstance(template, Constant) or not isinstance(args, ListLiteral):
        return
    shown_args = 0
    try:
        for _, verb, _ in formatting.clauses(template.value, len(args.elements)):
            if verb:
                _validate_argument(verb, args.elements[shown_args], source)
                shown_args += 1
    except CelError as error:
        raise located(source, node.at, str(error)) from None
    if len(args.elements) > shown_args:
        message = f"too many arguments supplied to string.format (expected {shown_args}, got {len(args.elements)})"
        raise located(source, node.at, message)


def _validate_argument(verb: str, arg: Node, source: str) -> None:
    if arg.type.name != "dyn" and arg.type.name not in formatting.ACCEPTED[verb.lower()]:
        raise located(source, arg.at, formatting.refusal(verb, arg.type.name))
    if verb == "s" and isinstance(arg, ListLiteral | MapLiteral):
        for child in children(arg):
            _validate_argument(verb, child, source)


def _validate_list(node: ListLiteral, source: str) -> None:
    types = [_type_of(element, optional=index in node.optional) for index, element in enumerate(node.elements)]
    for element, found in zip(node.elements[1:], types[1:], strict=False):
        if found != types[0]:
            raise _mixed(source, element, types[0], found)


def _validate_map(node: MapLiteral, source: str) -> None:
    first: tuple[Type, Type] | None = None
    for entry in node.entries:
        value_type = _type_of(entry.value, optional=entry.optional)
        if first is None:
            first = entry.key.type, value_type
            continue
        for part, expected, found in ((entry.key, first[0], entry.key.type), (entry.value, first[1], value_type)):
            if expected != found:
                raise _mixed(source, part, expected, found)


def _type_of(node: Node, *, optional: bool) -> Type:
    """Return the node's type; for an optional, the type of its value if known."""
    return node.type.params[0] if optional and node.type.params else node.type


def _mixed(source: str, node: Node, expected: Type, found: Type) -> CompileError:
    return located(source, node.at, f"expected type '{shown(expected)}' but found '{shown(found)}'")

"""Which attributes and capacities a selector reads.

Used for reason codes and caches: two devices that agree in these get the same verdict, if the list is complete.
"""

from dataclasses import dataclass
from typing import Final

from hami_dra.cel.tree import Call, Constant, Fold, Ident, Node, Select
from hami_dra.cel.validate import walk

_PARTS: Final = {"attributes", "capacity"}


@dataclass(frozen=True, slots=True)
class References:
    """(domain, name) of what is named literally; the domain is None where it is computed.

    `complete`: nothing else of attributes and capacity can be read.
    """

    names: frozenset[tuple[str | None, str]]
    complete: bool


def find_references(tree: Node) -> References:
    """Of a checked tree."""
    names: set[tuple[str | None, str]] = set()
    domains = {fold.slot: fold.over for fold in walk(tree) if isinstance(fold, Fold) and fold.kind == "bind"}
    counted: set[int] = set()  # parts of the device that were read through to a name
    for node in walk(tree):
        operand, name = _selection(node)
        if operand is None or name is None:
            continue
        source = _bound(operand, domains)
        inner, domain = _selection(source)
        part = _bound(inner, domains) if inner is not None else None
        if part is not None and _is_part(part):
            names.add((domain, name))
            counted.add(id(part))
    parts = [node for node in walk(tree) if _is_part(node)]
    whole = any(
        isinstance(node, Ident) and node.slot < 0 and node.name.removeprefix(".") == "device" for node in walk(tree)
    )
    reached = {id(node.operand) for node in walk(tree) if isinstance(node, Select)}
    used_whole = whole and any(
        isinstance(node, Ident)
        and node.slot < 0
        and node.name.removeprefix(".") == "device"
        and id(node) not in reached
        for node in walk(tree)
    )
    complete = not used_whole and all(id(part) in counted for part in parts) and all(d is not None for d, _ in names)
    return References(frozenset(names), complete)


def _selection(node: Node) -> tuple[Node | None, str | None]:
    """(operand, literal name) of `operand.name`, `operand["name"]` and their optional forms; name None if computed."""
    if isinstance(node, Select) and node.name:
        return node.operand, node.name
    if isinstance(node, Call) and node.function in {"_[_]", "_[?_]", "_?._"}:
        operand, key = node.args
        literal = key.value if isinstance(key, Constant) and isinstance(key.value, str) else None
        return operand, literal
    return None, None


def _bound(node: Node, domains: dict[int, Node]) -> Node:
    """What a variable of cel.bind stands for."""
    while isinstance(node, Ident) and node.slot in domains:
        node = domains[node.slot]
    return node


def _is_part(node: Node) -> bool:
    if not (isinstance(node, Select) and node.name in _PARTS):
        return False
    return isinstance(node.operand, Ident) and node.operand.slot < 0

"""Attributes and capacities that a selector reads.

Used for reason codes and caches: devices that agree in these get the same result, if the list is
complete.
"""

from typing import Final, TypeGuard

from msgspec import Struct

from hami_dra.cel.tree import Call, Constant, Fold, Ident, Node, Select
from hami_dra.cel.validate import children

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

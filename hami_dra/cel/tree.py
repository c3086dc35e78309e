"""The syntax tree.

The parser creates it (macros already expanded), the checker writes types and overloads into it, the
compiler turns it into closures. Every node has `at`, the offset of its characteristic token in the
source.
"""

from dataclasses import dataclass, field
from typing import Any
from typing import Literal as OneOf

from msgspec import Struct

from hami_dra.cel.types import DYN, Type

FoldKind = OneOf["all", "exists", "exists_one", "append", "insert", "bind"]


@dataclass(slots=True, eq=False)
class Node:
    at: int
    type: Type = field(default=DYN, init=False)
    depth: int = field(default=0, init=False)


@dataclass(slots=True, eq=False)
class Constant(Node):
    """A literal."""

    value: Any


@dataclass(slots=True, eq=False)
class Ident(Node):
    """A variable, or the name of a type. A leading dot means: not a variable of a macro."""

    name: str
    # index of a macro's variable in the evaluation's list; -1: none
    slot: int = field(default=-1, init=False)


@dataclass(slots=True, eq=False)
class Select(Node):
    """`operand.name`; with `test_only` it is has(operand.name)."""

    operand: Node
    name: str
    test_only: bool = False


@dataclass(slots=True, eq=False)
class Call(Node):
    """A function, a method (`target` is its receiver) or an operator under its CEL name (`_+_`,
    `_[_]`, `_?._`, ...).

    `_&&_` and `_||_` take any number of arguments, in the order of the source.
    """

    function: str
    target: Node | None
    args: list[Node]
    overloads: tuple[Any, ...] = field(
        default=(), init=False
    )  # overloads of the library that fit, according to the checker


@dataclass(slots=True, eq=False)
class ListLiteral(Node):
    elements: list[Node]
    optional: frozenset[int] = frozenset()  # indices written as `?element`


class Entry(Struct, eq=False):
    key: Node
    value: Node
    optional: bool


@dataclass(slots=True, eq=False)
class MapLiteral(Node):
    entries: list[Entry]


@dataclass(slots=True, eq=False)
class Fold(Node):
    """A loop over a list or map; every macro with a variable becomes one.

    - all, exists, exists_one: `step` is the predicate
    - append (map, filter, transformList): `step` is the new element, kept if `predicate` holds
    - insert (transformMap, transformMapEntry): `step` is the new value under the key `variable` or,
      without `keyed`, a map of entries
    - bind (cel.bind, optMap, sortBy): no loop; `step` is the result, `over` the value of
      `variable`, evaluated at its first use
    """

    kind: FoldKind
    over: Node
    variable: str
    variable2: str | None
    step: Node
    predicate: Node | None = None
    keyed: bool = True
    slot: int = field(default=-1, init=False)  # slot of `variable`; `variable2` has the next one

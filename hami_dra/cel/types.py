"""Static types and their compatibility: a transcription of cel-go's checker/types.go.

Used by the checker and by the declarations of the library. Types are values: equal if written
equally.
"""

from typing import Final, NamedTuple


class Type(NamedTuple):
    """A type by `name`, with parameters: list 1, map 2, optional_type 1, type 0 or 1.

    Names that start with % are type variables.
    """

    name: str
    params: tuple["Type", ...] = ()

    def __str__(self) -> str:
        if self.name[0] == "%":
            return "<" + self.name[1:] + ">"
        return f"{self.name}({', '.join(map(str, self.params))})" if self.params else self.name


DYN: Final = Type("dyn")
ANY: Final = Type("any")
ERROR: Final = Type("!error!")
NULL: Final = Type("null_type")
BOOL: Final = Type("bool")
INT: Final = Type("int")
STRING: Final = Type("string")
DURATION: Final = Type("google.protobuf.Duration")
TIMESTAMP: Final = Type("google.protobuf.Timestamp")
QUANTITY: Final = Type("kubernetes.Quantity")
SEMVER: Final = Type("kubernetes.Semver")
DEVICE: Final = Type("kubernetes.DRADevice")

_WILDCARDS: Final = {"dyn", "any", "!error!"}
_SHORT: Final = {
    "optional": "optional_type",
    "Duration": DURATION.name,
    "Timestamp": TIMESTAMP.name,
    "Quantity": QUANTITY.name,
    "Semver": SEMVER.name,
    "URL": "kubernetes.URL",
    "Format": "kubernetes.NamedFormat",
    "IP": "net.IP",
    "CIDR": "net.CIDR",
    **{name: f"kubernetes.authorization.{name}" for name in (
        "Authorizer", "PathCheck", "GroupCheck", "ResourceCheck", "Decision",
    )},
}  # fmt: skip
_SCALARS: Final = {"null_type", "bool", "int", "uint", "double", "string", "bytes"}


def list_of(element: Type) -> Type:
    return Type("list", (element,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    return Type("optional_type", (value,))


def is_dyn(t: Type) -> bool:
    return t.name in {"dyn", "any"}


def is_variable(t: Type) -> bool:
    return t.name[0] == "%"


def read_type(text: str) -> Type:
    """Parse a type such as `map(K, list(string))`; single capitals are variables."""
    name, _, rest = text.strip().partition("(")
    if len(name) == 1 and name.isupper():
        return Type("%" + name)
    name = _SHORT.get(name, name)
    return Type(name, tuple(read_types(rest[:-1]))) if rest else Type(name)


def read_types(text: str) -> list[Type]:
    """Parse a comma-separated list of types."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [read_type(part) for part in [*parts, text[start:]] if part.strip()]


class Substitutions:
    """Values of the type variables. A failed test leaves no trace."""

    def __init__(self) -> None:
        self._bound: dict[str, Type] = {}
        self._trail: list[tuple[str, Type | None]] = []
        self._fresh = 0

    def new_variable(self) -> Type:
        self._fresh += 1
        return Type(f"%_var{self._fresh}")

    def assignable(self, source: Type, target: Type) -> bool:
        """Return whether a value of type `source` fits `target`; binds variables if so."""
        return self.all_assignable((source,), (target,))

    def all_assignable(self, sources: tuple[Type, ...], targets: tuple[Type, ...]) -> bool:
        mark = len(self._trail)
        if self._all_fit(sources, targets):
            return True
        while len(self._trail) > mark:
            name, previous = self._trail.pop()
            if previous is None:
                del self._bound[name]
            else:
                self._bound[name] = previous
        return False

    def resolve(self, t: Type, *, free_as_dyn: bool = False) -> Type:
        """Return `t` with its variables replaced."""
        if is_variable(t):
            bound = self._bound.get(t.name)
            if bound is not None:
                return self.resolve(bound, free_as_dyn=free_as_dyn)
            return DYN if free_as_dyn else t
        if not t.params:
            return t
        return Type(t.name, tuple(self.resolve(param, free_as_dyn=free_as_dyn) for param in t.params))

    def _all_fit(self, sources: tuple[Type, ...], targets: tuple[Type, ...]) -> bool:
        return len(sources) == len(targets) and all(map(self._fits, sources, targets))

    def _fits(self, source: Type, target: Type) -> bool:
        if is_variable(target):
            valid, bound = self._bind(source, target)
            if valid or bound:
                return valid
        if is_variable(source):
            return self._bind(target, source)[0]
        if source.name in _WILDCARDS or target.name in _WILDCARDS:
            return True
        if source.name == "null_type" or target.name == "null_type":
            other = target if source.name == "null_type" else source
            return other.name == "null_type" or (
                other.name not in _SCALARS and other.name not in {"list", "map", "type"}
            )
        if source.name == "type":
            return target.name == "type"
        return source.name == target.name and self._all_fit(source.params, target.params)

    def _bind(self, value: Type, variable: Type) -> tuple[bool, bool]:
        """Return (whether `value` fits `variable`, whether the variable was bound before)."""
        if value == variable:
            return True, True
        bound = self._bound.get(variable.name)
        if bound is not None:
            if value == bound:
                return True, True
            if not self._fits(value, bound):
                return False, True
            general = most_general(value, bound)
            if not self._occurs(variable, general):
                self._set(variable, general)
            return True, True
        if self._occurs(variable, value):
            return False, False
        self._set(variable, value)
        return True, False

    def _set(self, variable: Type, value: Type) -> None:
        self._trail.append((variable.name, self._bound.get(variable.name)))
        self._bound[variable.name] = value

    def _occurs(self, variable: Type, within: Type) -> bool:
        if variable == within:
            return True
        if is_variable(within):
            bound = self._bound.get(within.name)
            return bound is not None and self._occurs(variable, bound)
        return any(self._occurs(variable, param) for param in within.params)


def most_general(first: Type, second: Type) -> Type:
    """Return the more general one of two types that are known to unify."""
    return first if _no_more_specific(first, second) else second


def _no_more_specific(first: Type, second: Type) -> bool:
    if is_dyn(first) or is_variable(first):
        return True
    if is_dyn(second) or is_variable(second) or first.name != second.name:
        return False
    if first.name == "type":
        return True
    return len(first.params) == len(second.params) and all(map(_no_more_specific, first.params, second.params))


def has_variables(t: Type) -> bool:
    return is_variable(t) or any(map(has_variables, t.params))


def rename_variables(types: tuple[Type, ...], substitutions: Substitutions) -> tuple[Type, ...]:
    """Return a copy of a signature with fresh variables."""
    fresh: dict[str, Type] = {}

    def renamed(t: Type) -> Type:
        if is_variable(t):
            if t.name not in fresh:
                fresh[t.name] = substitutions.new_variable()
            return fresh[t.name]
        return Type(t.name, tuple(map(renamed, t.params))) if t.params else t

    return tuple(map(renamed, types))

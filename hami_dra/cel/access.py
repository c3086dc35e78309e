"""Selecting and indexing at run time: `a.b`, `a[b]`, `a.?b`, has(a.b), over plain values and
optionals.

Used by the compiler. Semantics: cel-go interpreter/attributes.go.
"""

from collections.abc import Callable
from typing import Any, Final

from hami_dra.cel.errors import CelError
from hami_dra.cel.values import INT_MAX, INT_MIN, MISSING, NONE, OpenMap, Optional, Uint, find, show, type_name

Run = Callable[[list[Any]], Any]
"""Takes the evaluation's list: the device, the meter, the slots of the variables."""
Step = tuple[Any, Run | None, bool]
"""(constant key, code for the key if it is not constant, whether the step is optional)"""

FIRST_SLOT: Final = 2
KEY_TYPES: Final = (str, int, Uint, bool, float)


def no_such_key(key: Any) -> CelError:
    return CelError(f"no such key: {show(key)}")


def select(value: Any, key: Any) -> Any:
    """Return `value[key]`. Raises CelError."""
    found = lookup(value, key)
    if found is MISSING:
        raise CelError(f"index out of bounds: {show(key)}") if type(value) is list else no_such_key(key)
    return found


def lookup(value: Any, key: Any) -> Any:
    """Return `value[key]`, or MISSING. Raises CelError only for a key of a type that `value` can never have."""
    kind = type(value)
    if kind is dict or kind is OpenMap:
        return find(value, key)
    if kind is list:
        index = _index(key)
        return value[index] if 0 <= index < len(value) else MISSING
    return MISSING


def _index(key: Any) -> int:
    kind = type(key)
    if kind is int or (kind is Uint and key <= INT_MAX):
        return int(key)
    if kind is float and key.is_integer() and INT_MIN < key < INT_MAX:
        return int(key)
    if kind is float or kind is Uint:
        raise CelError(f"unsupported index value {show(key)} in list")
    raise CelError(f"unsupported index type '{type_name(key)}' in list")


def require_key(key: Any) -> Any:
    """Return `key` if its type is allowed for keys. Raises CelError."""
    if type(key) not in KEY_TYPES:
        raise CelError(f"invalid qualifier type: {type_name(key)}")
    return key


def walk(value: Any, steps: list[Step], env: list[Any]) -> Any:
    """Follow a chain of selections.

    One optional step makes all following steps optional, and the result an optional.
    """
    optional = type(value) is Optional
    if optional:
        if value.value is MISSING:
            return value
        value = value.value
    for constant, code, is_optional in steps:
        key = constant if code is None else require_key(code(env))
        if optional or is_optional:
            optional = True
            value = lookup(value, key)
            if value is MISSING:
                return NONE
        else:
            value = select(value, key)
    return Optional(value) if optional else value


def follow(root: Run, steps: list[Step]) -> Run:
    """Return code for a chain of selections."""
    if not all(code is None and not optional and type(key) is str for key, code, optional in steps):
        return lambda env: walk(root(env), steps, env)
    keys = [key for key, _, _ in steps]

    def plain(env: list[Any]) -> Any:
        value = root(env)
        if type(value) is Optional:
            return walk(value, steps, env)
        for key in keys:
            value = select(value, key)
        return value

    return plain


def follow_metered(root: Run, steps: list[Step]) -> Run:
    """Return code for a chain of selections that pays for each step that finds something."""

    def run(env: list[Any]) -> Any:
        value = root(env)
        for step in steps:
            found = walk(value, [step], env)
            if found is NONE:
                return NONE
            env[1].spend(1)
            value = found
        return value

    return run


def test_presence(root: Run, steps: list[Step], name: str) -> Run:
    """Return code for has(root.steps.name)."""
    chain = follow(root, steps) if steps else root

    def run(env: list[Any]) -> bool:
        value = chain(env)
        if type(value) is Optional:
            return value.value is not MISSING and lookup(value.value, name) is not MISSING
        return lookup(value, name) is not MISSING

    return run

"""JSON patches (RFC 6902), as the API server applies those of an admission webhook. Arguments are never changed."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any


class PatchError(ValueError):
    """The patch cannot be applied; the message names the operation and the path."""


def json_patch(target: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """Return the result of an RFC 6902 JSON patch.

    Raises PatchError if a path is missing or a `test` fails; then nothing is changed.
    """
    document = deepcopy(target)
    for operation in operations:
        document = _one_operation(document, operation)
    return document


def _one_operation(document: Any, operation: Mapping[str, Any]) -> Any:
    name, path = operation.get("op"), str(operation.get("path", ""))
    match name:
        case "add":
            return _added(document, path, deepcopy(operation.get("value")))
        case "remove":
            return _removed(document, path)[0]
        case "replace":
            if not path:
                return deepcopy(operation.get("value"))
            return _added(_removed(document, path)[0], path, deepcopy(operation.get("value")))
        case "move":
            document, value = _removed(document, str(operation.get("from", "")))
            return _added(document, path, value)
        case "copy":
            return _added(document, path, deepcopy(_looked_up(document, str(operation.get("from", "")))))
        case "test":
            found = _looked_up(document, path)
            if found != operation.get("value"):
                raise PatchError(f"test {path}: the value is {found!r}, not {operation.get('value')!r}")
            return document
        case _:
            raise PatchError(f"unknown operation {name!r}; use add, remove, replace, move, copy or test")


def _steps(path: str) -> list[str]:
    if not path.startswith("/"):
        raise PatchError(f"path {path!r} does not start with '/'")
    return [step.replace("~1", "/").replace("~0", "~") for step in path[1:].split("/")]


def _looked_up(document: Any, path: str) -> Any:
    for step in _steps(path) if path else []:
        try:
            document = document[_index(document, step)] if isinstance(document, list) else document[step]
        except (KeyError, TypeError, IndexError):
            raise PatchError(f"nothing at {path!r}") from None
    return document


def _index(items: list[Any], step: str, *, end_allowed: bool = False) -> int:
    if step == "-" and end_allowed:
        return len(items)
    if not step.isdecimal() or int(step) >= len(items) + end_allowed:
        raise PatchError(f"no element {step!r} in a list of {len(items)}")
    return int(step)


def _added(document: Any, path: str, value: Any) -> Any:
    if not path:
        return value
    *parents, last = _steps(path)
    parent = _looked_up(document, _joined(parents))
    if isinstance(parent, list):
        parent.insert(_index(parent, last, end_allowed=True), value)
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise PatchError(f"add {path}: the parent is neither an object nor a list")
    return document


def _removed(document: Any, path: str) -> tuple[Any, Any]:
    value = _looked_up(document, path)
    *parents, last = _steps(path)
    parent = _looked_up(document, _joined(parents))
    if isinstance(parent, list):
        del parent[_index(parent, last)]
    else:
        del parent[last]
    return document, value


def _joined(steps: Sequence[str]) -> str:
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)

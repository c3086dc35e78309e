"""The difference between two JSON documents as an RFC 6902 patch, the format webhooks answer in.

Called by `controller.webhook.admission`. Pure. Lists are compared position by position: additions
to the end of a list, the only change that a conversion makes to lists, stay small patches.
"""

from typing import Any

Operation = dict[str, Any]


def difference(before: Any, after: Any, path: str = "") -> list[Operation]:
    """Return the operations that turn `before` into `after`; empty if they are equal."""
    if isinstance(before, dict) and isinstance(after, dict):
        return _objects(before, after, path)
    if isinstance(before, list) and isinstance(after, list):
        return _lists(before, after, path)
    if _same(before, after):
        return []
    return [{"op": "replace", "path": path, "value": after}]


def _objects(before: dict[str, Any], after: dict[str, Any], path: str) -> list[Operation]:
    operations = [{"op": "remove", "path": f"{path}/{_escape(key)}"} for key in before if key not in after]
    for key, value in after.items():
        child = f"{path}/{_escape(key)}"
        if key in before:
            operations.extend(difference(before[key], value, child))
        else:
            operations.append({"op": "add", "path": child, "value": value})
    return operations


def _lists(before: list[Any], after: list[Any], path: str) -> list[Operation]:
    common = min(len(before), len(after))
    operations: list[Operation] = []
    for index in range(common):
        operations.extend(difference(before[index], after[index], f"{path}/{index}"))
    operations.extend({"op": "remove", "path": f"{path}/{index}"} for index in reversed(range(common, len(before))))
    operations.extend({"op": "add", "path": f"{path}/-", "value": value} for value in after[common:])
    return operations


def _same(before: Any, after: Any) -> bool:
    """Return whether two values are equal as JSON. Python's True equals 1; JSON's does not."""
    return type(before) is type(after) and bool(before == after)


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")

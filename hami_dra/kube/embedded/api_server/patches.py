"""The kinds of patches that this project sends, as the API server applies them. Pure.

Called by the memory cluster and by code that needs to know the result of a patch. Arguments are
never changed.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any


def merge_patch(target: Any, patch: Any) -> Any:
    """Return the result of an RFC 7386 merge patch.

    Objects merge, null removes, everything else (lists too) replaces.
    """
    if not isinstance(patch, Mapping):
        return deepcopy(patch)
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def apply_patch(target: Any, body: Any) -> Any:
    """Return the result of server-side apply without field ownership.

    Objects merge, lists replace, nothing is ever removed.
    """
    if not isinstance(body, Mapping) or not isinstance(target, Mapping):
        return deepcopy(body)
    merged = dict(target)
    for key, value in body.items():
        merged[key] = apply_patch(merged.get(key), value)
    return merged

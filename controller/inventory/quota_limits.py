"""The limits for our vendors' cards that one ResourceQuota states, and what of it is not enforced.

Called by the inventory when a quota changes, and by the webhook. Pure.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from msgspec import Struct

from controller.cluster.incremental.saturation import saturated
from hami_dra.api import names
from hami_dra.api.core import ResourceQuota
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.vendors.quotas import PREFIX, QuotaName
from hami_dra.vendors.registry import QUOTA_NAMES

_PREFIXES: Final = (PREFIX, "requests.")
_MOST_COMPARED: Final = 50
"""Unknown keys of one quota for which a similar one is looked up: a tenant chooses how many there are."""
_SIMILAR: Final = 0.85
"""Least similarity of a key in a domain of no vendor to one that counts: `limits.nvida.com/gpu`."""


class Limit(Struct, frozen=True):
    """One key of one quota."""

    quota: str
    """Name of the ResourceQuota."""
    name: QuotaName
    grains: int


def is_guarantee(quota: ResourceQuota) -> bool:
    """Return whether the quota says what its namespace is owed, and limits nothing."""
    return quota.metadata.labels.get(names.QUOTA_LABEL) == names.GUARANTEE


def limits_of(quota: ResourceQuota) -> tuple[tuple[Limit, ...], str]:
    """Return the limits of a quota for our vendors' cards, or its guarantees, and the part that is not
    enforced, with the fix.
    """
    ours = [resource for resource in quota.spec.hard if resource in QUOTA_NAMES]
    if ours and (quota.spec.scopes or quota.spec.scope_selector):
        return (), (
            f"spec.scopes and spec.scopeSelector choose among pods, and cards are counted by claim: {', '.join(ours)} "
            "of this quota do not hold; move them to a quota without scopes"
        )
    found, problem = [], _unknown_key(quota.spec.hard)
    if ours and (stated := quota.metadata.labels.get(names.QUOTA_LABEL, names.GUARANTEE)) != names.GUARANTEE:
        problem = f"its label {names.QUOTA_LABEL}: {stated} means nothing, and it is a limit; for a guarantee write {names.GUARANTEE}"
    for resource in ours:
        name = QUOTA_NAMES[resource]
        try:
            hard = Quantity.parse(str(quota.spec.hard[resource]))
        except InvalidQuantity as error:
            problem = f'spec.hard["{resource}"]: {error}; it does not hold, write a whole number'
        else:
            found.append(Limit(quota.metadata.name, name, saturated(name.limit(hard))))
    return tuple(found), problem


def _unknown_key(hard: Iterable[str]) -> str:
    """Return which key limits nothing although it is about cards, and the keys there are; empty if
    none is so. A `requests.` key of a count is for kube-scheduler's pods with a device plugin.

    >>> _unknown_key(["limits.nvida.com/gpumem"])
    'spec.hard names limits.nvida.com/gpumem, which limits nothing: no vendor has that resource; write limits.nvidia.com/gpumem'
    """
    compared = iter(range(_MOST_COMPARED))
    for key in hard:
        prefix, resource = next(
            ((each, key.removeprefix(each)) for each in _PREFIXES if key.startswith(each)), ("", key)
        )
        if key in QUOTA_NAMES or "/" not in resource:
            continue
        known = sorted(each for each in QUOTA_NAMES if each.startswith(f"{PREFIX}{resource.partition('/')[0]}/"))
        same = QUOTA_NAMES.get(PREFIX + resource)
        if same is not None and (not prefix or same.capacity):
            return f"spec.hard names {key}, which limits nothing: the devices of claims are counted by limits; write {same.key}"
        if prefix == PREFIX and not known and next(compared, None) is not None:
            known = get_close_matches(key, list(QUOTA_NAMES), n=1, cutoff=_SIMILAR)
        if prefix == PREFIX and known:
            choice = "one of " if len(known) > 1 else ""
            return f"spec.hard names {key}, which limits nothing: no vendor has that resource; write {choice}{', '.join(known)}"
    return ""

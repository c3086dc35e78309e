"""What a pod says that nobody heeds: resource names that no vendor reads, and a scheduler that is not
served.

Called by the conversion. Pure. Notes never refuse a pod: a device plugin may serve the names.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from hami_dra.vendors.legacy import ContainerResources, LegacyVendor

NOT_READ: Final = frozenset(
    {"hygon.com", "cambricon.com", "iluvatar.ai", "mthreads.com", "birentech.com", "vastaitech.com", "amd.com"}
)
"""Domains of vendors that HAMi reads and no vendor of this project."""


def unread_names(
    resources: ContainerResources, vendors: Sequence[LegacyVendor], is_served: Callable[[str], bool]
) -> list[str]:
    """Return a note for each name in the domain of a vendor that nobody reads: `nvidia.com/gpu-mem`.

    `is_served`: some device plugin or DeviceClass offers a resource of this name.
    """
    by_domain: dict[str, list[str]] = {domain: [] for domain in NOT_READ}
    for vendor in vendors:
        for name in vendor.resources:
            by_domain.setdefault(name.partition("/")[0], []).append(name)
    known = {name for names in by_domain.values() for name in names}
    notes = []
    for name in dict.fromkeys([*resources.limits, *resources.requests]):
        names = by_domain.get(name.partition("/")[0])
        if names is None or name in known or is_served(name) or any(vendor.instead_of(name) for vendor in vendors):
            continue
        notes.append(
            f"{resources.field(name)} is a name that hami-dra does not read: {_instead(name, names)}; as it is, the pod waits "
            "for a device plugin that offers it"
        )
    return notes


def _instead(name: str, names: Iterable[str]) -> str:
    listed = list(names)
    bare = {each.partition("/")[2].lower(): each for each in listed}
    near = difflib.get_close_matches(name.partition("/")[2].lower(), bare, n=1)
    if near:
        return f"did you mean {bare[near[0]]}?"
    return f"it reads {', '.join(listed)}" if listed else "it has no vendor for these cards"


def unserved_scheduler(scheduler: str, served: Sequence[str]) -> str:
    """Return a note about a pod whose scheduler hami-dra does not serve; empty if it does."""
    if not served or scheduler in served:
        return ""
    return (
        f"spec.schedulerName is {scheduler}, and hami-dra places pods of {', '.join(served)} only: remove the line, or run a "
        f"kube-scheduler profile of that name and serve it (--scheduler-name {scheduler})"
    )

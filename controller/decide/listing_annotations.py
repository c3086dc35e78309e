"""The annotations of a pod that allow it only some devices: use and nouse lists, modes. Pure."""

from collections.abc import Iterable

from controller.scoring.policies import Stated
from hami_dra.vendors.preferences import InvalidPreference
from hami_dra.vendors.registry import VENDORS


def listing_annotations(stated: Iterable[Stated], request: str) -> list[tuple[str, str]]:
    """Return (annotation, value) of those that count for a request. `request`: as in results."""
    found: dict[str, str] = {}
    for each in stated:
        if each.request in {"", request} and _lists_devices(each):
            found[each.annotation] = each.value
    return list(found.items())


def _lists_devices(stated: Stated) -> bool:
    for vendor in VENDORS:
        if stated.annotation in vendor.annotations:
            try:
                return bool(vendor.preferences({stated.annotation: stated.value}).lists)
            except InvalidPreference:
                return False
    return False

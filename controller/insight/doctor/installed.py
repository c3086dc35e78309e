"""Presence of an installation, judged by its admission objects and its lease. Read by the
checks.
"""

from typing import Any

from controller.insight.doctor.model import Live, Raw, State
from hami_dra.api import names


def is_out(state: State) -> bool:
    """Return whether nothing is installed: no lease, no policy, no webhook. False if unknown."""
    live = state.live
    if live is None or not live.lease_known or live.lease is not None or live.admission is None:
        return False
    return not any(_is_ours(each) for objects in live.admission.values() for each in objects)


def named(live: Live, kind: str, name: str) -> Raw | None:
    """Return an admission object by kind and name."""
    objects = (live.admission or {}).get(kind, ())
    return next((each for each in objects if each.get("metadata", {}).get("name") == name), None)


def _is_ours(raw: Raw) -> bool:
    labels: dict[str, Any] = raw.get("metadata", {}).get("labels") or {}
    return names.MANAGED_BY in (labels.get(names.MANAGED_BY_LABEL), labels.get(names.PART_OF_LABEL))

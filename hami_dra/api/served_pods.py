"""Which pods hami-dra places, by what they say themselves: one rule for the webhook, the
controller, simulations and all commands. Pure.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from hami_dra.api import names

SCHEDULING_ANNOTATIONS: Final = names.annotations_read(names.Read.PLACES)
"""Any of these on a pod with claims makes hami-dra place it, as does the label `hami.io/dra: "true"`."""


def asks_for_hami_dra(labels: Mapping[str, Any], annotations: Mapping[str, Any]) -> bool:
    """Return whether a pod with these marks and with claims is one that hami-dra is to place."""
    return labels.get(names.DRA_LABEL) == "true" or any(name in annotations for name in SCHEDULING_ANNOTATIONS)


def unserved_scheduler(scheduler: str, served: Collection[str]) -> str:
    """Return why hami-dra does not place the pods of a scheduler, and the fix; empty if it does.

    >>> unserved_scheduler("default-scheduler", ["default-scheduler"])
    ''
    """
    return "" if scheduler in served else ": ".join(unserved_parts(scheduler, served))


def unserved_parts(scheduler: str, served: Collection[str]) -> tuple[str, str]:
    """Return why hami-dra does not place the pods of a scheduler that it does not serve, and the fix."""
    return (
        f"spec.schedulerName is {scheduler}, and hami-dra places pods of {', '.join(sorted(served))} only",
        f"remove the line, or run a kube-scheduler profile of that name and serve it (--scheduler-name {scheduler})",
    )

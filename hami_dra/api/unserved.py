"""Why hami-dra does not place a pod, whatever it requests: one rule for the webhook, the controller,
simulations, the dashboard and all commands. Pure.
"""

from collections.abc import Collection


def unserved_scheduler(scheduler: str, served: Collection[str]) -> str:
    """Return why hami-dra does not place the pods of a scheduler, and the fix; empty if it does.

    >>> unserved_scheduler("default-scheduler", ["default-scheduler"])
    ''
    """
    if scheduler in served:
        return ""
    return (
        f"spec.schedulerName is {scheduler}, and hami-dra places pods of {', '.join(sorted(served))} only: remove the line, or "
        f"run a kube-scheduler profile of that name and serve it (--scheduler-name {scheduler})"
    )

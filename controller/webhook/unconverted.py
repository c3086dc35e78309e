"""Pods that request vendor resources by their legacy names and reached the cluster unconverted.

Called by the controller for pods that kube-scheduler finds unschedulable; the controller reports
the message as an event. Pure.
"""

from collections.abc import Collection

from controller.webhook.convert import IGNORE, UNCONVERTED
from hami_dra.api import names
from hami_dra.api.core import Pod
from hami_dra.api.podstate import is_unschedulable
from hami_dra.vendors.registry import LEGACY_VENDORS


def bypassed(pod: Pod, *, native: bool, offered: Collection[str]) -> tuple[str, str] | None:
    """Return why a pod waits for vendor resources that no node offers, and what to do about it, or None.

    `offered`: extended resources in the `status.allocatable` of some node. A pod that waits for one
    of these waits for a device plugin, and a pod that opted out of the webhook did so on purpose.
    In `native` mode kube-scheduler serves plain counts through DeviceClasses.
    """
    if pod.spec.node_name or pod.metadata.labels.get(names.WEBHOOK_LABEL) == IGNORE or not is_unschedulable(pod):
        return None
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        asked = {*container.resources.limits, *container.resources.requests}
        for vendor in LEGACY_VENDORS:
            waiting = [name for name in vendor.resources if name in asked and name not in offered]
            if native:
                waiting = [name for name in waiting if name not in vendor.plugin_resources]
            if waiting and asked.isdisjoint(name for name in vendor.plugin_resources if name in offered):
                problem = (
                    f'container "{container.name}" asks for {", ".join(waiting)}, but the pod did not pass hami-dra\'s webhook '
                    "when it was created: it has no claim, and no device plugin serves it"
                )
                return problem, _fix(pod.metadata.namespace)
    return None


def unconverted_namespace(namespace: str) -> str:
    """Return what to do about a pod that asks for cards in a namespace that the webhook does not cover."""
    where = "move it to another one" if namespace in UNCONVERTED else f"run: {_cover(namespace)}"
    return (
        f"it asks for devices by resource names, and the webhook converts no pods of namespace {namespace}: {where}, or convert "
        "the manifest (hami-dra convert -f FILE)"
    )


def _fix(namespace: str) -> str:
    """Return what to do about a pod that is there already."""
    if namespace in UNCONVERTED:
        where = f"No pod of namespace {namespace} is converted: move it to another one"
    else:
        where = (
            f"Have the webhook cover the namespace ({_cover(namespace)}) and check that it runs (hami-dra doctor). Delete the pod "
            "and create it again"
        )
    return f"{where}, or convert the manifest (hami-dra convert -f FILE)"


def _cover(namespace: str) -> str:
    return f"kubectl label namespace {namespace} {names.WEBHOOK_LABEL}=enabled --overwrite"

"""Workloads and their pod templates: where each kind has its template, and notices about both.

Called by `convert`, by simulations and by the webhook. In: an object as JSON. Pure.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from controller.webhook.convert import IGNORE, ConversionRefused, Options, asks_for_cards, convert_pod
from controller.webhook.notices import MOST, Served, misplaced_keys, pod_notices, unread_keys
from controller.webhook.raw_pod import Malformed, Raw, object_in
from controller.webhook.unconverted import unconverted_namespace
from hami_dra.api import kinds, names

_TEMPLATE: Final = ("spec", "template")
POD_TEMPLATES: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("apps", "Deployment"): _TEMPLATE,
    ("apps", "ReplicaSet"): _TEMPLATE,
    ("apps", "StatefulSet"): _TEMPLATE,
    ("apps", "DaemonSet"): _TEMPLATE,
    ("batch", "Job"): _TEMPLATE,
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
    ("", "ReplicationController"): _TEMPLATE,
    ("", "PodTemplate"): ("template",),
}
"""Path of the pod template, by API group and kind."""


def group_and_kind(raw: Mapping[str, Any]) -> tuple[str, str]:
    return str(raw.get("apiVersion", "")).rpartition("/")[0], str(raw.get("kind"))


def is_pod(raw: Mapping[str, Any]) -> bool:
    return group_and_kind(raw) == (kinds.POD.group, kinds.POD.name)


def pod_template(raw: Raw) -> Raw:
    """Return the pod template of a workload; empty if the object has none."""
    found: Any = raw
    path = POD_TEMPLATES.get(group_and_kind(raw), ())
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return found if path and isinstance(found, dict) else {}


def metadata_notices(raw: Raw) -> tuple[str, ...]:
    """Return sentences about keys of a workload that belong on its pods, or that nothing reads."""
    template = pod_template(raw)
    if not template:
        return ()
    path = ".".join(POD_TEMPLATES[group_and_kind(raw)])
    try:
        metadata = object_in(raw, "metadata", "")
        found = [*misplaced_keys(metadata, template, str(raw.get("kind")), path), *unread_keys(metadata)]
    except Malformed:
        return ()
    return tuple(islice(dict.fromkeys(found), MOST))


def object_notices(raw: Raw, served: Served) -> tuple[str, ...]:
    """Return sentences about a stored pod or workload; none if it opted out, or is of another kind."""
    template = raw if is_pod(raw) else pod_template(raw)
    try:
        if object_in(object_in(template, "metadata", ""), "labels", "metadata.").get(names.WEBHOOK_LABEL) == IGNORE:
            return ()
        spec = object_in(template, "spec", "")
        if is_pod(raw):
            spec = {field: value for field, value in spec.items() if field != "nodeName"}  # set by its scheduler
        found = pod_notices({**template, "spec": spec}, served, is_ours=False)
    except Malformed:
        return ()
    return (*found, *metadata_notices(raw))


def unconverted_notices(raw: Raw, namespace: str, options: Options) -> tuple[str, ...]:
    """Return what to do about an object that asks for cards where the webhook sees no pods."""
    template = raw if is_pod(raw) else pod_template(raw)
    return (unconverted_namespace(namespace),) if asks_for_cards(template, options.is_served) else ()


def workload_notices(raw: Raw, namespace: str, options: Options) -> tuple[str, ...]:
    """Return sentences about a pod, or a workload and its pods; refusals first, else few would see them."""
    alone = is_pod(raw)
    template = raw if alone else pod_template(raw)
    refused: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    try:
        said = convert_pod(template, namespace, options).warnings
    except ConversionRefused as error:
        refused = error.problems
    will = "its pods will be refused: " if asks_for_cards(template, options.is_served) else "its pods: "
    prefix = "" if alone else will
    return tuple(islice([*(prefix + each for each in refused), *said, *metadata_notices(raw)], MOST))

"""What a pod says that has no effect, or not the one its author expects: one rule for the webhook,
`convert`, `simulate` and `doctor`.

Called by the conversion, and for objects that are not converted by `controller.webhook.workloads`.
In: a pod or a pod template as JSON. Out: sentences with the fix. Pure. Notices never refuse a pod:
other software may read the same keys, and a device plugin may serve the same names.
"""

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from msgspec import Struct

from controller.cluster.pods.gang_key import OPTIONAL_SOURCES, gang_of, size_problem, stated_size
from controller.scoring import invalid_values
from controller.webhook.raw_pod import Raw, containers_of, object_in, objects_in
from hami_dra.api import names
from hami_dra.api.core import Pod, PodSchedulingGroup, PodSpec
from hami_dra.api.meta import ObjectMeta
from hami_dra.api.served_pods import unserved_scheduler
from hami_dra.vendors.annotations import TENANT_ANNOTATIONS, USER_ANNOTATIONS
from hami_dra.vendors.legacy import ContainerResources
from hami_dra.vendors.registry import LEGACY_VENDORS

MOST: Final = 10
"""Notices about one object; an API server passes on 4096 characters of warnings."""
_MOST_COMPARED: Final = 50
"""Unknown keys of one object for which a similar one is looked up, because a tenant chooses how many there are."""
_SIMILAR: Final = 0.6
"""Least similarity of two names in one domain, from 0 to 1 (`difflib.SequenceMatcher.ratio`)."""
_ALIKE: Final = 0.8
"""The same for names in different domains: `hami.io/use-gputype` for `nvidia.com/use-gputype`."""

NOT_READ: Final = frozenset(
    {"hygon.com", "cambricon.com", "iluvatar.ai", "mthreads.com", "birentech.com", "vastaitech.com", "amd.com"}
)
"""Domains of vendors that HAMi reads and no vendor of this project."""
RESOURCE_DOMAINS: Final = frozenset(name.partition("/")[0] for vendor in LEGACY_VENDORS for name in vendor.resources)
_NAMES_READ: Final = {
    domain: [name for vendor in LEGACY_VENDORS for name in vendor.resources if name.partition("/")[0] == domain]
    for domain in NOT_READ | RESOURCE_DOMAINS
}
"""Domain of extended resources → those of them that are converted."""
KEY_DOMAINS: Final = frozenset(name.partition("/")[0] for name in USER_ANNOTATIONS) | RESOURCE_DOMAINS
"""Domains of annotations that are checked."""
_OWN_KEYS: Final = frozenset(name for name in TENANT_ANNOTATIONS if name.partition("/")[0] in KEY_DOMAINS)
USER_LABELS: Final = (names.DRA_LABEL, names.WEBHOOK_LABEL)
"""Labels that people write on pods."""
_OWN_LABELS: Final = frozenset(
    {*USER_LABELS, names.FLEET_LABEL, names.PROBE_LABEL, names.TEMPLATE_HASH_LABEL, names.DAEMONSET_LABEL}
)


class Served(Struct, frozen=True):
    """What the notices must know of the installation."""

    schedulers: Sequence[str] = ()
    """Schedulers whose pods hami-dra places; empty: not known, and no notice about others."""
    resource: Callable[[str], bool] = lambda _name: False
    """Whether a device plugin or a DeviceClass offers an extended resource of this name."""
    gang_sources: Collection[str] | None = None
    """Optional kinds of gangs that the controller reads; None: not known, and no notice about others."""


def pod_notices(pod: Raw, served: Served, *, is_ours: bool) -> list[str]:
    """Return at most `MOST` sentences. `is_ours`: hami-dra is to place the pod. Raises Malformed."""
    spec, metadata = object_in(pod, "spec", ""), object_in(pod, "metadata", "")
    found = chain(
        _scheduling(spec, served.schedulers, is_ours=is_ours),
        _gang(metadata, spec, served.gang_sources, is_ours=is_ours),
        unusable_values(metadata),
        _deprecated_values(metadata),
        unread_keys(metadata),
        _unused_claims(spec),
        _unread_resources(spec, served),
    )
    return list(islice(found, MOST))


def unusable_values(metadata: Raw) -> list[str]:
    """Return a sentence for each annotation whose value hami-dra cannot use: the pod would wait."""
    return invalid_values(_texts(metadata, "annotations"))


def _deprecated_values(metadata: Raw) -> Iterator[str]:
    value = _texts(metadata, "annotations").get(names.NODE_POLICY, "")
    if (renamed := names.RENAMED_NODE_POLICIES.get(value)) is not None:
        yield f"annotation {names.NODE_POLICY}: {value!r} is deprecated and means {renamed}; write {renamed}"


def unread_keys(metadata: Raw) -> Iterator[str]:
    """Yield a sentence for each annotation and label in a domain of hami-dra that it does not read.

    In the domain of a vendor only those that look like one that hami-dra reads: the vendor's own
    software reads others.
    """
    left = iter(range(_MOST_COMPARED))
    for key in _keys(metadata, "annotations"):
        domain = key.partition("/")[0]
        if key in _OWN_KEYS or domain not in KEY_DOMAINS:
            continue
        if key in USER_LABELS:
            yield f"annotation {key} has no effect: hami-dra reads it as a label; move it to metadata.labels"
        elif next(left, None) is not None:
            near = nearest(key, sorted(USER_ANNOTATIONS))
            if near or domain == names.DOMAIN:
                listed = ", ".join(name for name in sorted(USER_ANNOTATIONS) if name.startswith(f"{names.DOMAIN}/"))
                hint = f"did you mean {near}?" if near else f"it reads {listed}"
                yield f"annotation {key} has no effect, because hami-dra does not read it: {hint}"
    for key in _keys(metadata, "labels"):
        if key in USER_ANNOTATIONS:
            yield f"label {key} has no effect: hami-dra reads it as an annotation; move it to metadata.annotations"
        elif key.startswith(f"{names.DOMAIN}/") and key not in _OWN_LABELS and next(left, None) is not None:
            near = nearest(key, USER_LABELS)
            hint = f"did you mean {near}?" if near else f"it reads {', '.join(USER_LABELS)}"
            yield f"label {key} has no effect, because hami-dra does not read it: {hint}"


def _texts(metadata: Raw, field: str) -> dict[str, str]:
    return {
        key: value
        for key, value in object_in(metadata, field, "metadata.").items()
        if isinstance(key, str) and isinstance(value, str)
    }


def _keys(metadata: Raw, field: str) -> list[str]:
    """Return the keys of annotations or labels; in files they may be anything that YAML has."""
    return [key for key in object_in(metadata, field, "metadata.") if isinstance(key, str)]


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the most similar of the known names, preferably of the same domain; empty if none is.

    >>> nearest("hami.io/gpu-scheduling-policy", ["hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"])
    'hami.io/gpu-scheduler-policy'
    >>> nearest("nvidia.com/mig.config", ["nvidia.com/use-gputype"])
    ''
    """
    domain, _, bare = name.lower().partition("/")
    by_bare: dict[str, str] = {}
    for each in sorted(known, key=lambda each: not each.lower().startswith(f"{domain}/")):
        by_bare.setdefault(each.partition("/")[2].lower(), each)
    same_domain = [key for key, each in by_bare.items() if each.lower().startswith(f"{domain}/")]
    for candidates, least in ((same_domain, _SIMILAR), (list(by_bare), _ALIKE)):
        if found := difflib.get_close_matches(bare, candidates, n=1, cutoff=least):
            return by_bare[found[0]]
    return ""


def _scheduling(spec: Raw, schedulers: Sequence[str], *, is_ours: bool) -> Iterator[str]:
    scheduler = str(spec.get("schedulerName") or "default-scheduler")
    if is_ours and schedulers and (note := unserved_scheduler(scheduler, schedulers)):
        yield note
    node = spec.get("nodeName")
    if node and objects_in(spec, "resourceClaims", "spec."):
        yield (
            f"spec.nodeName is {node}, so kube-scheduler does not check whether the pod fits there: write "
            f"nodeSelector: {{{names.HOSTNAME_LABEL}: {node}}} instead"
        )


def _gang(metadata: Raw, spec: Raw, sources: Collection[str] | None, *, is_ours: bool) -> Iterator[str]:
    """Yield a sentence if the pod is placed alone although it states a group, or states a size that is none."""
    if not (is_ours or spec.get("resourceClaims")):
        return
    group = object_in(spec, "schedulingGroup", "spec.").get("podGroupName")
    pod = Pod(
        metadata=ObjectMeta(labels=_texts(metadata, "labels"), annotations=_texts(metadata, "annotations")),
        spec=PodSpec(scheduling_group=PodSchedulingGroup(pod_group_name=str(group)) if group else None),
    )
    key = gang_of(pod, OPTIONAL_SOURCES)
    if key is None:
        return
    if key.source in OPTIONAL_SOURCES and key.source not in (sources or ()):
        if sources is not None:
            yield f"{_STATED_BY[key.source]} is read only with --gangs-of={key.source}; the pod is placed alone"
    elif (size := stated_size(key.source, pod)) is not None and (problem := size_problem(*size)):
        yield f"it {problem}"


_STATED_BY: Final = {
    "leaderworkerset": f"label {names.LEADER_WORKER_GROUP}",
    "volcano": f"annotation {names.VOLCANO_GROUP}",
}


def _unused_claims(spec: Raw) -> Iterator[str]:
    used = {
        entry.get("name")
        for container in containers_of(spec)
        for entry in objects_in(object_in(container.raw, "resources", ""), "claims", "")
        if isinstance(entry.get("name"), str)
    }
    for entry in objects_in(spec, "resourceClaims", "spec."):
        name = entry.get("name")
        if isinstance(name, str) and name not in used:
            yield (
                f"spec.resourceClaims[{name}] is used by no container: its devices are allocated, and no container sees them; "
                f"add resources.claims: [{{name: {name}}}] to a container, or remove the claim"
            )


def _unread_resources(spec: Raw, served: Served) -> Iterator[str]:
    for container in containers_of(spec):
        for note in unread_names(container.resources, served):
            yield f"{container.where}: {note}"


def unread_names(resources: ContainerResources, served: Served) -> Iterator[str]:
    """Yield a sentence for each name in the domain of a vendor that nothing reads: `nvidia.com/gpu-mem`."""
    for name in dict.fromkeys([*resources.limits, *resources.requests]):
        known = _NAMES_READ.get(name.partition("/")[0])
        if known is not None and name not in known and not served.resource(name):
            yield (
                f"{resources.field(name)} is a name that hami-dra does not read, so the pod waits for a device plugin that "
                f"offers it: {_instead(name, known)}"
            )


def _instead(name: str, known: Sequence[str]) -> str:
    if hint := next(filter(None, (vendor.instead_of(name) for vendor in LEGACY_VENDORS)), ""):
        return f"write {hint}"
    if near := nearest(name, known):
        return f"did you mean {near}?"
    return f"it reads {', '.join(known)}" if known else "it has no vendor for these devices"


def misplaced_keys(metadata: Raw, template: Mapping[str, Any], kind: str, path: str) -> Iterator[str]:
    """Yield a sentence for each key on a workload that belongs on its pods. `path`: of its pod template."""
    inner = object_in(dict(template), "metadata", f"{path}.")
    for field, known in (("annotations", USER_ANNOTATIONS), ("labels", frozenset(USER_LABELS))):
        there = object_in(inner, field, f"{path}.metadata.")
        for key in object_in(metadata, field, "metadata."):
            if key in known and key not in there:
                yield (
                    f"{field[:-1]} {key} is set on the {kind}, and hami-dra reads it on pods: move it to {path}.metadata.{field}"
                )

"""Expands JobSets and LeaderWorkerSets, and finds the groups that Workloads declare. Pure.

Sources: sigs.k8s.io/jobset api/jobset/v1alpha2 (0.12), sigs.k8s.io/lws
api/leaderworkerset/v1 (0.9), k8s.io/api scheduling/v1beta1 (1.37).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from controller.insight.manifests import BadManifest, Item, Raw, describe, read
from hami_dra.api import kinds, names

MOST_PODS: Final = 100_000
"""Limit for one workload; a larger number is a typing error that would only cost memory."""
_LWS: Final = "leaderworkerset.sigs.k8s.io"
_JOB_SET: Final = "jobset.sigs.k8s.io"


def jobs_of(item: Item) -> list[Item]:
    """Return the Jobs of a JobSet, named `<set>-<replicated job>-<index>`. Raises BadManifest."""
    meta = item.object.metadata
    jobs = []
    for replicated in _list(item, "spec.replicatedJobs"):
        name, template = replicated.get("name", ""), replicated.get("template") or {}
        labels = {f"{_JOB_SET}/jobset-name": meta.name, f"{_JOB_SET}/replicatedjob-name": name}
        for index in range(pod_count(item, replicated.get("replicas", 1), f"replicas of {name}")):
            own = {**template.get("metadata", {}), "name": f"{meta.name}-{name}-{index}", "namespace": meta.namespace}
            spec = {**template.get("spec", {})}
            if isinstance(spec.get("template"), Mapping):
                spec["template"] = _with(spec["template"], {**labels, f"{_JOB_SET}/job-index": str(index)}, {})
            raw = {"apiVersion": kinds.JOB.api_version, "kind": kinds.JOB.name, "metadata": own, "spec": spec}
            jobs.append(read(item.source, kinds.JOB, raw, (describe(item.kind, item.raw), "spec.replicatedJobs")))
    return jobs


def leaders_and_workers(item: Item) -> Iterator[tuple[str, Raw]]:
    """Yield names and templates: `<set>-<group>` leads, `<set>-<group>-<n>` work. Raises BadManifest."""
    name, spec = item.object.metadata.name, item.raw.get("spec") or {}
    of_group = spec.get("leaderWorkerTemplate") or {}
    workers = of_group.get("workerTemplate") or {}
    if not workers:
        what = describe(item.kind, item.raw)
        raise BadManifest(f"{item.source}: {what}: spec.leaderWorkerTemplate.workerTemplate is missing")
    size = pod_count(item, of_group.get("size", 1), "spec.leaderWorkerTemplate.size")
    for group in range(pod_count(item, spec.get("replicas", 1), "spec.replicas")):
        annotations = {names.LEADER_WORKER_SIZE: str(size)}
        labels = {
            f"{_LWS}/name": name,
            f"{_LWS}/group-index": str(group),
            names.LEADER_WORKER_GROUP: f"{name}-{group}",
        }
        for index in range(size):
            template = (of_group.get("leaderTemplate") or workers) if index == 0 else workers
            suffix = f"-{index}" if index else ""
            labels = {**labels, f"{_LWS}/worker-index": str(index)}
            yield f"{name}-{group}{suffix}", _with(template, labels, annotations)


class DeclaredGroups:
    """The PodGroups that controllers make of Workloads: one for each template.

    `groups`: the PodGroups that the input lacks. A Workload with several templates does not say
    which pods are of which, so its pods must say it themselves; `notes` name it.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self.groups: list[Item] = []
        self.notes: list[str] = []
        self._by_owner: dict[tuple[str, str, str], str] = {}
        there = {item.key for item in items if item.kind is kinds.POD_GROUP}
        for item in items:
            if item.kind is kinds.WORKLOAD:
                self._add(item, there)

    def of(self, item: Item) -> str:
        """Return the name of the group of the workload's pods, or empty."""
        meta = item.object.metadata
        return self._by_owner.get((item.kind.name, meta.namespace, meta.name), "")

    def _add(self, item: Item, there: set[str]) -> None:
        meta, spec = item.object.metadata, item.raw.get("spec") or {}
        templates = _list(item, "spec.podGroupTemplates")
        for template in templates:
            name = f"{meta.name}-{template.get('name', '')}"
            own = {key: value for key, value in template.items() if key != "name"}
            raw = {"metadata": {"name": name, "namespace": meta.namespace}, "spec": own}
            inside = (describe(item.kind, item.raw), "spec.podGroupTemplates")
            if f"{meta.namespace}/{name}" not in there:
                self.groups.append(read(item.source, kinds.POD_GROUP, raw, inside))
        owner = spec.get("controllerRef") or {}
        if len(templates) == 1:
            key = (str(owner.get("kind")), meta.namespace, str(owner.get("name")))
            self._by_owner[key] = f"{meta.name}-{templates[0].get('name', '')}"
        else:
            self.notes.append(
                f"{item.source}: {describe(item.kind, item.raw)} has {len(templates)} podGroupTemplates: "
                "only pods with spec.schedulingGroup are members"
            )


def _with(template: Mapping[str, Any], labels: Mapping[str, str], annotations: Mapping[str, str]) -> Raw:
    metadata = template.get("metadata") or {}
    return {
        **template,
        "metadata": {
            **metadata,
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": {**(metadata.get("annotations") or {}), **annotations},
        },
    }


def _list(item: Item, path: str) -> list[Raw]:
    """Return a list of objects at a path of the raw object. Raises BadManifest."""
    found: Any = item.raw
    for part in path.split("."):
        found = found.get(part) or {} if isinstance(found, Mapping) else None
    entries: Iterable[Any] = found or []
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise BadManifest(f"{item.source}: {describe(item.kind, item.raw)}: {path} must be a list of objects")
    return [dict(entry) for entry in entries]


def pod_count(item: Item, value: Any, field: str) -> int:
    """Return a number of pods. `field`: for messages. Raises BadManifest."""
    if not isinstance(value, int) or not 0 <= value <= MOST_PODS:
        problem = f"{field} is {value}; a number from 0 to {MOST_PODS} is wanted"
        raise BadManifest(f"{item.source}: {describe(item.kind, item.raw)}: {problem}")
    return value

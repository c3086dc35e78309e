"""What is kept of an object that is too large (`hami_dra.api.weight`): identity, and what it holds.

Called by `Kind.settled` in place of sharing. Changes the object in place, like everything that is
done where objects are decoded. Afterwards it is small, whatever it was, and says in
`spec.unreadable` why it is not read, so that decisions refuse it by name:

- A pod keeps its node, its phase, its claims, the ports that it takes of a host, and the sum of its
  requests (rounded up where containers run one after another): a node is not filled twice.
- A claim keeps its devices and who may use them: no device is given twice.
- A PersistentVolumeClaim keeps its volume, and no selector.
- A PodDisruptionBudget protects all pods of its namespace.

All texts that are kept are as long as Kubernetes' own names at most. A longer one is none that an
object can have.
"""

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, TypeVar

from msgspec.structs import force_setattr

from hami_dra.api import core, names, podgroups, resource
from hami_dra.api.meta import LabelSelector, Object, ObjectMeta
from hami_dra.api.policy import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.api.storage import PersistentVolumeClaim, PersistentVolumeClaimSpec

T = TypeVar("T")

_MOST_NAME: Final = 317
"""Characters: a DNS subdomain, a slash, and a name."""
_MOST_ENTRIES: Final = 64
"""Entries of a list or map, where nothing else is said."""
_MOST_CONSUMERS: Final = 256
"""`reservedFor`: the limit of the API."""
_OF_GANG: Final = podgroups.PodGroupSchedulingPolicy(gang=podgroups.GangSchedulingPolicy())
_CONDITIONS: Final = frozenset({"PodScheduled", "Ready"})


def reduce_pod(pod: core.Pod, problem: str) -> None:
    spec, status = pod.spec, pod.status
    reduce_metadata(pod)
    group = spec.scheduling_group
    kept = core.PodSpec(
        node_name=_text(spec.node_name),
        scheduler_name=_text(spec.scheduler_name),
        priority=spec.priority,
        scheduling_gates=_short(spec.scheduling_gates),
        resource_claims=_short(spec.resource_claims),
        containers=(_one_container(pod),),
        overhead=_texts(_sum([spec.overhead])),
        scheduling_group=group if group is not None and _is_short(group) else None,
        unreadable=problem,
    )
    force_setattr(pod, "spec", kept)
    special = status.extended_resource_claim_status
    seen = core.PodStatus(
        phase=_text(status.phase),
        start_time=_text(status.start_time or "") or None,
        conditions=tuple([each for each in _short(status.conditions) if each.type in _CONDITIONS]),
        nominated_node_name=_text(status.nominated_node_name),
        resource_claim_statuses=_short(status.resource_claim_statuses),
        extended_resource_claim_status=special if special is not None and _is_short(special) else None,
    )
    force_setattr(pod, "status", seen)


def _one_container(pod: core.Pod) -> core.Container:
    """Return a container that requests what all of the pod's request together, at least."""
    spec, status = pod.spec, pod.status
    peak: dict[str, int] = {}
    stated = [*spec.containers]
    for container in spec.init_containers:
        if container.restart_policy == "Always":
            stated.append(container)
        else:
            peak = _larger(peak, _sum([_requested(container.resources)]))
    reported = [*status.container_statuses, *status.init_container_statuses]
    total = _sum(_requested(container.resources) for container in stated)
    for other in (
        _sum(each.allocated_resources or {} for each in reported),
        _sum((each.resources and each.resources.requests) or {} for each in reported),
        _sum([_requested(spec.resources)] if spec.resources is not None else []),
    ):
        total = _larger(total, other)
    requests = {name: total.get(name, 0) + peak.get(name, 0) for name in {**total, **peak}}
    taken = (port for container in spec.containers for port in container.ports if port.host_port)
    ports = [
        core.ContainerPort(host_port=port.host_port, host_ip=_text(port.host_ip), protocol=_text(port.protocol))
        for port in islice(taken, _MOST_ENTRIES)
    ]
    return core.Container(resources=core.ResourceRequirements(requests=_texts(requests)), ports=tuple(ports))


def _requested(resources: core.ResourceRequirements) -> Mapping[str, core.QuantityText]:
    return resources.limits | resources.requests if resources.limits else resources.requests


def reduce_claim(claim: resource.ResourceClaim, problem: str) -> None:
    reduce_metadata(claim)
    force_setattr(claim, "spec", resource.ResourceClaimSpec(unreadable=problem))
    allocation = claim.status.allocation
    status = resource.ResourceClaimStatus(
        allocation=None if allocation is None else _reduced_allocation(allocation),
        reserved_for=_short(claim.status.reserved_for, _MOST_CONSUMERS),
    )
    force_setattr(claim, "status", status)


def _reduced_allocation(allocation: resource.AllocationResult) -> resource.AllocationResult:
    selector = allocation.node_selector
    return resource.AllocationResult(
        devices=resource.DeviceAllocationResult(
            results=tuple(map(_reduced_result, allocation.devices.results[:_MOST_ENTRIES]))
        ),
        node_selector=selector if selector is not None and _is_short(selector) else None,
        allocation_timestamp=_text(allocation.allocation_timestamp or "") or None,
    )


def _reduced_result(result: resource.DeviceRequestAllocationResult) -> resource.DeviceRequestAllocationResult:
    """Return a result that holds the device whole if its share cannot be kept."""
    is_short = _is_short(result.consumed_capacity)
    return resource.DeviceRequestAllocationResult(
        request=_text(result.request),
        driver=_text(result.driver),
        pool=_text(result.pool),
        device=_text(result.device),
        admin_access=result.admin_access,
        share_id=_text(result.share_id or "") or None if is_short else None,
        consumed_capacity=result.consumed_capacity if is_short else {},
    )


def reduce_template(template: resource.ResourceClaimTemplate, problem: str) -> None:
    reduce_metadata(template)
    force_setattr(
        template, "spec", resource.ResourceClaimTemplateSpec(spec=resource.ResourceClaimSpec(unreadable=problem))
    )


def reduce_volume_claim(claim: PersistentVolumeClaim, problem: str) -> None:
    reduce_metadata(claim)
    spec = claim.spec
    requested = spec.resources.requests.storage
    kept = PersistentVolumeClaimSpec(
        access_modes=_short(spec.access_modes),
        resources=spec.resources if requested is None or _is_short(requested) else type(spec.resources)(),
        volume_name=_text(spec.volume_name),
        storage_class_name=None if spec.storage_class_name is None else _text(spec.storage_class_name),
        volume_mode=_text(spec.volume_mode or "") or None,
        unreadable=problem,
    )
    force_setattr(claim, "spec", kept)
    force_setattr(claim.status, "phase", _text(claim.status.phase))


def reduce_pod_group(group: podgroups.PodGroup, problem: str) -> None:
    reduce_metadata(group)
    force_setattr(
        group,
        "spec",
        podgroups.PodGroupSpec(scheduling_policy=_OF_GANG, priority=group.spec.priority, unreadable=problem),
    )


def reduce_quota(quota: core.ResourceQuota, problem: str) -> None:  # noqa: ARG001 (nothing refers to a quota)
    """A quota is the administrator's: the limits of devices stay, as many as there are names."""
    stated = quota.metadata.labels.get(names.QUOTA_LABEL)
    reduce_metadata(quota)
    if stated == names.GUARANTEE:
        force_setattr(quota.metadata, "labels", {names.QUOTA_LABEL: stated})
    hard = {name: amount for name, amount in quota.spec.hard.items() if name.startswith("limits.")}
    force_setattr(quota, "spec", core.ResourceQuotaSpec(hard=_cut(hard), scopes=_short(quota.spec.scopes)))


def reduce_other(item: core.Namespace | podgroups.MinMemberPodGroup, problem: str) -> None:  # noqa: ARG001 (has no other part)
    reduce_metadata(item)


def reduce_budget(budget: PodDisruptionBudget, problem: str) -> None:  # noqa: ARG001 (nothing says it)
    """Let it select every pod of its namespace and allow no eviction: it may be meant so."""
    reduce_metadata(budget)
    force_setattr(budget, "spec", PodDisruptionBudgetSpec(selector=LabelSelector()))
    force_setattr(budget, "status", PodDisruptionBudgetStatus())


def reduce_metadata(item: Object) -> None:
    """Keep what names the object. Its labels select nothing any more."""
    meta = item.metadata
    kept = ObjectMeta(
        name=_text(meta.name),
        generate_name=_text(meta.generate_name),
        namespace=_text(meta.namespace),
        uid=_text(meta.uid),
        resource_version=_text(meta.resource_version),
        generation=meta.generation,
        creation_timestamp=_text(meta.creation_timestamp or "") or None,
        deletion_timestamp=_text(meta.deletion_timestamp or "") or None,
        annotations=meta.annotations,
        finalizers=_short(meta.finalizers),
        owner_references=_short([each for each in meta.owner_references if each.controller]),
    )
    force_setattr(item, "metadata", kept)


# --- parts ----------------------------------------------------------------------------------------


def _text(text: str) -> str:
    return text if len(text) <= _MOST_NAME else ""


def _is_short(value: Any) -> bool:
    """Return whether no text in it is longer than a name, and no list longer than `_MOST_ENTRIES`."""
    if isinstance(value, str):
        return len(value) <= _MOST_NAME
    if isinstance(value, Mapping):
        return len(value) <= _MOST_ENTRIES and all(map(_is_short, value)) and all(map(_is_short, value.values()))
    if isinstance(value, tuple):
        return len(value) <= _MOST_ENTRIES and all(map(_is_short, value))
    return all(_is_short(getattr(value, name)) for name in getattr(value, "__struct_fields__", ()))


def _short(values: Iterable[T], most: int = _MOST_ENTRIES) -> tuple[T, ...]:
    return tuple(islice((each for each in values if _is_short(each)), most))


def _cut(values: Mapping[str, Any]) -> dict[str, Any]:
    entries = ((key, value) for key, value in values.items() if _is_short(key) and _is_short(value))
    return dict(islice(entries, _MOST_ENTRIES))


def _sum(lists: Iterable[Mapping[str, core.QuantityText]]) -> dict[str, int]:
    """Return the sums of amounts, in nanos: of cpu, memory and the like, and of the names with a
    domain (`example.com/x`), which anybody can make up, the first ones.
    """
    total: dict[str, int] = {}
    for amounts in lists:
        for name, text in amounts.items():
            try:
                nanos = Quantity.parse(text).nanos
            except InvalidQuantity:
                continue
            if nanos > 0 and len(name) <= _MOST_NAME:
                total[name] = total.get(name, 0) + nanos
    names = nsmallest(_MOST_ENTRIES, total, key=lambda name: ("/" in name, name))
    return {name: total[name] for name in names}


def _larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def _texts(amounts: Mapping[str, int]) -> dict[str, core.QuantityText]:
    return {name: str(Quantity.from_nanos(nanos)) for name, nanos in amounts.items()}

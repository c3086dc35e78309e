"""What a bound pod counts on its node while kubelet resizes it in place: the largest of what its
spec wants, what kubelet has allocated, and what is in force (k8s.io/component-helpers/resource,
PodRequests with UseStatusResources). Where kubelet calls the resize infeasible, the spec does not
count. Pure.

Kubernetes 1.36 compares container by container, 1.37 the sums over the containers:

    containers a and b   spec 1 and 2 CPU   allocated 2 and 1 CPU
    1.36  max(1, 2) + max(2, 1) = 4         1.37  max(1 + 2, 2 + 1) = 3
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from controller.cluster.incremental.saturation import saturated
from controller.cluster.pod_resources import (
    Amounts,
    amounts,
    container_requests,
    is_settable_on_pods,
    over_containers,
    pod_requests,
)
from hami_dra.api.core import Container, ContainerStatus, Pod, QuantityText

RESIZES_BY_SUMS: Final = (1, 37)
"""Since this version of Kubernetes sums are compared."""
_NOTHING: Final[Mapping[str, QuantityText]] = {}
_Requests = Callable[[Container], Amounts]


def counted_requests(pod: Pod, *, by_sums: bool) -> Amounts:
    """Return what the pod counts on its node. `by_sums`: as in 1.37, else as in 1.36."""
    status = pod.status
    if not (
        status.container_statuses
        or status.init_container_statuses
        or status.resources
        or status.allocated_resources
        or _is_infeasible(pod)
    ):
        return pod_requests(pod)
    total = _by_sums(pod) if by_sums else _by_container(pod)
    _set_pod_level(total, pod, by_sums=by_sums)
    if pod.spec.overhead:
        total.update(amounts(pod.spec.overhead))
    total = Counter({name: saturated(wanted) for name, wanted in total.items()})
    total["pods"] = 1
    return total


def resize_state(pod: Pod) -> object:
    """Return what decides, besides the spec, about the requests that count; equal if nothing changed."""
    status = pod.status
    return (
        status.container_statuses,
        status.init_container_statuses,
        status.allocated_resources,
        status.resources,
        _is_infeasible(pod),
    )


def _by_sums(pod: Pod) -> Amounts:
    status, statuses, infeasible = pod.status, _statuses(pod), _is_infeasible(pod)

    def allocated(container: Container) -> Amounts:
        found = statuses.get(container.name)
        if found is not None and found.allocated_resources is not None:
            return amounts(found.allocated_resources)
        return Counter() if infeasible else container_requests(container)

    def in_force(container: Container) -> Amounts:
        found = statuses.get(container.name)
        if found is not None and found.resources is not None and found.resources.requests is not None:
            return amounts(found.resources.requests)
        return allocated(container)

    pod_level = status.resources.requests if status.resources is not None else None
    if status.allocated_resources is not None and pod_level is not None:
        known = [amounts(status.allocated_resources), amounts(pod_level)]
    else:
        known = [over_containers(pod.spec, allocated), over_containers(pod.spec, in_force)]
    return _largest(known if infeasible else [*known, over_containers(pod.spec, container_requests)])


def _by_container(pod: Pod) -> Amounts:
    statuses, infeasible = _statuses(pod), _is_infeasible(pod)
    plain_init = {each.name for each in pod.spec.init_containers if each.restart_policy != "Always"}

    def effective(container: Container) -> Amounts:
        found = statuses.get(container.name)
        wanted = container_requests(container)
        if found is None or found.resources is None or container.name in plain_init:
            return wanted
        known = [amounts(found.resources.requests or _NOTHING), amounts(found.allocated_resources or _NOTHING)]
        return _largest(known if infeasible else [*known, wanted])

    return over_containers(pod.spec, effective)


def _set_pod_level(total: Amounts, pod: Pod, *, by_sums: bool) -> None:
    """Let pod-level requests replace what the containers want."""
    level, status = pod.spec.resources, pod.status
    if level is None or not any(map(is_settable_on_pods, level.requests)):
        return
    wanted = amounts(level.requests)
    effective = wanted
    if status.resources is not None:
        known = [amounts(status.resources.requests or _NOTHING), amounts(status.allocated_resources or _NOTHING)]
        effective = _largest(known if _is_infeasible(pod) else [*known, wanted])
    for name in effective if by_sums else wanted:
        if is_settable_on_pods(name):
            total[name] = effective[name]


def _largest(parts: Iterable[Amounts]) -> Amounts:
    total: Amounts = Counter()
    for each in parts:
        total |= each
    return total


def _statuses(pod: Pod) -> dict[str, ContainerStatus]:
    status = pod.status
    return {each.name: each for each in (*status.init_container_statuses, *status.container_statuses)}


def _is_infeasible(pod: Pod) -> bool:
    return any(each.type == "PodResizePending" and each.reason == "Infeasible" for each in pod.status.conditions)

"""Resource requests of a pod, as kube-scheduler computes them (k8s.io/component-helpers/resource,
PodRequests). Pure.

Amounts are integers (millicores for `cpu`, `Value()` for everything else; `pods` is always 1),
saturated individually and in total.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from controller.cluster.incremental.saturation import MOST, saturated
from hami_dra.api.core import Container, Pod, PodSpec, QuantityText
from hami_dra.api.quantity import Quantity
from hami_dra.api.short_texts import cached_if_short

Amounts = Counter[str]


def amount(resource: str, text: QuantityText) -> int:
    """Return the amount, 0 if it is no quantity: the API server admits none, files may contain one.

    >>> amount("cpu", "1500m"), amount("memory", "1Ki"), amount("memory", "much")
    (1500, 1024, 0)
    """
    return _amount_of((resource, text))


@cached_if_short(4_096)
def _amount_of(request: tuple[str, QuantityText]) -> int:
    resource, text = request
    quantity = Quantity.or_zero(text)
    return saturated(quantity.milli_value() if resource == "cpu" else quantity.value())


def amounts(resources: Mapping[str, QuantityText]) -> Amounts:
    found: Amounts = Counter()
    for name, text in resources.items():
        found[name] = amount(name, text)
    return found


def pod_requests(pod: Pod) -> Amounts:
    """Return the requests of a pod.

    Containers and sidecars add up; each init container needs its own requests plus those of the
    sidecars started before it; the larger of both counts. Pod-level requests replace the sum of the
    resources that may be set there. The overhead is added at the end.

        containers 2 + 1 CPU, sidecar 1, a later init container 5: max(2 + 1 + 1, 1 + 5) = 6 CPU

    For a pod that is not bound yet; for others see `resized_requests`.
    """
    total = _unbounded(pod)
    if sum(total.values()) > MOST:  # each amount is saturated, so none is negative
        return Counter({name: saturated(wanted) for name, wanted in total.items()})
    return total


def _unbounded(pod: Pod) -> Amounts:
    spec = pod.spec
    if spec.init_containers or spec.resources is not None or spec.overhead:
        total = over_containers(spec, container_requests)
        _adjust(total, spec)
    else:
        total = Counter()
        for container in spec.containers:
            _add(total, container)
    total["pods"] = 1
    return total


def over_containers(spec: PodSpec, requests_of: Callable[[Container], Amounts]) -> Amounts:
    """Return what the containers of a pod need at a time, by what each of them needs."""
    total: Amounts = Counter()
    sidecars: Amounts = Counter()
    peak: Amounts = Counter()
    for container in spec.containers:
        total.update(requests_of(container))
    for container in spec.init_containers:
        requests = requests_of(container)
        if container.restart_policy == "Always":
            total.update(requests)
            sidecars.update(requests)
            peak |= sidecars
        else:
            peak |= sidecars + requests
    total |= peak  # also drops what is not positive
    return total


def _adjust(total: Amounts, spec: PodSpec) -> None:
    """Let pod-level resources replace what the containers want, and add the overhead."""
    if spec.resources is not None:
        for name, text in spec.resources.requests.items():
            if is_settable_on_pods(name):
                total[name] = amount(name, text)
        for name, text in spec.resources.limits.items():
            # the API server fills the request in: what the containers want, or else the limit
            if is_settable_on_pods(name) and name not in spec.resources.requests and name not in total:
                total[name] = amount(name, text)
    if spec.overhead:
        total.update(amounts(spec.overhead))


def is_settable_on_pods(resource: str) -> bool:
    return resource in {"cpu", "memory"} or resource.startswith("hugepages-")


def container_requests(container: Container) -> Amounts:
    """Return the requests; a limit without a request is its request (the API server fills that in,
    files may lack it).
    """
    total: Amounts = Counter()
    _add(total, container)
    return total


def _add(total: Amounts, container: Container) -> None:
    for name, text in {**container.resources.limits, **container.resources.requests}.items():
        total[name] = total.get(name, 0) + amount(name, text)

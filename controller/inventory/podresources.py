"""What a pod asks of its node, as kube-scheduler counts it (k8s.io/component-helpers/resource, PodRequests). Pure.

Amounts are integers: millicores for `cpu`, `Value()` for everything else; `pods` is always 1.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from hami_dra.api.core import Container, Pod, QuantityText
from hami_dra.api.quantity import InvalidQuantity, Quantity

Amounts = Counter[str]
_POD_LEVEL = ("cpu", "memory")


def amount(resource: str, text: QuantityText) -> int:
    """0 for what is no quantity: the API server lets no such thing in, files may hold it."""
    try:
        quantity = Quantity.parse(str(text))
    except InvalidQuantity:
        return 0
    return quantity.milli_value() if resource == "cpu" else quantity.value()


def amounts(resources: Mapping[str, QuantityText]) -> Amounts:
    return Counter({name: amount(name, text) for name, text in resources.items()})


def pod_requests(pod: Pod) -> Amounts:
    """Containers and sidecars add up; each init container needs its own plus the sidecars started before it; the larger
    of both counts. Pod-level requests replace the sum of cpu and memory. The overhead comes on top.
    """
    spec = pod.spec
    running = _sum(_requests(container) for container in spec.containers)
    sidecars: Amounts = Counter()
    peak: Amounts = Counter()
    for container in spec.init_containers:
        requests = _requests(container)
        if container.restart_policy == "Always":
            sidecars = sidecars + requests
            peak |= sidecars
        else:
            peak |= sidecars + requests
    total = (running + sidecars) | peak
    if spec.resources is not None:
        pod_level = {**spec.resources.limits, **spec.resources.requests}
        for name in _POD_LEVEL:
            if name in pod_level:
                total[name] = amount(name, pod_level[name])
    total = total + amounts(spec.overhead)
    total["pods"] = 1
    return total


def _requests(container: Container) -> Amounts:
    """Requests; a limit without a request is its request (the API server fills that in, files may lack it)."""
    return amounts({**container.resources.limits, **container.resources.requests})


def _sum(parts: Iterable[Amounts]) -> Amounts:
    total: Amounts = Counter()
    for part in parts:
        total.update(part)
    return total

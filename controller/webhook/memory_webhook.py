"""The webhook of a memory cluster, which demo and tests use instead of a server."""

from collections.abc import Awaitable, Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from controller.webhook.admission import Admission
from hami_dra.api import kinds
from hami_dra.kube.protocol import Invalid

if TYPE_CHECKING:
    from hami_dra.kube import embedded


def memory_webhook(admission: Admission) -> "Callable[[embedded.Admission], Awaitable[dict[str, Any]]]":
    """Return a function for `MemoryCluster.admission`; for refused pods it raises `Invalid`, as an API server."""
    numbers = count()

    async def admit(request: "embedded.Admission") -> dict[str, Any]:
        if request.kind.plural != kinds.POD.plural:
            return request.object
        verdict = await admission.admit(request.object, request.namespace, unique=str(next(numbers)))
        if verdict.pod is None:
            raise Invalid(f"admission webhook denied the request: {verdict.denied}")
        return verdict.pod

    return admit

"""The containers of a pod that share one request of its claim.

Called by `controller.webhook.convert` for one vendor at a time. Pure. A pod holds its cards from
its first init container until it ends, so containers that never run at the same time use the same
cards:

- every app container and every sidecar has cards of its own (they run in parallel);
- an init container uses those of an app container, grown to the larger of the two sizes where
  needed;
- init containers of a pod whose app containers request no card of this vendor share among
  themselves.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from hami_dra.vendors.legacy import LegacyRequest


class Role(StrEnum):
    APP = "app"
    SIDECAR = "sidecar"
    """An init container with restartPolicy Always."""
    INIT = "init"


class Sharing(Struct, frozen=True):
    requests: tuple[LegacyRequest, ...]
    request_of: tuple[int, ...]
    """The index in `requests` for each container."""
    alone: tuple[int, ...]
    """Init containers that share no other's cards: a percentage and a number of bytes do not compare."""


def share(container_requests: Sequence[tuple[Role, LegacyRequest]]) -> Sharing:
    """Assign containers to requests. Requests of app containers come first.

    `container_requests`: the containers that request cards of this vendor, in pod order.
    """
    requests: list[LegacyRequest] = []
    request_of = [0] * len(container_requests)
    for role in (Role.APP, Role.SIDECAR):
        for container, (its_role, request) in enumerate(container_requests):
            if its_role is role:
                request_of[container] = len(requests)
                requests.append(request)
    sidecars = {request_of[container] for container, (role, _) in enumerate(container_requests) if role is Role.SIDECAR}
    alone = []
    for container, (role, request) in enumerate(container_requests):
        if role is not Role.INIT:
            continue
        candidates = [index for index in range(len(requests)) if index not in sidecars]
        found = _least_growth(requests, candidates, request)
        if found is not None:
            request_of[container], requests[found[0]] = found[0], found[1]
        else:
            request_of[container] = len(requests)
            requests.append(request)
            if candidates:
                alone.append(container)
    return Sharing(tuple(requests), tuple(request_of), tuple(alone))


def _least_growth(
    requests: Sequence[LegacyRequest], candidates: Sequence[int], request: LegacyRequest
) -> tuple[int, LegacyRequest] | None:
    """Return the first candidate that covers the container, else the one with the fewest cards to add."""
    best: tuple[tuple[bool, int], int, LegacyRequest] | None = None
    for index in candidates:
        joined = requests[index].joined(request)
        if joined is not None:
            growth = (joined != requests[index], joined.count - requests[index].count)
            if best is None or growth < best[0]:
                best = (growth, index, joined)
    return best and best[1:]

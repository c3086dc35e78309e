"""Which containers of a pod share one request of its claim.

Called by `controller.bridge.convert` for one vendor at a time. Pure. A pod's cards are its own from its first init
container to its last breath, so containers that never run at the same time use the same cards:

- every app container and every sidecar has cards of its own (they run side by side);
- an init container uses those of an app container, grown to the larger size of the two where needed;
- init containers of a pod whose app containers want no card of this vendor share among themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from hami_dra.vendors.legacy import CardRequest


class Role(StrEnum):
    APP = "app"
    SIDECAR = "sidecar"
    """An init container with restartPolicy Always."""
    INIT = "init"


@dataclass(frozen=True, slots=True)
class Sharing:
    requests: tuple[CardRequest, ...]
    request_of: tuple[int, ...]
    """For each container its index in `requests`."""
    alone: tuple[int, ...]
    """Init containers that could join no other container's cards: a percentage and a number of bytes do not compare."""


def share(wishes: Sequence[tuple[Role, CardRequest]]) -> Sharing:
    """`wishes`: the containers that want cards of this vendor, in pod order. Requests of app containers come first."""
    requests: list[CardRequest] = []
    request_of = [0] * len(wishes)
    for role in (Role.APP, Role.SIDECAR):
        for container, (its_role, wish) in enumerate(wishes):
            if its_role is role:
                request_of[container] = len(requests)
                requests.append(wish)
    sidecars = {request_of[container] for container, (role, _) in enumerate(wishes) if role is Role.SIDECAR}
    alone = []
    for container, (role, wish) in enumerate(wishes):
        if role is not Role.INIT:
            continue
        candidates = [index for index in range(len(requests)) if index not in sidecars]
        found = _least_growth(requests, candidates, wish)
        if found is not None:
            request_of[container], requests[found[0]] = found[0], found[1]
        else:
            request_of[container] = len(requests)
            requests.append(wish)
            if candidates:
                alone.append(container)
    return Sharing(tuple(requests), tuple(request_of), tuple(alone))


def _least_growth(
    requests: Sequence[CardRequest], candidates: Sequence[int], wish: CardRequest
) -> tuple[int, CardRequest] | None:
    """The request that covers the wish already, else the one that needs the fewest more cards; the first on ties."""
    best: tuple[tuple[bool, int], int, CardRequest] | None = None
    for index in candidates:
        joined = requests[index].joined(wish)
        if joined is not None:
            growth = (joined != requests[index], joined.count - requests[index].count)
            if best is None or growth < best[0]:
                best = (growth, index, joined)
    return best and best[1:]

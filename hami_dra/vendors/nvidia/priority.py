"""Priorities between containers that share a card: which of them wait.

Called by `usage_reader` every 5 seconds. In: what each container's region says. Out: what is to be
written into it. Pure.

- A container is active if it launched a kernel within two rounds. HAMi-core notes the time of each
  launch (`last_kernel_time`, by `pre_launch_kernel`) in every container, limited or not.
- A container waits (`recent_kernel` -1) while one of a more important priority is active on one of
  its cards. 0 is the most important; without `nvidia.com/priority` it is 1.
- Its limit of cores always holds (`utilization_switch` 1).

HAMi's monitor (HAMi cmd/vGPUmonitor/feedback.go, Observe) takes `recent_kernel` for activity, and
sets the switch to 0 for a container that is alone. What HAMi-core does with them differs by version
(`rate_limiter` in src/multiprocess/multiprocess_utilization_watcher.c), before it limits a launch:

| HAMi-core        | in this order                                                                |
|------------------|------------------------------------------------------------------------------|
| up to v2.8.0     | wait while `recent_kernel` < 0, set it to 2, return without a limit, return  |
|                  | if the switch is 0                                                           |
| v2.8.1, v2.8.2   | return without a limit, return if the switch *was* 0 when the process began, |
|                  | wait while `recent_kernel` < 0, set it to 2                                  |
| since v2.8.3     | the same, with the switch read again every 120 ms                            |

So with a switch of 0 a container neither tells that it is active nor waits, and a process of v2.8.1
that began then is never limited again. A container without a limit of cores never waits since
v2.8.1.

The priority and the cards are those of the claim, not those that the container's file names: there
every tenant could write that it comes first.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

EVERY: Final = 5.0
"""Seconds between two rounds."""
ACTIVE: Final = 2 * EVERY
"""Seconds since its last kernel for which a container is active."""
DEFAULT: Final = 1
WAITING: Final = -1
LIMITED: Final = 1


class Tenant(Struct, frozen=True, kw_only=True):
    """A container as its region and its claim describe it."""

    priority: int
    cards: frozenset[str]
    is_active: bool
    recent_kernel: int


class Orders(Struct, frozen=True):
    """What is to be in the region of a container."""

    recent_kernel: int
    utilization_switch: int = LIMITED


def orders(tenants: Mapping[str, Tenant]) -> dict[str, Orders]:
    first: dict[str, int] = {}
    for tenant in tenants.values():
        if tenant.is_active and tenant.priority >= 0:
            for card in tenant.cards:
                first[card] = min(first.get(card, tenant.priority), tenant.priority)
    return {key: _orders(tenant, first) for key, tenant in tenants.items()}


def _orders(tenant: Tenant, first: Mapping[str, int]) -> Orders:
    """Return the orders. `first`: card → the most important priority that is active there."""
    if any(first.get(card, tenant.priority) < tenant.priority for card in tenant.cards):
        return Orders(WAITING)
    return neutral(tenant.recent_kernel)


def neutral(recent_kernel: int) -> Orders:
    """Return the orders under which a container neither waits nor loses its limit."""
    return Orders(max(recent_kernel, 0))

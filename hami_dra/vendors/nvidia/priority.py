"""Priorities between containers that share a card: who waits, and whose limit of cores holds.

Called by `usage_reader` every 5 seconds. In: what each container's region says. Out: what is to be
written into it. Pure. As HAMi's monitor does (HAMi cmd/vGPUmonitor/feedback.go, Observe):

- A process that launches a kernel sets `recent_kernel` to 2, and each round takes 1 off: a
  container is active while it is above 0 after that.
- A container waits (`recent_kernel` -1) while one of a more important priority is active on one of
  its cards. 0 is the most important; without `nvidia.com/priority` it is 1.
- Its limit of cores holds (`utilization_switch` 1) while another one of its priority, or of a more
  important one, is active on one of its cards; a container that is alone may use all cores.

The priority and the cards are those of the claim, not those that the container's file names: there
every tenant could write that it comes first.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

EVERY: Final = 5.0
"""Seconds between two rounds."""
DEFAULT: Final = 1
WAITING: Final = -1
_RECENT: Final = 2
"""What HAMi-core writes; more would keep a container active for longer than its last kernel did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A container as its region describes it."""

    priority: int
    cards: frozenset[str]
    recent_kernel: int
    utilization_switch: int


@dataclass(frozen=True, slots=True)
class Orders:
    """What is to be in the region of a container."""

    recent_kernel: int
    utilization_switch: int


def orders(tenants: Mapping[str, Tenant]) -> dict[str, Orders]:
    """Return the orders for each container, by the keys of `tenants`."""
    recent = {key: _aged(tenant.recent_kernel) for key, tenant in tenants.items()}
    active: dict[str, Counter[int]] = {}
    for key, tenant in tenants.items():
        if recent[key] > 0 and tenant.priority >= 0:
            for card in tenant.cards:
                active.setdefault(card, Counter())[tenant.priority] += 1
    return {key: _orders(tenant, recent[key], active) for key, tenant in tenants.items()}


def _orders(tenant: Tenant, recent: int, active: Mapping[str, Counter[int]]) -> Orders:
    there = [active[card] for card in tenant.cards if card in active]
    preceded = _any_before(there, tenant.priority)
    crowded = preceded or any(each[tenant.priority] > 1 for each in there)
    return Orders(WAITING if preceded else max(recent, 0), int(crowded))


def _any_before(active: Iterable[Counter[int]], priority: int) -> bool:
    return any(each < priority for counted in active for each in counted)


def _aged(recent: int) -> int:
    return min(recent, _RECENT) - 1 if recent > 0 else recent

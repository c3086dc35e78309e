"""Read model of cards, nodes and namespaces, shared by tables, dashboard, metrics and `-o json`.

Created by `controller.views.overview.read` and `packing`. JSON has the field names in camelCase,
and every field is always present. Amounts are whole numbers: memory in bytes, cores in the driver's
unit (percent of a card; NeuronCores), shares in slots. A total of 0 means that the driver does not
publish the amount.
"""

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from controller.views import View
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.resource import ResourceClaim


class Tenant(View, frozen=True, kw_only=True):
    """A holder of some of a card: a claim, and the pods that it is reserved for."""

    namespace: str
    claim: str
    """Name of the claim."""
    pod: str
    """Name of its pod, the first by name of several; empty if no pod uses the claim yet, or any longer."""
    more_pods: tuple[str, ...] = ()
    """The other pods of a shared claim."""
    device: str
    """Name of the device that it holds: the card's own, or that of a part of it (a MIG instance)."""
    memory: int
    cores: int
    shares: int
    whole: bool = False
    """It holds all cores and memory of the device, or holds it exclusively."""
    admin: bool = False
    """Admin access: it monitors the device and consumes nothing."""
    vanished: bool = False
    """The claim was deleted, but its pods still hold the device."""


class Card(View, frozen=True, kw_only=True):
    """One card; what its parts hold counts as the card's."""

    node: str
    """Empty for a device that several nodes can reach."""
    driver: str
    vendor: str
    """`nvidia`, ...; for a foreign driver, the driver's name."""
    pool: str
    device: str
    uuid: str
    product: str
    index: int | None
    numa: int
    """0 or less if unknown."""
    island: int
    """Fast-interconnect island on the node; 0: none."""
    links: str
    """`hami.io/links`: one character for each card index of the node, lanes in base 36; empty if unknown."""
    memory_total: int
    memory_used: int
    cores_total: int
    cores_used: int
    shares_total: int
    shares_used: int
    health: str
    """Empty if healthy, else the fault (`xid=xid-79`); for a foreign taint, its key and value."""
    cordoned: bool
    """An operator cordoned the card or its node."""
    exclusive: bool
    """One claim holds all of it, exclusively."""
    parts_used: int
    """Number of its parts (MIG instances) that are held."""
    free: bool
    """No claim holds any of it, and a pod could have it now: healthy, in service, its node ready."""
    tenants: tuple[Tenant, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class NodeView(View, frozen=True, kw_only=True):
    """One node that has cards."""

    node: str
    there: bool
    """False: slices name a node that does not exist."""
    ready: bool
    cordoned: bool
    vendors: tuple[str, ...]
    products: tuple[str, ...]
    cards: int
    free_cards: int
    troubled_cards: int
    """Cards that are unhealthy or individually cordoned."""
    memory_total: int
    memory_used: int
    cores_total: int
    cores_used: int
    shares_total: int
    shares_used: int


class NamespaceView(View, frozen=True, kw_only=True):
    """What one namespace holds of one vendor's cards."""

    namespace: str
    vendor: str
    pods: int
    claims: int
    cards: int
    """Number of different cards of which it holds something."""
    whole_cards: int
    memory: int
    cores: int
    shares: int


class Held(View, frozen=True, kw_only=True):
    """A device that claims hold and no slice publishes: its slice is gone, incomplete or invalid."""

    device: str
    """`driver/pool/device`"""
    tenants: tuple[Tenant, ...]


class Vanished(View, frozen=True, kw_only=True):
    """A deleted claim whose pods still hold its devices: they count until the pods have ended."""

    namespace: str
    claim: str
    uid: str
    node: str
    """Node of the driver that reports it; empty: the controller saw the deletion."""
    pods: tuple[str, ...]
    """`namespace/name`"""
    devices: tuple[str, ...]
    """`driver/pool/device`"""


class Reservation(View, frozen=True, kw_only=True):
    """Devices that are kept for a pod that does not run yet: for whom, what, since and until when."""

    kind: Literal["gang", "preemption", "moves", "reserved"]
    """`gang`: other members of the pod's gang do not have theirs yet, or it is being written.
    `preemption`: pods that are evicted for it, or terminate, still have them. `moves`: pods that move for it
    do. `reserved`: it has waited for long, and pods that have them end some time.
    """
    namespace: str
    name: str
    """Of the gang, as in `namespace`, or of the pod."""
    holder: str
    """As messages name it: `PodGroup team/train`, `pod team/one`."""
    pod: str
    """`namespace/name`"""
    node: str
    """Empty: unknown."""
    devices: tuple[str, ...]
    """`driver/pool/device`"""
    since: str
    """RFC 3339; empty: the allocation is being written."""
    until: str
    """When they are given back at the latest, RFC 3339; empty: unknown, or no end is set."""
    moves_begin: str = ""
    """When pods that are too young now may move for it, RFC 3339; empty: none, or unknown."""


class PlacedPod(View, frozen=True, kw_only=True):
    """A pod, its node, and the devices of its claims."""

    pod: str
    """`namespace/name`"""
    node: str
    """Empty: it has none yet."""
    devices: tuple[str, ...]
    """`driver/pool/device`, in the order of its claims."""

    @classmethod
    def of(cls, pod: Pod, claim_of: Callable[[str], ResourceClaim | None]) -> "PlacedPod":
        """`claim_of`: the claim with a key, or None where there is none."""
        claims = (claim for key in claim_keys(pod) if (claim := claim_of(key)) is not None)
        devices = tuple(result.device_id for claim in claims for result in claim.results)
        return cls(pod=pod.key, node=pod.spec.node_name, devices=devices)


class Packing(View, frozen=True, kw_only=True):
    """Packing of one driver's cards. Defined in `controller.views.overview.packing`."""

    driver: str
    vendor: str
    nodes: int
    empty_nodes: int
    """Nodes whose cards are all free."""
    cards: int
    usable_cards: int
    """Healthy, in service, on a node that takes pods."""
    free_cards: int
    """Usable, and no claim holds any of them."""
    partly_used_cards: int
    """Usable, held, and not full."""
    full_cards: int
    """Usable, with nothing left."""
    free_islands: dict[int, int]
    """Size → number of groups of that many free cards, each within one island, that could be allocated at once."""
    free_capacity: float
    """Free capacity of all usable cards, in cards."""
    fragmentation: float
    """Share of `free_capacity` that is on partly used cards: 0.0 to 1.0."""
    memory_total: int
    memory_used: int
    cores_total: int
    cores_used: int
    shares_total: int
    shares_used: int


class Overview(View, frozen=True, kw_only=True):
    cards: tuple[Card, ...]
    """By node, vendor, index."""
    nodes: tuple[NodeView, ...]
    """Nodes that have cards, by name."""
    namespaces: tuple[NamespaceView, ...]
    """By name, then vendor."""
    packing: tuple[Packing, ...]
    """By vendor, foreign drivers last."""
    unpublished: tuple[Held, ...] = ()
    problems: dict[str, str] = msgspec.field(default_factory=dict)
    """Pools that cannot be used as published, and ignored slices: `pool driver/name` → why."""
    vanished: tuple[Vanished, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    """By holder, then pod."""


def pods_of(tenants: Iterable[Tenant]) -> set[str]:
    """Return `namespace/name` of all pods that hold something."""
    return {f"{each.namespace}/{pod}" for each in tenants for pod in (each.pod, *each.more_pods) if pod}

"""What is told of cards, nodes and namespaces: plain values, the same for tables, the page, metrics and `-o json`.

Made by `controller.overview.read` and `packing`. JSON has the field names in camelCase, every field always there.
Amounts are whole numbers: memory in bytes, cores in the driver's unit (percent of a card; NeuronCores), shares in slots.
A total of 0 says that the driver does not publish the amount.
"""

from collections.abc import Iterable

import msgspec


class View(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base: unlike objects of the API, a value of this package leaves no field out in JSON."""


class Tenant(View, frozen=True, kw_only=True):
    """Who holds some of a card: a claim, and the pods that it is reserved for."""

    namespace: str
    claim: str
    """Name of the claim."""
    pod: str
    """Name of its pod, empty where no pod uses the claim yet, or any more. Of several the first by name."""
    more_pods: tuple[str, ...] = ()
    """The others of a shared claim."""
    device: str
    """Name of the device that it holds: the card's own, or that of a part of it (a MIG instance)."""
    memory: int
    cores: int
    shares: int
    whole: bool = False
    """It holds all of the device, alone."""
    admin: bool = False
    """Admin access: it looks on and takes nothing."""
    vanished: bool = False
    """The claim is gone, and its pods hold the device nevertheless."""


class Card(View, frozen=True, kw_only=True):
    """One card, with what its parts hold counted as the card's."""

    node: str
    """Empty for a device that several nodes can reach."""
    driver: str
    vendor: str
    """`nvidia`, ...; of a foreign driver the driver's name."""
    pool: str
    device: str
    uuid: str
    product: str
    index: int | None
    numa: int
    """0 or less where it is not known."""
    island: int
    """Fast-interconnect island on the node, 0 = none."""
    links: str
    """`hami.io/links`: one character for each card index of the node, lanes in base 36; empty where it is not known."""
    memory_total: int
    memory_used: int
    cores_total: int
    cores_used: int
    shares_total: int
    shares_used: int
    health: str
    """Empty while nothing is wrong, else the fault (`xid=xid-79`); of a taint that is not ours, its key and value."""
    cordoned: bool
    """Taken out of service by an operator, the card or its node."""
    exclusive: bool
    """Somebody holds all of it, alone."""
    parts_used: int
    """Parts of it (MIG instances) that are held."""
    free: bool
    """Nobody holds any of it, and a pod could have it now: healthy, in service, its node ready."""
    tenants: tuple[Tenant, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class NodeView(View, frozen=True, kw_only=True):
    """One node that has cards."""

    node: str
    there: bool
    """False: slices speak of a node that does not exist."""
    ready: bool
    cordoned: bool
    vendors: tuple[str, ...]
    products: tuple[str, ...]
    cards: int
    free_cards: int
    troubled_cards: int
    """Not healthy, or taken out of service one by one."""
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
    """Different cards of which it holds something."""
    whole_cards: int
    memory: int
    cores: int
    shares: int


class Held(View, frozen=True, kw_only=True):
    """A device that claims hold and nobody publishes: its slice is gone, incomplete or invalid."""

    device: str
    """`driver/pool/device`"""
    tenants: tuple[Tenant, ...]


class Vanished(View, frozen=True, kw_only=True):
    """A claim that is gone while its pods hold its devices: they count until the pods are over."""

    namespace: str
    claim: str
    uid: str
    node: str
    """Of the driver that tells of it; empty: the controller saw the claim vanish."""
    pods: tuple[str, ...]
    """`namespace/name`"""
    devices: tuple[str, ...]
    """`driver/pool/device`"""


class Packing(View, frozen=True, kw_only=True):
    """How the cards of one driver are packed. Defined in `controller.overview.packing`."""

    driver: str
    vendor: str
    nodes: int
    empty_nodes: int
    """All of their cards are free."""
    cards: int
    usable_cards: int
    """Healthy, in service, on a node that takes pods."""
    free_cards: int
    """Usable, and nobody holds any of them."""
    partly_used_cards: int
    """Usable, held, and not full."""
    full_cards: int
    """Usable, with nothing left."""
    free_islands: dict[int, int]
    """Size → how many groups of so many free cards, each within one island, could be handed out at once."""
    free_capacity: float
    """What is free of all usable cards, in cards."""
    fragmentation: float
    """Share of `free_capacity` that lies on partly used cards: 0.0 to 1.0."""
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
    """Those that have cards, by name."""
    namespaces: tuple[NamespaceView, ...]
    """By name, then vendor."""
    packing: tuple[Packing, ...]
    """By vendor, foreign drivers last."""
    unpublished: tuple[Held, ...] = ()
    problems: dict[str, str] = msgspec.field(default_factory=dict)
    """Pools that cannot be used as they are published, slices that are left out: `pool driver/name` → why."""
    vanished: tuple[Vanished, ...] = ()


def pods_of(tenants: Iterable[Tenant]) -> set[str]:
    """`namespace/name` of all pods that have something."""
    return {f"{each.namespace}/{pod}" for each in tenants for pod in (each.pod, *each.more_pods) if pod}

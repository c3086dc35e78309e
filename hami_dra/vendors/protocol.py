"""The interface of a vendor module for scheduling, and the driver profile by which any DRA driver's devices are read.

Called by `controller.allocation.prefilter` (whole columns),
`controller.decide.pre_score` and `controller.scoring.chooser` (the cards of
one node). Nothing outside `hami_dra.vendors` imports one vendor's folder. Rules depend on the
device's driver, not on how it was requested. Everything here is pure: what a vendor needs to know
of earlier decisions it reads from usage and marks, which come from the allocations themselves.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntFlag
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from msgspec import Struct

from hami_dra.api import names
from hami_dra.api.arrays import Codes, Ints, Positions
from hami_dra.vendors import device_codes
from hami_dra.vendors.preferences import Preferences

_MOST_DIGITS: Final = 9
_ONLY_NUMBER: Final = re.compile(rf"[^0-9]*([0-9]{{1,{_MOST_DIGITS}}})")
_NUMBER: Final = re.compile(r"[0-9]+")


class DriverProfile(Struct, frozen=True):
    """The roles of published names in scoring. A role the driver does not publish is None.

    Attribute names are looked up as the allocator does: in full first, then bare when the domain is
    the driver's.
    """

    driver: str
    uuid: str | None = names.ATTR_UUID
    product: str | None = names.ATTR_PRODUCT
    index: str | None = names.ATTR_INDEX
    link_group: str | None = names.ATTR_LINK_GROUP
    links: str | None = names.ATTR_LINKS
    distance: str | None = names.ATTR_DISTANCE
    numa: str | None = names.ATTR_NUMA_NODE
    memory: str | None = names.CAP_MEMORY
    cores: str | None = names.CAP_CORES
    shares: str | None = names.CAP_SHARES
    parts: str | None = None
    """Capacity that counts equal parts of the hardware: a request for a percentage of memory takes
    as many as it needs.
    """
    partition: str | None = None
    """Attribute that tells parts of a card (MIG profiles), which are no cards of their own."""
    partition_values: frozenset[str] = frozenset()
    """The values of `partition` that mean a part; empty: any value does."""
    card_memory: str | None = None
    """Attribute of a part: the memory of the card that it is cut from, in bytes. With it a request
    for all or a percentage of the memory means that of the card; None: a part has no percentages.
    """
    selects_parts: frozenset[str] = frozenset()
    """Attributes by which a selector asks for parts as such: then all of a part's memory is meant."""
    model: str | None = None
    """Attribute that tells the series of a card, for a vendor with resource names for each series."""
    number_in_name: int | None = None
    """Which number in a device's name is its index, from 1, if no attribute is: 2 reads 128 from
    `gpu-0-128`. None: the only number in the name, if there is exactly one.
    """
    ids: tuple[str, ...] = ()
    """Attributes whose values name a card in use and nouse lists, in addition to its uuid."""
    pcie_root: str | None = names.ATTR_PCIE_ROOT
    default_shares: int = 1
    """Slots of a shared device that publishes no `shares` capacity (an exclusive device always has 1)."""

    def number_of(self, device_name: str) -> int | None:
        """Return the index that the name of a device tells, or None.

        >>> DriverProfile("gpu.example.com", number_in_name=2).number_of("gpu-0-128")
        128
        >>> DriverProfile("gpu.example.com").number_of("neurondevice3")
        3
        >>> DriverProfile("gpu.example.com").number_of("gpu-0-128")  # which of the two?
        """
        if self.number_in_name is None:
            only = _ONLY_NUMBER.fullmatch(device_name)
            return int(only[1]) if only else None
        numbers = _NUMBER.findall(device_name)[self.number_in_name - 1 :]
        return int(numbers[0]) if numbers and len(numbers[0]) <= _MOST_DIGITS else None

    def means_part(self, value: str | None) -> bool:
        """Return whether a device with this value of the attribute `partition` is part of a card."""
        return not self.partition_values or value in self.partition_values


class Cards(Struct):
    """Some rows of the device columns, by role. All arrays have shape (n,), int64; memory in the driver's unit.

    Used amounts are before the current request. A role that the driver does not publish has total
    0.
    """

    index: Ints
    numa: Ints
    slots_total: Ints
    slots_used: Ints
    cores_total: Ints
    cores_used: Ints
    memory_total: Ints
    memory_used: Ints
    mark: Ints
    """The promise to a card's tenants, as numbered by `Vendor.mark`; 0 = none."""

    def take(self, positions: Positions) -> "Cards":
        return Cards(*(getattr(self, name)[positions] for name in self.__struct_fields__))

    def add(self, position: int, amounts: tuple[int, int, int]) -> None:
        """Add slots, cores and memory to the usage of one row. Only for copies of the device columns."""
        for used, amount in zip((self.slots_used, self.cores_used, self.memory_used), amounts, strict=True):
            used[position] += amount


class CardRequest(Struct):
    """What one request would take of each card of `Cards`: arrays of shape (n,), int64, rounded per card."""

    slots: Ints
    cores: Ints
    memory: Ints

    def take(self, positions: Positions) -> "CardRequest":
        return CardRequest(slots=self.slots[positions], cores=self.cores[positions], memory=self.memory[positions])

    def spread(self, positions: Positions, size: int) -> "CardRequest":
        """Return the rows at these positions of `size`; the others request nothing."""

        def wide(amounts: Ints) -> Ints:
            fresh = np.zeros(size, dtype=np.int64)
            fresh[positions] = amounts
            return fresh

        return CardRequest(slots=wide(self.slots), cores=wide(self.cores), memory=wide(self.memory))


class Layout(Struct, frozen=True):
    """The wiring of the cards of one driver on one node. Equal machines share one.

    A card is named by its position: cards in order of their published index, n of them. Tables are
    by position.
    """

    index: tuple[int, ...]
    group: tuple[int, ...]
    """Fast-interconnect island (`linkGroup`), 0 = none."""
    numa: tuple[int, ...]
    product: tuple[str, ...]
    lanes: tuple[tuple[int, ...], ...]
    """Lanes of the fast interconnect from one card to another; 0 on the diagonal, without a link, or if unknown."""
    distance: tuple[str, ...]
    """By card a string of n letters of `hami.io/distance`; `-` on the diagonal, `0` if unknown."""
    instance_type: str = ""
    """Label `node.kubernetes.io/instance-type` of the node."""

    @property
    def size(self) -> int:
        return len(self.index)


class CardState(IntFlag):
    """State of one card for one request."""

    ELIGIBLE = 1
    """The request may take it: Kubernetes' rules and `Vendor.refuse` allow it."""
    IDLE = 2
    """No pod holds any of it, including this pod's earlier requests."""
    OWN = 4
    """An earlier request of the same pod holds some of it."""


class NodeView(Struct, frozen=True):
    """One request and the cards of one node. Hashable: answers may be cached."""

    layout: Layout
    card_states: bytes
    """`CardState` by position."""
    states: bytes
    """The result of `Vendor.states` for each card, by position."""
    count: int
    """Different cards that the request takes."""
    preferences: Preferences
    node_policy: str
    device_keys: tuple[str, ...]
    """The device policy: `("topology-aware",)`, `("spread", "mutex")`."""
    plain: bool = True
    """The request names no capacity and takes whole devices; a request for 100 % of a capacity is not the same."""

    def mask(self, wanted: CardState) -> int:
        """Return the cards in that state as a bit mask by position."""
        return sum(1 << position for position, state in enumerate(self.card_states) if state & wanted)


@dataclass(frozen=True, slots=True)
class CandidateTier:
    """Sets of cards that are equally good: the device policy chooses among them. At least one of `sets` and `pools`."""

    score: float
    """Score of the choice for this node against other nodes: higher is better, with any node policy."""
    tie: float = field(default=0.0, kw_only=True)
    """Second score, only between nodes that are equal by the node policy too."""
    sets: tuple[int, ...] = ()
    """Bit masks by position, each of `NodeView.count` eligible cards."""
    pools: tuple[int, ...] = ()
    """Bit masks of at least `NodeView.count` eligible cards: any `NodeView.count` of one of them.
    For sets too many to be listed.
    """

    def some(self, count: int) -> int:
        if self.sets:
            return self.sets[0]
        mask = self.pools[0]
        for _ in range(mask.bit_count() - count):
            mask &= ~(1 << mask.bit_length() - 1)
        return mask


class PartitionUse(Enum):
    """Whether partitions (`DriverProfile.partition`) may be taken if no legal set of whole cards works."""

    NO = "no"
    ANY = "any"
    ONE_NUMA_NODE = "one NUMA node"
    """All of one request on one NUMA node, whole cards among them or not."""


class CandidateSets(Struct, frozen=True):
    """All legal sets, best tier first. `tiers` may be a generator that is read only as needed."""

    tiers: Iterable[CandidateTier]
    refusal: str = device_codes.NUMA_NOT_FIT
    """Reason code of a node without a tier."""
    parts: PartitionUse = PartitionUse.NO
    """Without effect for vendors whose cards are not partitioned."""


class Vendor:
    """One accelerator vendor: its refusals, and the sets of cards it allows and prefers. Vendors
    override methods as needed.

    `preferences` are created by this vendor's own `preferences` and come back to it unchanged.
    """

    name: str
    profile: DriverProfile
    annotations: frozenset[str] = frozenset()
    """Annotations of pod, claim, template and class that it reads; the first object that has one counts."""
    always_arranges: bool = False
    """Whether `arranges` is true for every request."""
    parameters: Mapping[str, str] = MappingProxyType({})
    """Fields of `DeviceConfig` (in JSON spelling) → the equivalent annotation. The parameters of a
    claim or class count, request by request, if no object has the annotation.
    """

    def preferences(self, annotations: Mapping[str, str]) -> Preferences:  # noqa: ARG002 (for vendors that read some)
        """Return preferences beyond amounts. `annotations`: those that are set. Raises InvalidPreference."""
        return Preferences()

    def type_name(self, product: str) -> str:
        """Return the text in which lists of types (`CardLists.use_types`) are searched."""
        return product

    def smallest_part_first(self, preferences: Preferences) -> bool:  # noqa: ARG002 (for vendors with partitions)
        """Return whether the smallest partition that holds a request comes before the device
        policy, if whole cards would do too.

        A request that can only have partitions gets the smallest in any case; of one card always
        the smallest comes first.
        """
        return False

    def ids(self, node: str, index: int) -> tuple[str, ...]:  # noqa: ARG002 (for vendors that have some)
        """Return the names of a card in use and nouse lists, in addition to its uuid."""
        return ()

    def refuse(self, cards: Cards, ask: CardRequest, preferences: Preferences) -> Codes:  # noqa: ARG002 (overridden)
        """Return per card 0, or the number of the reason (`hami_dra.vendors.device_codes`) why this
        vendor's rules refuse it.

        Only refuses: capacity, selectors, lists and taints are checked elsewhere. Any number of
        cards of any number of nodes.
        """
        return np.zeros(cards.index.shape, dtype=np.uint8)

    def arranges(self, preferences: Preferences, device_keys: Sequence[str]) -> bool:  # noqa: ARG002 (overridden)
        """Return whether `arrange` may return sets: if not, cards of one kind are interchangeable."""
        return self.always_arranges

    def states(self, cards: Cards, ask: CardRequest) -> Codes:  # noqa: ARG002 (for vendors to override)
        """Return a small number per card that `arrange` needs beyond `CardState`: how sliced, how full it is."""
        return np.zeros(cards.index.shape, dtype=np.uint8)

    def arrange(self, node_view: NodeView) -> CandidateSets | None:  # noqa: ARG002 (for vendors to override)
        """Return legal sets of `count` eligible cards, best first, or None: any set, in order of the device policy."""
        return None

    def allocation_parameters(self, preferences: Preferences) -> Mapping[str, Any]:  # noqa: ARG002 (overridden)
        """Return fields of `DeviceConfig` that an allocation records, for the driver and for later decisions."""
        return {}

    def mark(self, parameters: Mapping[str, Any], consumed: Mapping[str, int]) -> int:  # noqa: ARG002 (overridden)
        """Return a tenant as a number for `Cards.mark`, from the parameters of its allocation and
        its share of the card.

        0 = it leaves the card open. All tenants of one card that are not 0 have the same number, or
        `refuse` was wrong.
        """
        return 0

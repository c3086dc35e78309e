"""Old extended resource names (`nvidia.com/gpumem`): the interface of each vendor that has such names.

Called by `controller.webhook`. In: the resource lists of one container and the annotations of its
pod. Out: a `LegacyRequest` in terms of the capacities that the vendor's driver publishes, CEL
selectors, a device class, environment variables. Must not know about pods, claims or templates.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Struct

from hami_dra.api import names
from hami_dra.api.quantity import Format, InvalidQuantity, Quantity
from hami_dra.vendors.quotas import Quotas
from hami_dra.vendors.unpartitioned import UnpartitionedVendor

MAX_CARDS: Final = 32
"""Results of one claim (AllocationResultsMaxSize of resource.k8s.io/v1)."""
MAX_EXPRESSION: Final = 10 * 1024
"""Bytes of one CEL selector (CELSelectorExpressionMaxLength)."""
MIB: Final = 1 << 20
MAX_MIB: Final = 4 << 20
"""4 TiB: beyond any card, so a larger number was not meant as MiB."""

Filters = Mapping[str, tuple[str, ...]]
"""Annotation name → the items of its list, normalised by the vendor."""


class InvalidLegacy(ValueError):
    """A resource or annotation cannot be converted; the message names it, the problem and the fix."""


class CardChoice(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    """`count` different cards, with the same part of each."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_CARDS)]
    capacity: dict[
        Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,31}$")],
        Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)],
    ] = {}
    """By published capacity, in its unit (memory: bytes; cores: percent). One left out takes the
    card's default: all.
    """
    memory_percent: Annotated[int, msgspec.Meta(ge=1, le=99)] | None = None
    """Percent of the chosen card's memory; `capacity` then has no `memory`."""
    priority: Annotated[int, msgspec.Meta(ge=0, le=1)] | None = None
    """HAMi's task priority: 0 high, 1 low."""
    model: Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9.-]{0,62})?$")] = ""
    """The series of cards that the resource name asks for, in the vendor's words; empty: any."""
    exact: bool = False
    """Only cards whose capacities are exactly those in `capacity`, so that each is taken whole."""
    partition: bool = False
    """Only the partition of a card whose capacities are exactly those in `capacity`."""

    @property
    def takes_all_memory(self) -> bool:
        return self.memory_percent is None and names.CAP_MEMORY not in self.capacity

    def is_only(self, capacity: Mapping[str, int]) -> bool:
        """Return whether it consists of nothing but a count, a series and these capacities."""
        rest = self.memory_percent, self.priority, self.exact, self.partition
        return (self.capacity, *rest) == (capacity, None, None, False, False)


class LegacyRequest(CardChoice, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    """The request of one container for one vendor."""

    alternatives: Annotated[tuple[CardChoice, ...], msgspec.Meta(max_length=7)] = ()
    """Alternatives if this cannot be allocated, most preferred first; a choice has no alternatives itself."""

    def is_only(self, capacity: Mapping[str, int]) -> bool:
        return not self.alternatives and super().is_only(capacity)

    def joined(self, other: "LegacyRequest") -> "LegacyRequest | None":
        """Return the smallest request that covers both, for containers that never run at the same time.

        None if it cannot be determined: a percentage of an unknown card and a number of bytes, two
        series, alternatives, a partition and anything else, or whole cards of one size and more
        than they have.
        """
        if self == other:
            return self
        if self.alternatives or other.alternatives or self.model != other.model or self.partition or other.partition:
            return None
        if self.exact or other.exact:
            return self._joined_exact(other)
        all_memory = self.takes_all_memory or other.takes_all_memory
        if not all_memory and (self.memory_percent is None) != (other.memory_percent is None):
            return None
        percents = [percent for percent in (self.memory_percent, other.memory_percent) if percent is not None]
        priorities = [priority for priority in (self.priority, other.priority) if priority is not None]
        return LegacyRequest(
            count=max(self.count, other.count),
            capacity={
                name: max(amount, other.capacity[name])
                for name, amount in self.capacity.items()
                if name in other.capacity
            },
            memory_percent=None if all_memory else max(percents, default=None),
            priority=min(priorities, default=None),
            model=self.model,
        )

    def _joined_exact(self, other: "LegacyRequest") -> "LegacyRequest | None":
        """Join two requests of which at least one takes whole cards of one size: the result takes such cards, too."""
        whole, part = (self, other) if self.exact else (other, self)
        if part.memory_percent is not None or (part.exact and part.capacity != whole.capacity):
            return None
        if any(amount > whole.capacity.get(name, amount) for name, amount in part.capacity.items()):
            return None
        priorities = [priority for priority in (whole.priority, part.priority) if priority is not None]
        return msgspec.structs.replace(
            whole, count=max(whole.count, part.count), priority=min(priorities, default=None)
        )


class LegacyReading(Struct, frozen=True):
    """The reading of one container for one vendor. `request` is None if it requests no card (a count of 0)."""

    request: LegacyRequest | None
    warnings: tuple[str, ...] = ()


class ContainerResources(Struct, frozen=True):
    """The resource lists of one container. As in HAMi, limits are read first, then requests."""

    limits: Mapping[str, Any]
    requests: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return name in self.limits or name in self.requests

    def field(self, name: str) -> str:
        return f'resources.{"limits" if name in self.limits else "requests"}["{name}"]'

    def whole(self, name: str, meaning: str, most: int, *, in_mib: bool = False) -> int | None:
        """Return a whole number from 0 to `most`, or None when it is not given. Raises InvalidLegacy.

        `meaning` completes the sentence "it ...": counts cards.

        The API server writes 16000 as "16k", so decimal suffixes are numbers like any other; a
        binary suffix shows that the user means bytes.
        """
        if name not in self:
            return None
        value = self.limits[name] if name in self.limits else self.requests[name]
        problem = f"{self.field(name)} is {value!r}, but it {meaning}: write"
        try:
            amount = Quantity.parse(str(value) if isinstance(value, float) else value)
        except InvalidQuantity:
            raise InvalidLegacy(f"{problem} a whole number from 0 to {most}") from None
        bytes_meant = amount.format is Format.BINARY_SI or amount > Quantity.from_int(most)
        if in_mib and bytes_meant and amount >= Quantity.from_int(MIB):
            raise InvalidLegacy(f'{problem} "{amount.value() // MIB}" instead')
        if (
            amount.format is Format.BINARY_SI
            or counts_fractions(value)
            or not amount.is_whole()
            or not 0 <= amount.value() <= most
        ):
            raise InvalidLegacy(f"{problem} a whole number from 0 to {most}")
        return amount.value()

    def both(self, one: str, other: str, choice: str) -> InvalidLegacy:
        """Return the error for a container that uses two names. `choice` completes "ask for ..."."""
        return InvalidLegacy(f"{self.field(one)} and {self.field(other)} are both given; ask for {choice}")

    def needs(self, name: str, other: str) -> None:
        """Refuse a name that is meaningless without the other. Raises InvalidLegacy."""
        if name in self and other not in self:
            raise InvalidLegacy(f"{self.field(name)} stands without {other}; add {other}: 1 or remove it")


def counts_fractions(value: object) -> bool:
    """Return whether a quantity is written in thousandths or less: of `4000m` nobody means 4."""
    return str(value).endswith(("m", "u", "n"))


class LegacyVendor:
    """The old names of one vendor, which overrides methods as needed. Every method that reads user input
    raises `InvalidLegacy`.
    """

    name: str
    """Prefix of the requests in claims: `nvidia-0`."""
    driver: str
    resources: tuple[str, ...]
    """All names it reads, and that a conversion removes from the container."""
    plugin_resources: tuple[str, ...]
    """Those of them that a device plugin puts into a node's `status.allocatable`."""
    quotas: Quotas
    """Those of them that a ResourceQuota may limit, and how its cards are counted then."""

    def read(self, resources: ContainerResources) -> LegacyReading:
        raise NotImplementedError

    def is_plain(self, request: CardChoice) -> bool:
        """Return whether it is for whole cards alone, as an extended resource can express (KEP-5004)."""
        return request.is_only({})

    def device_class(self, request: CardChoice) -> str:
        raise NotImplementedError

    def filters(self, annotations: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:  # noqa: ARG002 (overridden)
        """Return the annotations of a pod that choose among cards, normalised: equal lists give equal filters.

        By default all annotations are read when a pod is placed.
        """
        return {}

    def selectors(self, filters: Filters) -> tuple[str, ...]:
        """Return one CEL expression for each filter; text of users is quoted. Refuses unknown filters."""
        if filters:
            raise InvalidLegacy(f"{', '.join(sorted(filters))}: this vendor has no filters in its requests")
        return ()

    def settled(self, request: LegacyRequest, annotations: Mapping[str, Any]) -> LegacyRequest:  # noqa: ARG002 (overridden)
        """Return the request as the pod's annotations change it. Refuses what no card could meet."""
        return request

    def instead_of(self, resource: str) -> str:  # noqa: ARG002 (overridden)
        """Return what to write in place of a name that other software of the vendor serves, or an empty text."""
        return ""

    def env(self, request: LegacyRequest) -> dict[str, str]:  # noqa: ARG002 (overridden)
        """Return the environment variables that HAMi's webhook gives a container with this request."""
        return {}


class WholeByCount(LegacyVendor):
    """A vendor whose whole cards are requested by their count alone; any name of an amount requests
    a share of a card. `of`: how its cards are published, which has its names.
    """

    whole_class: str
    shared_class: str

    def __init_subclass__(cls, of: type[UnpartitionedVendor] | None = None) -> None:
        if of is not None:
            cls.name, cls.driver = of.name, of.driver
            cls.whole_class, cls.shared_class = of.whole_class, of.shared_class

    def device_class(self, request: CardChoice) -> str:
        return self.whole_class if self.is_plain(request) else self.shared_class


def refuse_unknown(filters: Filters, known: Collection[str]) -> None:
    """Raise InvalidLegacy for a filter that the vendor does not have."""
    if unknown := filters.keys() - {*known}:
        raise InvalidLegacy(f"{', '.join(sorted(unknown))}: use one of {', '.join(known)}")


def checked_selector(name: str, items: tuple[str, ...], expression: str) -> str:
    """Return the CEL that a list becomes. Raises InvalidLegacy if the API server would refuse its length."""
    if len(expression.encode()) > MAX_EXPRESSION:
        raise InvalidLegacy(
            f"annotation {name} has {len(items)} items: its selector is longer than the {MAX_EXPRESSION} bytes that "
            "Kubernetes allows; shorten the list"
        )
    return expression


def comma_list(annotations: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Return the items of a comma list, trimmed, sorted, each once; None when the annotation is
    missing or has no item, which is no constraint.
    """
    if name not in annotations:
        return None
    value = annotations[name]
    if not isinstance(value, str):
        raise InvalidLegacy(f"annotation {name} is {value!r}, not a string; put it in quotes")
    return tuple(sorted({item.strip() for item in value.split(",")} - {""})) or None

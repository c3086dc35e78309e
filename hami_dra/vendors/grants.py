"""The grants of a container on each card, and the variables and device nodes made of them: helpers
of the vendors' `containers` modules.

In: tenancies, the host. Out: grants by card, lists for variables, device nodes. Pure. Lists are
built by `listed`, so that no text from hardware or the API server can name a second device.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from hami_dra.api.containers import DeviceNode, Host, Site, Tenancy, Unpreparable
from hami_dra.api.hardware import Card
from hami_dra.api.nodelacks import Lack
from hami_dra.vendors.unpartitioned import UnpartitionedVendor

_LISTED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Grant(Struct, frozen=True, kw_only=True):
    """Everything that a container has of one card, from any number of requests."""

    card: Card
    tenancies: tuple[Tenancy, ...]

    @property
    def whole(self) -> bool:
        """Return whether there is nothing to limit."""
        return any(tenancy.whole or tenancy.admin for tenancy in self.tenancies)

    def amount(self, capacity: str) -> int:
        return sum(tenancy.consumed.get(capacity, 0) for tenancy in self.tenancies)


def grants(tenancies: Iterable[Tenancy]) -> tuple[Grant, ...]:
    """Return one grant for each card, by its index: the order in which the vendors' libraries number cards."""
    by_index: dict[int, list[Tenancy]] = {}
    for tenancy in sorted(tenancies, key=lambda tenancy: (tenancy.device, tenancy.request, tenancy.share_id)):
        by_index.setdefault(tenancy.card.index, []).append(tenancy)
    return tuple(Grant(card=held[0].card, tenancies=tuple(held)) for _, held in sorted(by_index.items()))


class Tightest(Struct, frozen=True, kw_only=True):
    """One limit for all cards of a container, where the vendor's software supports no other."""

    amount: int | None
    """None: nothing is limited."""
    differs: bool

    def notes(self, variable: str) -> tuple[str, ...]:
        if not self.differs:
            return ()
        return (
            f"{variable} is one limit for all cards of a container: the smallest of its shares counts for all of them",
        )


def tightest(held: Sequence[Grant], capacity: str) -> Tightest:
    """Return the smallest share: no card is given more than its tenancy."""
    shares = [holding.amount(capacity) for holding in held if not holding.whole]
    return Tightest(
        amount=min(shares, default=None), differs=bool(shares) and (len(shares) < len(held) or len(set(shares)) > 1)
    )


def listed(values: Iterable[str]) -> str:
    """Return `a,b`. Raises Unpreparable for a text that would read as more than one value."""
    found = tuple(values)
    for value in found:
        if not _LISTED.fullmatch(value):
            raise Unpreparable(f"{value!r} is not a name of a device that can be put into a list")
    return ",".join(found)


def file_name(text: str) -> str:
    """Return the text itself. Raises Unpreparable when it is not fit for the name of a file."""
    if not _FILE_NAME.fullmatch(text):
        raise Unpreparable(f"{text!r} cannot be the name of a file")
    return text


def optional_nodes(host: Host, paths: Iterable[str]) -> tuple[DeviceNode, ...]:
    """Return the device nodes that the host has of `paths` below /dev, searched in its folder of device nodes."""
    found = []
    for path in paths:
        on_host = host.settings.device_folder + path.removeprefix("/dev")
        if host.exists(on_host):
            found.append(DeviceNode(path, "" if on_host == path else on_host))
    return tuple(found)


def needed_nodes(host: Host, card: Card, paths: Sequence[str]) -> tuple[DeviceNode, ...]:
    """Return the device nodes; raises Unpreparable when one is missing, except on simulated machines."""
    found = optional_nodes(host, paths)
    missing = set(paths) - {node.path for node in found}
    if missing and host.settings.nodes_required:
        raise Unpreparable(
            f"card {card.index} ({card.uuid}): the host has no {', '.join(sorted(missing))}; is the vendor's kernel driver loaded, "
            "and is the host's /dev what the driver's container sees?"
        )
    return found


def without_doubles(nodes: Iterable[DeviceNode]) -> tuple[DeviceNode, ...]:
    """Return each node once: cards share control nodes."""
    return tuple({node.path: node for node in nodes}.values())


def node_number(card: Card) -> int:
    """Return the number in the names of the card's device nodes: its index, unless the tool reports one."""
    return card.index if card.minor is None else card.minor


def card_numbers(held: Sequence[Grant]) -> str:
    """Return the value of a variable that lists the cards by the numbers of their device nodes: `0,2`."""
    return listed(str(node_number(grant.card)) for grant in held)


def numbered_nodes(host: Host, held: Sequence[Grant], prefix: str, *control: str) -> list[DeviceNode]:
    """Return the device node of each card, `prefix` and its number, and its control nodes. Raises Unpreparable."""
    return [
        node
        for grant in held
        for node in needed_nodes(host, grant.card, (f"{prefix}{node_number(grant.card)}", *control))
    ]


class ByAmount:
    """Half of `ContainerVendor`, for vendors whose tenants differ by amounts alone. `of`: how its
    cards are published, which has its names; those with partitions have `sites` of their own.
    """

    name: str
    driver: str
    device_name: str
    reads: tuple[str, ...] = ()

    def __init_subclass__(cls, of: type[UnpartitionedVendor] | None = None) -> None:
        if of is not None:
            cls.name, cls.driver, cls.device_name = of.name, of.driver, of.device_name

    def sites(self, cards: Sequence[Card]) -> Mapping[str, Site]:
        return {f"{self.device_name}-{card.name_number}": Site(card=card) for card in cards}

    def assign(self, tenancy: Tenancy, held: Sequence[Mapping[str, str]]) -> Mapping[str, str]:  # noqa: ARG002
        return {}

    def lacking(self, cards: Sequence[Card], host: Host) -> tuple[Lack, ...]:  # noqa: ARG002
        """Return nothing: this driver cannot know."""
        return ()

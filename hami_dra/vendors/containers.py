"""What a container gets when it was granted cards: environment, device nodes, mounts. The contract, and what vendors share.

Called by the node driver when it prepares a claim, through `registry.containers`. In: tenancies (what a container was granted of
each card), where it is prepared for, and a view of the host. Out: `Edits`, which the driver writes as a CDI device. Pure: the host
is only asked, nothing is made, nothing is remembered. What must be remembered from one claim to the next (which cores of a
card are in use) the vendor says by `assign`, and the driver keeps it with the claim.

Texts come from hardware, from the API server and from users' parameters. `Edits` takes only what can neither end a line nor leave
a folder, and lists are made by `listed`, so that no text can name a second device.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Protocol

from hami_dra.api import names
from hami_dra.api.config import DeviceConfig
from hami_dra.api.hardware import Card, MigInstance

_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENV_VALUE: Final = re.compile(r"[^\x00-\x1f\x7f]*")
_PATH: Final = re.compile(r"(/[^/\x00-\x1f\x7f]+)+")
_LISTED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]*")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Unpreparable(ValueError):
    """A container cannot be given what was allocated; the message names the device, what is wrong and the fix."""


class PartitionRefused(Exception):
    """The hardware does not make or remove a part of a card; the message names the card, the part and the reason."""


# --- in --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """The part of a card that a published device stands for, before it exists."""

    card_uuid: str
    profile: str
    """`1g.10gb`."""
    start: int
    """First memory slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a published device is in the machine."""

    card: Card
    partition: PartitionPlace | None = None
    """None: the card itself, whole or shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """What one allocation result grants of one card."""

    card: Card
    device: str
    """Its published name."""
    request: str
    share_id: str = ""
    consumed: Mapping[str, int] = field(default_factory=dict)
    """Capacity → bytes, percent or a count; empty where the device was not shared."""
    whole: bool
    """Nobody else can have anything of the card meanwhile, so there is nothing to limit (`takes_all`)."""
    parameters: DeviceConfig = field(default_factory=DeviceConfig)
    partition: MigInstance | None = None
    """The part of the card that it is, made already."""
    assigned: Mapping[str, str] = field(default_factory=dict)
    """What the vendor's `assign` answered when the claim was prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Who gets it. Containers that refer to the same requests are one view: they get the same edits."""

    claim_namespace: str
    claim_name: str
    claim_uid: str
    view: str
    """Unique on the node and fit for a file's name; names the view's folder and cache on the host."""
    container_env: Mapping[str, str] = field(default_factory=dict)
    """What the containers of the view set themselves, as far as they agree and it is said by `value`."""
    pod_uids: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    """Names of the containers of the view; empty where nobody knows who will use the claim."""

    @property
    def is_shared(self) -> bool:
        """Several containers may get the same edits at the same time."""
        return len(self.containers) != 1 or len(self.pod_uids) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """What the operator says about the node."""

    library_folder: str = "/usr/local"
    """Where limiting libraries are installed (HAMi's HOOK_PATH)."""
    library_version: str = ""
    """Of the library, where several lie side by side; empty: the only one."""
    device_folder: str = "/dev"
    """Where the device nodes of the host are; another one on simulated machines."""
    nodes_required: bool = True
    """False on simulated machines: what is missing in that folder is left out."""
    memory_scaling: Fraction = Fraction(1)
    """As published (`Sharing.memory_scaling`)."""
    log_level: str = ""
    """Of the limiting library; empty: its own default."""
    core_limits: bool = True
    """False: shares of cores are counted and not enforced (HAMi's disableCoreLimit)."""


class Host(Protocol):
    """The machine, as far as edits depend on it."""

    settings: HostSettings

    @property
    def cdi_devices(self) -> Collection[str]:
        """Qualified names of the devices that CDI specs of others offer on this node."""

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> str | None:
        """A small text file of the kernel; None where it cannot be read."""

    def names(self, folder: str) -> Sequence[str]:
        """What lies in a folder of the kernel, in order; empty where it cannot be read."""


# --- out -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceNode:
    path: str
    """In the container."""
    host_path: str = ""
    """Empty: the same."""
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class Mount:
    host: str
    container: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "bind")


@dataclass(frozen=True, slots=True)
class Folder:
    """To be made on the host before the container starts."""

    path: str
    mode: int
    per_view: bool = True
    """Emptied before, and removed with the claim; else it stays, and is shared by all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Raises Unpreparable for a text that is not fit for the environment or for a path."""

    env: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    """Devices of other vendors' CDI specs to be given besides (`Host.cdi_devices`), in place of device nodes."""
    folders: tuple[Folder, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences for the claim's status and the log: what the container does not get, and why."""

    def __post_init__(self) -> None:
        for name, value in self.env.items():
            if not _ENV_NAME.fullmatch(name) or not _ENV_VALUE.fullmatch(value):
                raise Unpreparable(f"{name!r}={value!r} cannot be set in a container: it has control characters")
        nodes = [path for node in self.device_nodes for path in (node.path, node.host_path or node.path)]
        mounts = [path for mount in self.mounts for path in (mount.host, mount.container)]
        for path in (*nodes, *mounts, *(folder.path for folder in self.folders)):
            if not _PATH.fullmatch(path) or ".." in path.split("/"):
                raise Unpreparable(f"{path!r} is not a plain absolute path")


# --- what a vendor says ----------------------------------------------------------------------------------------------


class ContainerVendor(Protocol):
    """A vendor whose cards our driver hands out."""

    name: str
    """`Card.vendor`."""
    driver: str

    def sites(self, cards: Sequence[Card]) -> Mapping[str, Site]:
        """Every device that is published for these cards of one machine, by its name."""

    def assign(self, tenancy: Tenancy, held: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
        """What of the card this tenancy has, where amounts alone do not say it; empty for most vendors.

        `held`: what was assigned to all others that are prepared on the card. The driver keeps the answer with the claim, and
        puts it into `Tenancy.assigned`. Raises Unpreparable when nothing is left.
        """

    def edits(self, tenancies: Sequence[Tenancy], place: Place, host: Host) -> Edits:
        """What containers of one view get for all their tenancies on this vendor's cards, in whatever order. Raises Unpreparable."""


class Partitioner(Protocol):
    """Makes and removes parts of cards. Blocks; called from a thread. Everything raises DiscoveryError when the hardware does not answer."""

    def create(self, place: PartitionPlace) -> MigInstance:
        """The part at this place, ready for use. One that lies there already is completed and returned: who calls has made sure that
        no other claim holds it. Raises PartitionRefused; nothing half made is left then, unless the hardware does not allow that.
        """

    def destroy(self, card_uuid: str, instance_id: int) -> None:
        """`instance_id`: `MigInstance.id`. One that is gone already is no error. Raises PartitionRefused while it is in use."""

    def existing(self, card_uuid: str) -> tuple[MigInstance, ...]:
        """By id; also those that are half made (no `uuid`). Raises PartitionRefused for a card that is not there."""


# --- what vendors share ----------------------------------------------------------------------------------------------


def takes_all(consumed: Mapping[str, int], offered: Mapping[str, int]) -> bool:
    """Whether a tenancy is the only one that its card has room for. `offered`: the published capacities of the device."""
    limited = [name for name in (names.CAP_MEMORY, names.CAP_CORES) if name in offered]
    return not consumed or all(consumed.get(name, 0) >= offered[name] for name in limited)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """All that a container has of one card, from however many requests."""

    card: Card
    tenancies: tuple[Tenancy, ...]

    @property
    def whole(self) -> bool:
        return any(tenancy.whole for tenancy in self.tenancies)

    def amount(self, capacity: str) -> int:
        return sum(tenancy.consumed.get(capacity, 0) for tenancy in self.tenancies)


def holdings(tenancies: Iterable[Tenancy]) -> tuple[Holding, ...]:
    """One for each card, by its index: the order in which the vendors' libraries number cards."""
    by_index: dict[int, list[Tenancy]] = {}
    for tenancy in sorted(tenancies, key=lambda tenancy: (tenancy.device, tenancy.request, tenancy.share_id)):
        by_index.setdefault(tenancy.card.index, []).append(tenancy)
    return tuple(Holding(card=held[0].card, tenancies=tuple(held)) for _, held in sorted(by_index.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tightest:
    """One limit for all cards of a container, where the vendor's software knows no other."""

    amount: int | None
    """None: nothing is limited."""
    differs: bool

    def notes(self, variable: str) -> tuple[str, ...]:
        if not self.differs:
            return ()
        return (
            f"{variable} is one limit for all cards of a container: the smallest of its shares counts for all of them",
        )


def tightest(held: Sequence[Holding], capacity: str) -> Tightest:
    """The smallest share: no card is given more than its tenancy."""
    shares = [holding.amount(capacity) for holding in held if not holding.whole]
    return Tightest(
        amount=min(shares, default=None), differs=bool(shares) and (len(shares) < len(held) or len(set(shares)) > 1)
    )


def listed(values: Iterable[str]) -> str:
    """`a,b`. Raises Unpreparable for a text that would read as more than one value."""
    found = tuple(values)
    for value in found:
        if not _LISTED.fullmatch(value):
            raise Unpreparable(f"{value!r} is not a name of a device that can be put into a list")
    return ",".join(found)


def file_name(text: str) -> str:
    """The text itself. Raises Unpreparable when it is not fit for the name of a file."""
    if not _FILE_NAME.fullmatch(text):
        raise Unpreparable(f"{text!r} cannot be the name of a file")
    return text


def optional_nodes(host: Host, paths: Iterable[str]) -> tuple[DeviceNode, ...]:
    """`paths` below /dev; on the host they are looked for in its folder of device nodes. Those that are missing are left out."""
    found = []
    for path in paths:
        on_host = host.settings.device_folder + path.removeprefix("/dev")
        if host.exists(on_host):
            found.append(DeviceNode(path, "" if on_host == path else on_host))
    return tuple(found)


def needed_nodes(host: Host, card: Card, paths: Sequence[str]) -> tuple[DeviceNode, ...]:
    """The same; raises Unpreparable when one is missing, except on simulated machines."""
    found = optional_nodes(host, paths)
    missing = set(paths) - {node.path for node in found}
    if missing and host.settings.nodes_required:
        raise Unpreparable(
            f"card {card.index} ({card.uuid}): the host has no {', '.join(sorted(missing))}; is the vendor's kernel driver loaded, "
            "and is the host's /dev what the driver's container sees?"
        )
    return found


def without_doubles(nodes: Iterable[DeviceNode]) -> tuple[DeviceNode, ...]:
    """Cards share control nodes."""
    return tuple({node.path: node for node in nodes}.values())


def node_number(card: Card) -> int:
    """In the names of its device nodes. Where the vendor's tool does not tell it, it is the card's index."""
    return card.index if card.minor is None else card.minor


def card_sites(device_name: str, cards: Iterable[Card]) -> Mapping[str, Site]:
    """Of a vendor whose cards are published whole, as `<device_name>-<index>`."""
    return {f"{device_name}-{card.index}": Site(card=card) for card in cards}

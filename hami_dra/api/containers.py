"""What a container gets when it was granted cards: environment, device nodes, mounts. The contract between driver and vendors.

Called by the node driver when it prepares a claim, through `registry.containers`. In: tenancies (what a container was granted of
each card), where it is prepared for, and a view of the host. Out: `Edits`, which the driver writes as a CDI device. Pure: the host
is only asked, nothing is made, nothing is remembered. What must be remembered from one claim to the next (which cores of a
card are in use) the vendor says by `assign`, and the driver keeps it with the claim.

Texts come from hardware, from the API server and from users' parameters: `Edits` takes only what can neither end a line nor leave
a folder. What the vendors have in common is in `grants`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Final, Protocol

from hami_dra.api import names
from hami_dra.api.config import DeviceConfig
from hami_dra.api.hardware import Card, MigInstance
from hami_dra.api.nodelacks import Lack

_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENV_VALUE: Final = re.compile(r"[^\x00-\x1f\x7f]*")
_PATH: Final = re.compile(r"(/[^/\x00-\x1f\x7f]+)+")


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
    cuttable: bool = False
    """The card itself, of which parts may be made as well: it must be one while it is used as one (`Partitioner.uncut`)."""


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
    admin: bool = False
    """Admin access: it shares the card with its holders and has no limits."""
    parameters: DeviceConfig = field(default_factory=DeviceConfig)
    partition: MigInstance | None = None
    """The part of the card that it is, made already."""
    assigned: Mapping[str, str] = field(default_factory=dict)
    """What the vendor's `assign` answered when the claim was prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlace:
    """Who gets it. Containers that refer to the same requests are one view: they get the same edits."""

    claim_namespace: str
    claim_name: str
    claim_uid: str
    view: str
    """Unique on the node and fit for a file's name; names the view's folder and cache on the host."""
    container_env: Mapping[str, str] = field(default_factory=dict)
    """Those variables of `ContainerVendor.reads` that the containers of the view set themselves, where they agree and it is
    said by `value`.
    """
    pod_uids: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    """Names of the containers of the view; empty where nobody knows who will use the claim."""
    runtime_classes: frozenset[str] = frozenset()
    """`spec.runtimeClassName` of the pods that are known, empty texts for pods without."""
    joinable: bool = False
    """Pods that are not known yet may get the same edits: kubelet does not ask again for a claim that is prepared."""

    @property
    def is_shared(self) -> bool:
        """Several containers may get the same edits at the same time."""
        return self.joinable or len(self.containers) != 1 or len(self.pod_uids) > 1


class Keeping(StrEnum):
    """Where a folder that containers write to is kept."""

    PRIVATE = "private"
    """In a small tmpfs of each container: nobody else sees it, and nothing of it is on the host's disks."""
    HOST = "host"
    """On the host."""


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
    usage_cache: Keeping = Keeping.PRIVATE
    """The file in which the processes of a container tell each other what they use. On the host HAMi's monitor can read it."""
    usage_cache_size: int = 16 << 20
    """Bytes at most, where it is private."""
    lock_folder: Keeping = Keeping.PRIVATE
    """Of locks between processes. On the host all containers of the node share it."""
    driver_root: str = ""
    """Folder of the host in which the vendor's user-space driver (libraries, tools) is installed, `/` or that of a driver
    container; empty: the container runtime brings these files."""
    cdi_hook: str = ""
    """Path of nvidia-cdi-hook on the host; empty: looked for where packages install it."""
    library_runtime_class: str = ""
    """RuntimeClass whose handler brings these files; empty: the default runtime of the node does."""
    imex_channels: bool = True
    """Give IMEX channels of the host to containers that hold whole GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiDevice:
    """What a CDI specification of somebody else says of one device. Paths on the host."""

    file: str = ""
    device_nodes: frozenset[str] = frozenset()
    """Of this device alone, without those that all devices of the specification bring."""
    mounts: frozenset[str] = frozenset()
    """Those of all devices of the specification included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonEdits:
    """What a CDI specification of somebody else brings with each of its devices (the `containerEdits` of the file)."""

    file: str
    kind: str
    """`nvidia.com/gpu`."""
    edits: "Edits"


class FileTree(Protocol):
    """A root file system. Paths are absolute and below its root; symlinks never lead out of it."""

    def resolve(self, path: str) -> str | None:
        """Return the path without symlinks; None where nothing is there."""

    def names(self, folder: str) -> Sequence[str]:
        """Return what lies in a folder, in order; empty where it cannot be read."""

    def link(self, path: str) -> str:
        """Return the target of a symlink as it is written; empty for what is none."""


class Host(Protocol):
    """The part of the machine that edits depend on."""

    settings: HostSettings

    @property
    def cdi_devices(self) -> Mapping[str, CdiDevice]:
        """Qualified name of each device that CDI specs of others offer on this node, and that runtimes can resolve."""

    @property
    def cdi_common_edits(self) -> Sequence[CommonEdits]:
        """Those of the same specs, the ones of highest priority first."""

    @property
    def driver_files(self) -> FileTree | None:
        """The driver root (`HostSettings.driver_root`), as this process sees it; None where none is configured."""

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
    numbers: tuple[int, int] | None = None
    """(major, minor) of a character device that the host need not have a node for; None: those of the host's node."""


@dataclass(frozen=True, slots=True)
class Mount:
    host: str
    container: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "bind")


@dataclass(frozen=True, slots=True)
class Tmpfs:
    """A file system in memory, of the container's own, that any user may write to. Counts as memory of the container."""

    container: str
    size: int
    """Bytes at most."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A program of the host that the runtime runs when it has made the container, before it starts (OCI `createContainer`)."""

    path: str
    args: tuple[str, ...] = ()
    """`args[0]` is the program's name."""
    env: tuple[str, ...] = ()
    name: str = "createContainer"


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
    tmpfs: tuple[Tmpfs, ...] = ()
    """Mounted before `mounts`, some of which may lie in them."""
    cdi_devices: tuple[str, ...] = ()
    """Devices of other vendors' CDI specs to be given as well (`Host.cdi_devices`), in place of device nodes."""
    hooks: tuple[Hook, ...] = ()
    """In the order in which they run."""
    folders: tuple[Folder, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences for the claim's status and the log: what the container does not get, and why."""

    def __post_init__(self) -> None:
        for name, value in self.env.items():
            if not _ENV_NAME.fullmatch(name) or not _ENV_VALUE.fullmatch(value):
                raise Unpreparable(f"{name!r}={value!r} cannot be set in a container: it has control characters")
        nodes = [path for node in self.device_nodes for path in (node.path, node.host_path or node.path)]
        mounts = [path for mount in self.mounts for path in (mount.host, mount.container)]
        memory = [each.container for each in self.tmpfs]
        hooks = [hook.path for hook in self.hooks]
        for path in (*nodes, *mounts, *memory, *hooks, *(folder.path for folder in self.folders)):
            if not _PATH.fullmatch(path) or ".." in path.split("/"):
                raise Unpreparable(f"{path!r} is not a plain absolute path")


# --- what a vendor says ----------------------------------------------------------------------------------------------


class ContainerVendor(Protocol):
    """A vendor whose cards our driver hands out."""

    name: str
    """`Card.vendor`."""
    driver: str
    reads: tuple[str, ...]
    """Names of the variables in `ContainerPlace.container_env`: those that a container may set itself and that decide about its edits."""

    def sites(self, cards: Sequence[Card]) -> Mapping[str, Site]:
        """Every device that is published for these cards of one machine, by its name."""

    def assign(self, tenancy: Tenancy, held: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
        """What of the card this tenancy has, where amounts alone do not say it; empty for most vendors.

        `held`: what was assigned to all others that are prepared on the card. The driver keeps the answer with the claim, and
        puts it into `Tenancy.assigned`. Raises Unpreparable when nothing is left.
        """

    def lacking(self, cards: Sequence[Card], host: Host) -> tuple[Lack, ...]:
        """Return what containers with these cards would lack on this node; empty where nothing is known."""

    def edits(self, tenancies: Sequence[Tenancy], place: ContainerPlace, host: Host) -> Edits:
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

    def uncut(self, card_uuid: str) -> None:
        """Makes a card one that programs can use as a whole. That it may be cut is remembered, over a restart too, before anything is
        changed. One that is so already is no error. Raises PartitionRefused for a card that anybody uses; it is left as it was then.
        """

    def recut(self, card_uuid: str) -> None:
        """Takes `uncut` back, and only that: another card, or one that is gone, is left alone. `create` does it too. Raises
        PartitionRefused while programs run on the card.
        """

    def uncut_cards(self) -> frozenset[str]:
        """Uuids of those that `uncut` was called for, and not yet `recut`."""


def takes_all(consumed: Mapping[str, int], offered: Mapping[str, int]) -> bool:
    """Whether a tenancy is the only one that its card has room for. `offered`: the published capacities of the device."""
    limited = [name for name in (names.CAP_MEMORY, names.CAP_CORES) if name in offered]
    return not consumed or all(consumed.get(name, 0) >= offered[name] for name in limited)

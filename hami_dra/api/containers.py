"""The edits of a container with granted cards: environment, device nodes, mounts. The contract
between driver and vendors.

Called by the node driver when it prepares a claim, through `registry.containers`. In: tenancies
(the container's grant on each card), the place that it is prepared for, and a view of the host.
Out: `Edits`, which the driver writes as a CDI device. Pure: the host is only read, nothing is
created or stored. State that must survive from one claim to the next (which cores of a card are in
use) is returned by the vendor's `assign`, and the driver keeps it with the claim.

Texts come from hardware, from the API server and from users' parameters: `Edits` accepts only
values that can neither end a line nor leave a folder. Helpers shared by vendors are in `grants`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct, field

from hami_dra.api import names
from hami_dra.api.hardware import Card, PartitionInstance
from hami_dra.api.nodelacks import Lack
from hami_dra.api.options import VendorSettings

if TYPE_CHECKING:
    from hami_dra.api.config import DeviceConfig  # pydantic takes longer to import than a command may

_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENV_VALUE: Final = re.compile(r"[^\x00-\x1f\x7f]*")
_PATH: Final = re.compile(r"(/[^/\x00-\x1f\x7f]+)+")
MARKER: Final = ".hami-dra"
"""Ends the name of the empty file next to each folder made for a view: the folder is this driver's,
whatever a container does to what is in it.
"""


class Unpreparable(ValueError):
    """A container cannot be given its allocation; the message has device, problem and fix."""


class PartitionRefused(Exception):
    """The hardware does not create or remove a partition; the message names both, and why."""


# --- in -------------------------------------------------------------------------------------------


def _no_parameters() -> "DeviceConfig":
    from hami_dra.api.config import DeviceConfig

    return DeviceConfig()


class PartitionPlace(Struct, frozen=True, kw_only=True):
    """The partition that a published device stands for, before it exists."""

    card_uuid: str
    profile: str
    """`1g.10gb`."""
    start: int
    """First memory slice; where slices have no place, the number of the partition among those of its profile."""
    by_runtime: bool = False
    """The vendor's container runtime creates it when a container starts, and removes it with the
    container: it needs no `Partitioner`.
    """


class Site(Struct, frozen=True, kw_only=True):
    """The place of a published device in the machine."""

    card: Card
    partition: PartitionPlace | None = None
    """None: the card itself, whole or shared."""
    cuttable: bool = False
    """The card itself, which can be partitioned too: MIG mode must be off while it is used as one
    (`Partitioner.unpartition`).
    """


class Tenancy(Struct, frozen=True, kw_only=True):
    """The grant of one allocation result on one card."""

    card: Card
    device: str
    """Its published name."""
    request: str
    share_id: str = ""
    consumed: Mapping[str, int] = field(default_factory=dict)
    """Capacity → bytes, percent or a count; empty where the device was not shared."""
    whole: bool
    """No other claim can have a part of the card: there is nothing to limit (`takes_all`)."""
    admin: bool = False
    """Admin access in addition to the card's holders, without limits."""
    parameters: "DeviceConfig" = field(default_factory=_no_parameters)
    partition: PartitionInstance | None = None
    """Its partition, created already; None where the container runtime creates it."""
    profile: str = ""
    """The profile of its partition; empty: the card itself."""
    assigned: Mapping[str, str] = field(default_factory=dict)
    """The answer of the vendor's `assign` when the claim was prepared."""


class ContainerPlace(Struct, frozen=True, kw_only=True):
    """The recipients. Containers that refer to equal requests are one view with equal edits."""

    claim_namespace: str
    claim_name: str
    claim_uid: str
    view: str
    """Unique on the node, fit for a file's name; names the view's folder and cache."""
    container_env: Mapping[str, str] = field(default_factory=dict)
    """Variables of `ContainerVendor.reads` that the containers of the view set themselves by
    `value`, to equal values.
    """
    pod_uids: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    """Names of the containers of the view; empty if the users of the claim are not known."""
    at_once: int = 0
    """Most of them that run at the same time: an init container ends before the others start."""
    runtime_classes: frozenset[str] = frozenset()
    """`spec.runtimeClassName` of the known pods, empty texts for pods without."""
    joinable: bool = False
    """Later pods may get the same edits: kubelet does not call again for a prepared claim."""

    @property
    def is_shared(self) -> bool:
        """Return whether several containers may get the same edits at the same time."""
        return self.joinable or len(self.containers) != 1 or len(self.pod_uids) > 1


class HostSettings(Struct, frozen=True, kw_only=True):
    """The operator's settings for the node."""

    device_folder: str = "/dev"
    """Folder of the host's device nodes; another one on simulated machines."""
    nodes_required: bool = True
    """False on simulated machines: nodes missing in that folder are left out."""
    options: VendorSettings = field(default_factory=VendorSettings)
    """Those that vendors declare."""


class CdiDevice(Struct, frozen=True, kw_only=True):
    """One device of another program's CDI specification. Paths on the host."""

    file: str = ""
    device_nodes: frozenset[str] = frozenset()
    """Nodes of this device alone, without those that all devices of the specification bring."""
    mounts: frozenset[str] = frozenset()
    """Mounts, including those of all devices of the specification."""


class CommonEdits(Struct, frozen=True, kw_only=True):
    """Edits that another program's CDI specification brings with each device (`containerEdits`)."""

    file: str
    kind: str
    """`nvidia.com/gpu`."""
    edits: "Edits"


class FileTree(Protocol):
    """A root file system. Paths are absolute and below its root; symlinks never lead out of it."""

    def resolve(self, path: str) -> str | None:
        """Return the path without symlinks; None if it does not exist."""

    def names(self, folder: str) -> Sequence[str]:
        """Return the names in a folder, in order; empty if it cannot be read."""

    def link(self, path: str) -> str:
        """Return the target of a symlink as written; empty if it is not one."""


class Host(Protocol):
    """The parts of the machine that edits depend on."""

    settings: HostSettings

    @property
    def cdi_devices(self) -> Mapping[str, CdiDevice]:
        """Return the CDI devices of other programs that runtimes can resolve, by qualified name."""

    @property
    def cdi_common_edits(self) -> Sequence[CommonEdits]:
        """Return the common edits of the same specifications, those of highest priority first."""

    @property
    def driver_files(self) -> FileTree | None:
        """Return the folder of the vendor's driver as this process sees it; None if none is configured."""

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> str | None:
        """Return a small text file of the kernel; None if it cannot be read."""

    def names(self, folder: str) -> Sequence[str]:
        """Return the names in a folder of the kernel, in order; empty if it cannot be read."""


# --- out ------------------------------------------------------------------------------------------


class DeviceNode(Struct, frozen=True):
    path: str
    """Path in the container."""
    host_path: str = ""
    """Path on the host; empty: as in the container."""
    permissions: str = "rw"
    numbers: tuple[int, int] | None = None
    """(major, minor) of a character device without a node on the host; None: the host's numbers."""


class Mount(Struct, frozen=True):
    host: str
    container: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "bind")


class Tmpfs(Struct, frozen=True):
    """A file system in the container's memory (and counted as such) that any user may write to."""

    container: str
    size: int
    """Bytes at most."""


class Hook(Struct, frozen=True):
    """A program of the host, run when the container is created (OCI `createContainer`)."""

    path: str
    args: tuple[str, ...] = ()
    """`args[0]` is the program's name."""
    env: tuple[str, ...] = ()
    name: str = "createContainer"


class Folder(Struct, frozen=True):
    """A folder to create on the host before the container starts."""

    path: str
    mode: int
    per_view: bool = True
    """Emptied before, and removed with the claim; else it stays, and is shared by all."""


class Edits(Struct, frozen=True, kw_only=True):
    """The edits of a container. Raises Unpreparable for a text unfit for environment or path."""

    env: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    tmpfs: tuple[Tmpfs, ...] = ()
    """Mounted before `mounts`, some of which may lie in them."""
    cdi_devices: tuple[str, ...] = ()
    """Devices of others' CDI specifications (`Host.cdi_devices`), in place of device nodes."""
    hooks: tuple[Hook, ...] = ()
    """In the order in which they run."""
    folders: tuple[Folder, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences for the claim's status and the log: what the container lacks, and why."""

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


# --- the vendor -----------------------------------------------------------------------------------


class ContainerVendor(Protocol):
    """A vendor whose cards one of hami-dra's drivers hands out."""

    name: str
    """`Card.vendor`."""
    driver: str
    reads: tuple[str, ...]
    """Names of the variables in `ContainerPlace.container_env`: those that a container may set
    itself and that affect its edits.
    """

    def sites(self, cards: Sequence[Card]) -> Mapping[str, Site]:
        """Return every device that is published for these cards of one machine, by its name."""

    def assign(self, tenancy: Tenancy, held: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
        """Return the part of the card that this tenancy has, where amounts alone do not define it;
        empty for most vendors.

        `held`: the assignments of all other prepared claims on the card. The driver keeps the
        answer with the claim, and puts it into `Tenancy.assigned`. Raises Unpreparable when nothing
        is left.
        """

    def lacking(self, cards: Sequence[Card], host: Host) -> tuple[Lack, ...]:
        """Return what containers with these cards would lack here; empty if nothing is known."""

    def edits(self, tenancies: Sequence[Tenancy], place: ContainerPlace, host: Host) -> Edits:
        """Return the edits of the containers of one view for all their tenancies on this vendor's
        cards, in any order.

        Raises Unpreparable.
        """


class RuntimePartition(Struct, frozen=True, kw_only=True):
    """A partition that the container runtime made (`PartitionPlace.by_runtime`)."""

    number: int
    """Its number on the machine."""
    profile: str
    idle: bool
    """The hardware knows no container that uses it. One that runs and has not begun to is not known."""


class RuntimePartitions(Protocol):
    """The partitions that a vendor's container runtime makes. Blocks. Raises DiscoveryError."""

    def existing(self, card: Card) -> Sequence[RuntimePartition]:
        """Return those on a card that have a profile which the driver hands out."""

    def destroy(self, card: Card, number: int) -> None:
        """Remove one."""


class Partitioner(Protocol):
    """Create and remove partitions. Blocks. Raises DiscoveryError if the hardware is silent."""

    def create(self, place: PartitionPlace) -> PartitionInstance:
        """Create the partition at this place, ready for use. One that already exists there is
        completed and returned: the caller has checked that no other claim holds it.

        Raises PartitionRefused; nothing half created is left then, unless the hardware does not
        allow that.
        """

    def destroy(self, card_uuid: str, instance_id: int) -> None:
        """Remove a partition. `instance_id`: `PartitionInstance.id`. A missing one is no error.
        Raises PartitionRefused while it is in use.
        """

    def existing(self, card_uuid: str) -> tuple[PartitionInstance, ...]:
        """Return partitions by id, half created ones (no `uuid`) too. Raises PartitionRefused for a missing card."""

    def unpartition(self, card_uuid: str) -> None:
        """Switch MIG mode of a card off, so that programs can use it as a whole.

        That it can be partitioned is stored, over a restart too, before anything is changed. A card
        whose mode is off is no error. Raises PartitionRefused for a card in use, which is left
        unchanged.
        """

    def repartition(self, card_uuid: str) -> None:
        """Revert `unpartition`, and only that: another card, or a missing one, is left alone.
        `create` does it too.

        Raises PartitionRefused while programs run on the card.
        """

    def unpartitioned_cards(self) -> frozenset[str]:
        """Return the uuids of the cards that `unpartition` was called for, and not yet `repartition`."""


def takes_all(consumed: Mapping[str, int], offered: Mapping[str, int]) -> bool:
    """Return whether a tenancy fills its card. `offered`: the device's published capacities."""
    limited = [name for name in (names.CAP_MEMORY, names.CAP_CORES) if name in offered]
    return not consumed or all(consumed.get(name, 0) >= offered[name] for name in limited)

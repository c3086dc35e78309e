"""The driver's record of a prepared claim: enough to answer again, repair, count devices in use, and unprepare.

Created by `claim` and `plan`, written by `checkpoint`. Plain data, frozen; a change creates a new
record. Amounts are whole base units (bytes, percent, counts).
"""

from typing import Any, Literal

import msgspec

from hami_dra.api.meta import Struct
from hami_dra.driver.kubelet.protocol import PreparedDevice

State = Literal["preparing", "prepared"]
"""`preparing`: the artifacts of the record may or may not exist yet; no call was answered with it."""


class Partition(Struct, frozen=True):
    """A partition of a card that exists for this claim."""

    card: str
    """Uuid."""
    profile: str
    start: int
    id: int | None = None
    """Id of the GPU instance; None until it is created."""
    uuid: str = ""
    compute_id: int | None = None
    """`PartitionInstance.compute_instance_id`; None in records of older drivers."""
    size: int = 0
    """Slices of the card; 0 in records of older drivers."""
    by_runtime: bool = False
    """The container runtime creates and removes it (`PartitionPlace.by_runtime`)."""


class GrantedDevice(Struct, frozen=True):
    """One allocation result, as this node counts it."""

    request: str
    """Spelt as in the result: `request`, or `request/subrequest`."""
    pool: str
    device: str
    card: str
    """Uuid."""
    numbers: tuple[int, int] | None = None
    """(index, minor or -1) of the card, as passed to its containers; None in records of older drivers."""
    share_id: str = ""
    admin: bool = False
    """Admin access, which consumes nothing."""
    shared: bool = False
    whole: bool = False
    """There is nothing to limit (`takes_all`)."""
    consumed: dict[str, int] = msgspec.field(default_factory=dict)
    """Capacity → amount, of a shared device."""
    counters: tuple[tuple[str, str, int], ...] = ()
    """(set, counter, amount) that the device consumes while at least one claim holds it."""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """`DeviceConfig` as JSON: the merged configuration of class and claim for this request."""
    partition: Partition | None = None
    unpartitioned: bool = msgspec.field(default=False, name="uncut")
    """It is the card itself, which can be partitioned while no claim holds it as one."""
    assigned: dict[str, str] = msgspec.field(default_factory=dict)
    """The vendor's assignment on the card, if amounts alone do not define it (`ContainerVendor.assign`)."""

    @property
    def own_partition(self) -> Partition | None:
        """Return the partition that this driver creates and removes with the claim, if it is not another program's."""
        if self.partition is None or self.partition.by_runtime or self.admin:
            return None
        return self.partition

    @property
    def parent(self) -> str:
        """Return the name by which containers refer to it."""
        return self.request.partition("/")[0]


class ContainerView(Struct, frozen=True):
    """The view of one container: some requests of some claims, all of this driver."""

    name: str
    """Unique on the node, fit for files and CDI."""
    asked: tuple[tuple[str, str], ...]
    """(claim uid, parent request), in the order in which the container sees the devices."""
    pods: tuple[str, ...] = ()
    """Uids of the pods that have such a container."""
    containers: tuple[str, ...] = ()
    """Their names; empty while the users of the claim are unknown."""
    users: tuple[tuple[str, str], ...] = ()
    """(name of the pod, name of the container) of each, for metrics; empty in records of older drivers."""
    at_once: int = 0
    """Most of its containers that run at the same time; 0: not known, also in records of older drivers."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables that its containers set themselves, to equal values, and that the vendor reads
    (`ContainerVendor.reads`). No others: users put secrets there, and a view is stored in files.
    """
    runtime_classes: tuple[str, ...] = ()
    """`spec.runtimeClassName` of the pods, each once; an empty text for the default runtime."""


class HostFolder(Struct, frozen=True):
    """A folder created on the host for a view."""

    path: str
    mode: int
    per_view: bool = True
    """Removed when no claim has it any more; else it stays."""


class Record(Struct, frozen=True):
    namespace: str
    name: str
    uid: str
    allocation: str
    """Fingerprint of the allocation's part for this driver: a claim keeps its uid when it is allocated again."""
    state: State
    held: tuple[GrantedDevice, ...]
    owner_pod: str = ""
    """Uid of the pod that the claim was generated for; empty for a named claim, which other pods
    may join at any time.
    """
    views: tuple[ContainerView, ...] = ()
    """The views in this claim's CDI file."""
    answers: tuple[PreparedDevice, ...] = ()
    """The answer to kubelet, by result."""
    spec: dict[str, Any] | None = None
    """The CDI file; None if no container is given anything."""
    folders: tuple[HostFolder, ...] = ()
    notes: tuple[str, ...] = ()
    """What the containers do not get, and why: for the claim's status."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def requests(self) -> tuple[str, ...]:
        """Return the parent requests with devices of this driver, in the order of the results."""
        return tuple(dict.fromkeys(held.parent for held in self.held))

    @property
    def joinable(self) -> bool:
        """Return whether pods that are not known yet may use it: it was not generated for one pod."""
        return not self.owner_pod

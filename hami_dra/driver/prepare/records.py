"""What the driver remembers of a prepared claim: enough to answer again, to repair, to count what is taken, to take back.

Made by `claim` and `plan`, written by `checkpoint`. Plain data, frozen; a change makes a new record. Amounts are whole base units
(bytes, percent, counts).
"""

from typing import Any, Literal

import msgspec

from hami_dra.api.meta import Struct

State = Literal["preparing", "prepared"]
"""`preparing`: what the record names may or may not exist yet; nobody was told about it."""


class Partition(Struct, frozen=True):
    """A part of a card that exists for this claim."""

    card: str
    """Uuid."""
    profile: str
    start: int
    id: int | None = None
    """Of the GPU instance; None while it is not made."""
    uuid: str = ""


class GrantedDevice(Struct, frozen=True):
    """One allocation result, as this node counts it."""

    request: str
    """As the result spells it: `request`, or `request/subrequest`."""
    pool: str
    device: str
    card: str
    """Uuid."""
    numbers: tuple[int, int] | None = None
    """(index, minor or -1) by which its containers are told of the card; None in records of older drivers."""
    share_id: str = ""
    admin: bool = False
    """Looks on and takes nothing."""
    shared: bool = False
    whole: bool = False
    """There is nothing to limit (`takes_all`)."""
    consumed: dict[str, int] = msgspec.field(default_factory=dict)
    """Capacity → amount, of a shared device."""
    counters: tuple[tuple[str, str, int], ...] = ()
    """(set, counter, amount) that the device draws while anybody holds it."""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """`DeviceConfig` as JSON: what class and claim say for this request, merged."""
    partition: Partition | None = None
    uncut: bool = False
    """It is the card itself, of which parts may be made when nobody holds it as one."""
    assigned: dict[str, str] = msgspec.field(default_factory=dict)
    """What the vendor gave it of the card, where amounts alone do not say it (`ContainerVendor.assign`)."""

    @property
    def parent(self) -> str:
        """The name by which containers refer to it."""
        return self.request.partition("/")[0]


class ContainerView(Struct, frozen=True):
    """What one container sees: some requests of some claims, all of this driver."""

    name: str
    """Unique on the node, fit for files and CDI."""
    asked: tuple[tuple[str, str], ...]
    """(claim uid, parent request), in the order in which the container sees the devices."""
    pods: tuple[str, ...] = ()
    """Uids of the pods that have such a container."""
    containers: tuple[str, ...] = ()
    """Their names; empty where nobody knows who will use the claim."""
    users: tuple[tuple[str, str], ...] = ()
    """(name of the pod, name of the container) of each, for metrics; empty in records of older drivers."""
    env: tuple[tuple[str, str], ...] = ()
    """Those variables that its containers set themselves, and agree in, which the vendor reads (`ContainerVendor.reads`). No others:
    users put secrets there, and a view is remembered in files.
    """
    runtime_classes: tuple[str, ...] = ()
    """`spec.runtimeClassName` of the pods, each once; an empty text for the default runtime."""


class HostFolder(Struct, frozen=True):
    """Made on the host for a view."""

    path: str
    mode: int
    per_view: bool = True
    """Removed when no claim has it any more; else it stays."""


class Answer(Struct, frozen=True):
    """What kubelet is told of one result."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str = ""


class Record(Struct, frozen=True):
    namespace: str
    name: str
    uid: str
    allocation: str
    """Fingerprint of what the allocation gives to this driver: a claim keeps its uid when it is allocated anew."""
    state: State
    held: tuple[GrantedDevice, ...]
    owner_pod: str = ""
    """Uid of the pod that the claim was generated for; empty for a named claim, which other pods may join at any time."""
    views: tuple[ContainerView, ...] = ()
    """Those that this claim's CDI file describes."""
    answers: tuple[Answer, ...] = ()
    spec: dict[str, Any] | None = None
    """The CDI file; None where no container is given anything."""
    folders: tuple[HostFolder, ...] = ()
    notes: tuple[str, ...] = ()
    """What the containers do not get, and why: for the claim's status."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

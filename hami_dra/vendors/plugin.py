"""One vendor as one object: everything that the rest of hami-dra knows of it.

Created by the `__init__` of each vendor's folder as `PLUGIN`, collected by `registry`. Code that
reads hardware (libraries, tools) is `imported` when it is called, so that the controller and the
commands load none of it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from hami_dra.api.containers import ContainerVendor, Partitioner, RuntimePartitions
from hami_dra.api.hardware import Card, DrivenCard, Machine
from hami_dra.api.options import VendorOption, VendorSettings
from hami_dra.discovery.backend import Backend
from hami_dra.monitor.readings import CardSampler
from hami_dra.monitor.usage import UsageReader
from hami_dra.vendors.legacy import LegacyVendor
from hami_dra.vendors.protocol import Vendor
from hami_dra.vendors.publishing import Json, PublishingVendor


def imported(path: str, arguments: int | None = None) -> Callable[..., Any]:
    """Return a function that imports what it calls when it is called: `package.module:name`.

    `arguments`: how many of its own arguments it passes on; None: all.
    """
    module, _, name = path.partition(":")
    return lambda *given: attrgetter(name)(import_module(module))(*given[:arguments])


Imitation = Callable[[Machine, Sequence[Card]], list[Json]]
"""What another driver publishes of a machine with these cards."""


class InvalidPlugin(ValueError):
    """A plugin contradicts itself or another one; the message names the problem and the fix."""


class HostPath(Struct, frozen=True, kw_only=True):
    """A folder or file of the node that the driver's container mounts at the same path (chart)."""

    path: str
    purpose: str
    """What it contains, for the operator: `mx-smi`."""
    writable: bool = False
    create: bool = False
    """Create it if it is missing; otherwise the driver's pod waits until it exists."""
    is_file: bool = False


class VendorPlugin(Struct, frozen=True, kw_only=True):
    """A vendor. Raises InvalidPlugin if its parts disagree about its name or its driver."""

    title: str
    """The vendor's name as people write it: `AWS Neuron`."""
    parts: str = ""
    """How a card can be shared, for people: `memory, cores; MIG`. Empty: whole cards only."""
    options: tuple[VendorOption[Any], ...] = ()
    """What an operator may configure for its cards; becomes flags of `hami-dra driver` and `slices`."""
    host_paths: tuple[HostPath, ...] = ()
    """Where packages install the vendor's tools and libraries on a node."""
    rules: Vendor
    """What it refuses, allows and prefers."""
    publishing: PublishingVendor
    """How its cards become devices."""
    containers: ContainerVendor
    """What a container gets with a card."""
    legacy: LegacyVendor
    """Its resource names from before DRA."""
    backend: Callable[[Path | None], Backend]
    """Make the back end that finds its cards, with everything at its place on a real machine.

    In: the folder for what must outlive the program; None: nothing does. Touches no hardware.
    """
    sampler: Callable[[Backend], CardSampler | None]
    """Make the sampler for the cards that this back end finds; None if there is none. Touches no hardware."""
    usage: Callable[[VendorSettings, Callable[[], float]], UsageReader] | None = None
    """Make the reader of what containers use of shared cards. None: not known. Touches no file.

    In: the operator's choices, and the clock (Unix time in seconds).
    """
    library_files: Callable[[Path, VendorSettings], Mapping[str, bytes]] | None = None
    """Return the files by which a node gets the library that limits containers: path → content, in
    the order of writing.

    In: a folder that has the library. Raises ValueError with the reason and the fix, OSError. None:
    there is no such library.
    """
    record: Callable[..., Card] = DrivenCard
    """Make the record of a simulated card, from the fields of its class and of `Card`, for reference machines."""
    partitioner: Callable[[Backend], Partitioner] | None = None
    """Create the partitioner that works with this back end. None: no partitions."""
    simulated_partitioner: Callable[[Iterable[Card], Path], Partitioner] | None = None
    """Make the same for simulated cards. In: the cards, and the file that keeps their parts."""
    runtime_partitions: Callable[[VendorSettings], RuntimePartitions | None] | None = None
    """Return the partitions that the vendor's container runtime makes, if the operator lets the driver
    remove those left behind. Touches no hardware. None: it makes none.
    """
    with_partition_mode: Callable[[Card, bool], Card | None] = lambda _card, _enabled: None
    """The card with its partition mode on or off; None: it cannot be cut."""
    imitations: Mapping[str, Imitation] = field(default_factory=dict)
    """Other drivers that publish such cards → how; for simulated fleets."""
    use_driver_root: Callable[[Path], None] | None = None
    """Look for the vendor's libraries in this folder. None: it has none that could be elsewhere."""

    def __post_init__(self) -> None:
        for part in (self.publishing, self.containers, self.legacy):
            if (part.name, part.driver) != (self.name, self.driver):
                raise InvalidPlugin(
                    f"vendor {self.name}: {type(part).__name__} is of {part.name} ({part.driver}), but the rules are of "
                    f"{self.name} ({self.driver}): give both the same name and driver"
                )

    @property
    def name(self) -> str:
        """`Card.vendor` of its cards."""
        return self.rules.name

    @property
    def driver(self) -> str:
        """The DRA driver that publishes them: `nvidia.hami.io`."""
        return self.rules.profile.driver

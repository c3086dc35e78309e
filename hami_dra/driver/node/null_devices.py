"""Device nodes for containers with simulated cards: those of real cards, with /dev/null behind each.

`wiring` wraps a vendor with it for `--machine`, unless the operator has configured device nodes. A
container thus finds the usual nodes under their usual names, and can do no harm with them; nothing
has to be created on the node.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from hami_dra.api import containers
from hami_dra.api.hardware import Card
from hami_dra.api.nodelacks import Lack

_NOWHERE: Final = "/dev/null"
_RENDER: Final = 128
"""Number of the first render node (Linux, drivers/gpu/drm): /dev/dri/renderD128."""


class NullDeviceVendor:
    """A vendor whose device nodes are /dev/null. Implements `hami_dra.api.containers.ContainerVendor`."""

    def __init__(self, inner: containers.ContainerVendor) -> None:
        self.name = inner.name
        self.driver = inner.driver
        self.reads = inner.reads
        self._inner = inner

    def sites(self, cards: Sequence[Card]) -> Mapping[str, containers.Site]:
        return self._inner.sites(cards)

    def assign(self, tenancy: containers.Tenancy, held: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
        return self._inner.assign(tenancy, held)

    def lacking(self, cards: Sequence[Card], host: containers.Host) -> tuple[Lack, ...]:
        return self._inner.lacking(cards, _WithNodes(host, cards))

    def edits(
        self, tenancies: Sequence[containers.Tenancy], place: containers.ContainerPlace, host: containers.Host
    ) -> containers.Edits:
        edits = self._inner.edits(tenancies, place, _WithNodes(host, [tenancy.card for tenancy in tenancies]))
        return replace(edits, device_nodes=tuple(replace(node, host_path=_NOWHERE) for node in edits.device_nodes))


class _WithNodes:
    """The machine with every device node that has a name, and without CDI devices of other programs: those are real."""

    cdi_devices: Mapping[str, containers.CdiDevice] = MappingProxyType({})
    cdi_common_edits: tuple[containers.CommonEdits, ...] = ()
    driver_files: containers.FileTree | None = None

    def __init__(self, host: containers.Host, cards: Iterable[Card]) -> None:
        self.settings: containers.HostSettings = replace(host.settings, nodes_required=False)
        self._host = host
        self._graphics = {
            f"/sys/bus/pci/devices/{card.pci_bus_id}/drm": (f"card{card.index}", f"renderD{_RENDER + card.index}")
            for card in cards
        }

    def exists(self, path: str) -> bool:
        return path.startswith(f"{self.settings.device_folder}/") or self._host.exists(path)

    def read(self, path: str) -> str | None:
        return self._host.read(path)

    def names(self, folder: str) -> Sequence[str]:
        return self._graphics.get(folder) or self._host.names(folder)

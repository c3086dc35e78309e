"""The edits of a container with NVIDIA cards: shared by HAMi-core (`hami_core`), whole, or MIG instances.

Called through the vendor registry. In: tenancies. Out: edits. Pure.

NVIDIA's container runtime brings libraries and device nodes of the devices in
`NVIDIA_VISIBLE_DEVICES`. If another source brings the libraries (a CDI device, or `driver_files`)
the variable is `void`, which the runtime takes for nothing to do in legacy mode and in CDI mode
alike (nvidia-container-toolkit internal/config/image); a uuid would be looked up in a CDI
specification that cannot know a MIG instance created after it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from hami_dra.api.containers import CdiDevice, ContainerPlace, DeviceNode, Edits, Host, Site, Tenancy, Unpreparable
from hami_dra.api.hardware import Card
from hami_dra.api.nodelacks import Lack, LackKind
from hami_dra.api.options import VendorSettings
from hami_dra.vendors.grants import (
    ByAmount,
    Grant,
    grants,
    listed,
    needed_nodes,
    node_number,
    optional_nodes,
    without_doubles,
)
from hami_dra.vendors.nvidia.driver_files import CDI_KIND, VISIBLE, driver_files, library_versions, loaded_version
from hami_dra.vendors.nvidia.hami_core import DISABLED, is_instance, limiting, limits_of, not_limiting
from hami_dra.vendors.nvidia.options import IMEX_CHANNELS, LIBRARY_RUNTIME_CLASS, USAGE_CACHE, Keeping
from hami_dra.vendors.nvidia.publish import sites
from hami_dra.vendors.nvidia.records import GpuRecord, MigInstance
from hami_dra.vendors.nvidia.rules import DRIVER

NO_HOOK: Final = "void"
"""Keeps NVIDIA's container runtime from adding the cards of the environment to those of CDI."""
CONTROL_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")
OTHER_NODES: Final = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_OWN_NODE: Final = re.compile(r"/dev/nvidia[0-9]+")
IMEX: Final = "/dev/nvidia-caps-imex-channels"
MIG_CONFIG: Final = "/proc/driver/nvidia/capabilities/mig/config"
CAPABILITIES: Final = "/proc/driver/nvidia-caps/mig-minors"
DEVICES: Final = "/proc/devices"
_CAPABILITY_MAJOR: Final = re.compile(r"^ *([0-9]{1,7}) nvidia-caps$", re.MULTILINE)
_CHANNEL: Final = re.compile(r"channel[0-9]{1,7}")
_CAPABILITY: Final = re.compile(r"(\S+)/access\s+([0-9]{1,7})")


_UNREAD: Final = (
    "what containers use of shared GPUs is not known: HAMi-core counts it in memory that only each container "
    "itself can read (--usage-cache private)"
)


class NvidiaContainers(ByAmount):
    """Implements `hami_dra.api.containers.ContainerVendor`."""

    name = "nvidia"
    driver = DRIVER
    reads: tuple[str, ...] = (DISABLED,)

    def sites(self, cards: Sequence[Card]) -> Mapping[str, Site]:
        return sites(cards)

    def edits(self, tenancies: Sequence[Tenancy], place: ContainerPlace, host: Host) -> Edits:
        held = grants(tenancies)
        visible = [uuid for holding in held for uuid in _visible(holding)]
        shown = listed(visible)
        limits = limits_of(held)
        limited = limiting(tenancies, limits, place, host) if limits else Edits()
        cdi, stale = _cdi_devices(held, visible, host)
        files = None if cdi else driver_files(host)
        driver = files or Edits()
        unbrought = () if cdi or files is not None else _runtime_notes(place, host.settings.options)
        nodes = () if cdi else _nodes(held, host)
        return replace(
            limited,
            notes=(*limited.notes, *_hidden_by_instances(held), *stale, *driver.notes, *unbrought),
            env={**driver.env, VISIBLE: NO_HOOK if cdi or files is not None else shown, **limits, **limited.env},
            device_nodes=without_doubles([*driver.device_nodes, *nodes, *_imex_channels(held, host)]),
            mounts=(*driver.mounts, *limited.mounts),
            hooks=driver.hooks,
            cdi_devices=cdi,
        )

    def lacking(self, cards: Sequence[Card], host: Host) -> tuple[Lack, ...]:
        """Return what `edits` would refuse or note: libraries, HAMi-core, requirements of MIG."""
        if not cards or not host.settings.nodes_required:  # a simulated machine has none of them
            return ()
        missing = not_limiting(host)
        limits = [f"{missing}: nothing keeps containers with a share of a GPU to their limits"] if missing else []
        cards_in_parts = [isinstance(card, GpuRecord) and card.mig is not None and card.mig.enabled for card in cards]
        cut = any(cards_in_parts)
        unread = not missing and not all(cards_in_parts) and host.settings.options[USAGE_CACHE] is Keeping.PRIVATE
        return (
            *(Lack(LackKind.LIBRARIES, text) for text in _lacking_libraries(cards, host)),
            *(Lack(LackKind.PARTITIONS, text) for text in (_lacking_capabilities(host) if cut else ())),
            *(Lack(LackKind.LIMITS, text) for text in limits),
            *([Lack(LackKind.USAGE, _UNREAD)] if unread else ()),
        )


def _visible(holding: Grant) -> list[str]:
    """Return the card itself, or else its instances."""
    card = holding.card
    direct = [tenancy for tenancy in holding.tenancies if tenancy.partition is None]
    if direct:
        return [card.uuid]
    instances = {
        tenancy.partition.id: tenancy.partition.uuid for tenancy in holding.tenancies if tenancy.partition is not None
    }
    if not all(instances.values()):
        raise Unpreparable(
            f"card {card.index} ({card.uuid}): a MIG instance has no compute instance yet; its claim must be prepared again"
        )
    return list(instances.values())


def _hidden_by_instances(held: Sequence[Grant]) -> tuple[str, ...]:
    """Describe what CUDA hides of the devices (MIG User Guide, "CUDA Device Enumeration")."""
    instances = [holding.card.index for holding in held if is_instance(holding)]
    if len(instances) in (0, len(held)):
        return ()
    note = (
        f"a container has MIG instances (of GPU {', '.join(map(str, instances))}) and other GPUs: CUDA shows a program one MIG instance and "
        "nothing else, unless CUDA_VISIBLE_DEVICES names other GPUs; use a container for each of the two"
    )
    return (note,)


# --- cards ----------------------------------------------------------------------------------------


def _cdi_devices(held: Sequence[Grant], visible: Sequence[str], host: Host) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the cards' CDI names, empty unless all have one; and notes about outdated devices."""
    cards = {holding.card.uuid: holding.card for holding in held}
    offered = host.cdi_devices
    found, notes = [], []
    for uuid in visible:
        card = cards.get(uuid)
        names_of = (uuid,) if card is None else (uuid, str(card.index))
        known = [name for name in (f"{CDI_KIND}={each}" for each in names_of) if name in offered]
        stale = {name: why for name in known if (why := _stale(offered[name], card, host))}
        notes += [f"CDI device {name} of {offered[name].file} is not used: {why}" for name, why in stale.items()]
        good = [name for name in known if name not in stale]
        if not good:
            return (), tuple(notes)
        found.append(good[0])
    return tuple(found), tuple(notes)


def _stale(device: CdiDevice, card: Card | None, host: Host) -> str:
    """Return why the specification is for another state of the machine; empty if none shows."""
    loaded = loaded_version(host)
    libraries = library_versions(device.mounts)
    if loaded and libraries and loaded not in libraries:
        return (
            f"it brings libraries of driver {', '.join(sorted(libraries))}, and {loaded} is loaded; write the file again (nvidia-ctk cdi "
            "generate)"
        )
    own = {node for node in device.device_nodes if _OWN_NODE.fullmatch(node)}
    if card is not None and own and f"/dev/nvidia{node_number(card)}" not in own:
        return f"it brings {', '.join(sorted(own))}, which is another GPU now; write the file again (nvidia-ctk cdi generate)"
    return ""


def _runtime_notes(place: ContainerPlace, settings: VendorSettings) -> tuple[str, ...]:
    """Return a note for pods with another runtime, if NVIDIA's runtime must bring the libraries."""
    wanted = settings[LIBRARY_RUNTIME_CLASS]
    others = sorted(place.runtime_classes - {wanted})
    if not wanted or not others:
        return ()
    named = others[0] or "the default runtime"
    note = (
        f"on this node RuntimeClass {wanted} brings NVIDIA's libraries, and the pod runs by {named}: the container starts without "
        f"them; set spec.runtimeClassName: {wanted} in the pod, or vendors.nvidia.podRuntimeClassName in the chart"
    )
    return (note,)


def _lacking_libraries(cards: Sequence[Card], host: Host) -> list[str]:
    """Return the problems of CDI devices of these cards, and why no source brings libraries."""
    held = [Grant(card=card, tenancies=()) for card in cards]
    cdi, stale = _cdi_devices(held, [card.uuid for card in cards], host)
    if cdi:
        return []
    try:
        files = driver_files(host)
    except Unpreparable as error:
        return [*stale, str(error)]
    return [*stale, *(files.notes if files is not None else ())]


def _lacking_capabilities(host: Host) -> list[str]:
    """Return what prevents this driver from creating MIG instances, or programs from using them."""
    found = []
    if not host.exists(MIG_CONFIG):
        found.append(
            f"MIG instances can neither be created nor listed: this driver does not see {MIG_CONFIG}; NVIDIA's container runtime hides "
            "it unless the driver's container has NVIDIA_MIG_CONFIG_DEVICES=all and is privileged"
        )
    if not _CAPABILITY_MAJOR.search(host.read(DEVICES) or "") or not host.read(CAPABILITIES):
        found.append(
            f"no program could open a MIG instance: {DEVICES} or {CAPABILITIES} do not tell the numbers of nvidia-caps; load NVIDIA's "
            "kernel driver with MIG capabilities"
        )
    return found


def _imex_channels(held: Sequence[Grant], host: Host) -> tuple[DeviceNode, ...]:
    """Return the host's IMEX channels, by which whole GPUs of several nodes share memory."""
    if not host.settings.options[IMEX_CHANNELS] or not all(holding.whole for holding in held):
        return ()
    folder = host.settings.device_folder + IMEX.removeprefix("/dev")
    channels = [name for name in host.names(folder) if _CHANNEL.fullmatch(name)]
    return optional_nodes(host, [f"{IMEX}/{name}" for name in channels])


def _nodes(held: Sequence[Grant], host: Host) -> tuple[DeviceNode, ...]:
    nodes: list[DeviceNode] = []
    for holding in held:
        number = node_number(holding.card)
        nodes += needed_nodes(host, holding.card, (f"/dev/nvidia{number}", *CONTROL_NODES))
        for tenancy in holding.tenancies:
            if isinstance(tenancy.partition, MigInstance):
                instance = f"gpu{number}/gi{tenancy.partition.id}"
                compute = f"{instance}/ci{tenancy.partition.compute_instance_id}"
                nodes += _capability_nodes(host, holding.card, (instance, compute))
    return without_doubles([*nodes, *optional_nodes(host, OTHER_NODES)])


def _capability_nodes(host: Host, card: Card, wanted: Sequence[str]) -> list[DeviceNode]:
    """Return the nodes that open a MIG instance to a program, by their numbers.

    The host needs no such nodes: nvidia-modprobe creates them only on request. Without them CUDA
    finds no device in the container, so unknown numbers are refused.
    """
    minors = dict(_CAPABILITY.findall(host.read(CAPABILITIES) or ""))
    if not host.settings.nodes_required:  # a simulated machine: take the nodes in its folder
        return list(optional_nodes(host, [_capability_path(minors[name]) for name in wanted if name in minors]))
    major = _CAPABILITY_MAJOR.search(host.read(DEVICES) or "")
    missing = [f"{CAPABILITIES} has no {name}/access" for name in wanted if name not in minors]
    if major is None:
        missing.append(f"{DEVICES} has no nvidia-caps")
    if major is None or missing:
        raise Unpreparable(
            f"card {card.index} ({card.uuid}): no program could open its MIG instance, since {' and '.join(missing)}; is NVIDIA's "
            "kernel driver loaded with MIG capabilities, and is /proc what the driver's container sees of the host?"
        )
    return [DeviceNode(_capability_path(minors[name]), numbers=(int(major[1]), int(minors[name]))) for name in wanted]


def _capability_path(minor: str) -> str:
    return f"/dev/nvidia-caps/nvidia-cap{minor}"

"""The edits of a container with NVIDIA cards: shared by HAMi-core, whole, or MIG instances.

Called through the vendor registry. In: tenancies. Out: edits. Pure. Environment and mounts are
those of HAMi's device plugin (D/nvidia/device-plugin/server.go, Allocate), with these differences:

- A container in which nothing is limited (whole cards, MIG instances) gets no HAMi-core at all.
  HAMi preloads it there too, with the card's own memory as the limit.
- Limits are numbered in the order of PCI addresses, whatever the order of the allocation, since
  HAMi-core looks them up by the number of the card. That number is CUDA's, so CUDA is set to count
  by PCI address as NVML does (`CUDA_DEVICE_ORDER`); by default it counts the fastest card first.
- If one card is limited, every other card has a limit too: its own memory. HAMi-core's
  cuDeviceTotalMem_v2 (src/cuda/device.c) returns the limit as it is, so a card without one would
  report 0 bytes.
- If cards differ in cores each has its own limit, under the name that HAMi-core looks up first.
- HAMi-core's files (of its usage, locks) are in a small tmpfs of each container: tenants cannot
  fill the host's disk, touch each other's locks, or mix up usages of containers that get the same
  edits. `Keeping.HOST` puts them on the host, as HAMi does.

NVIDIA's container runtime brings libraries and device nodes of the devices in
`NVIDIA_VISIBLE_DEVICES`. If another source brings the libraries (a CDI device, or `driver_files`)
the variable is `void`, which the runtime takes for nothing to do in legacy mode and in CDI mode
alike (nvidia-container-toolkit internal/config/image); a uuid would be looked up in a CDI
specification that cannot know a MIG instance created after it.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from hami_dra.api import names
from hami_dra.api.containers import (
    CdiDevice,
    ContainerPlace,
    DeviceNode,
    Edits,
    Folder,
    Host,
    HostSettings,
    Keeping,
    Mount,
    Site,
    Tenancy,
    Tmpfs,
    Unpreparable,
)
from hami_dra.api.hardware import Card, MigInstance
from hami_dra.api.nodelacks import Lack, LackKind
from hami_dra.vendors.grants import (
    Grant,
    file_name,
    grants,
    listed,
    needed_nodes,
    node_number,
    optional_nodes,
    without_doubles,
)
from hami_dra.vendors.nvidia import mig
from hami_dra.vendors.nvidia.driver_files import CDI_KIND, VISIBLE, driver_files, library_versions, loaded_version
from hami_dra.vendors.nvidia.publish import sites
from hami_dra.vendors.nvidia.records import GpuRecord
from hami_dra.vendors.nvidia.rules import DRIVER
from hami_dra.vendors.publishing import CORES, MIB

MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT_{}"
CORE_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
CORE_LIMIT_OF: Final = "CUDA_DEVICE_SM_LIMIT_{}"
NO_CORE_LIMIT: Final = 0
DEVICE_ORDER: Final = "CUDA_DEVICE_ORDER"
BY_PCI_ADDRESS: Final = "PCI_BUS_ID"
CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
OVERSUBSCRIBE: Final = "CUDA_OVERSUBSCRIBE"
PRIORITY: Final = "CUDA_TASK_PRIORITY"
CORE_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
LOG_LEVEL: Final = "LIBCUDA_LOG_LEVEL"
DISABLED: Final = "CUDA_DISABLE_CONTROL"
"""Variable by which a container switches its limits off; without effect if they are enforced."""
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
"""Values that Go's strconv.ParseBool takes for true."""

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

LOCKS: Final = "/tmp/vgpulock"  # noqa: S108 (HAMi-core's fixed path)
PRELOAD: Final = "/etc/ld.so.preload"
_SEPARATORS: Final = re.compile(r"[\s:]+")
"""Between the names in that file (ld.so(8))."""
READ_WRITE: Final = ("rw", "nosuid", "nodev", "bind")
EVERYBODY: Final = 0o777
"""HAMi's mode for the folder of one container: it runs as any user."""
STICKY: Final = 0o1777
"""For folders shared by containers: no user can remove another user's lock."""
LOCKS_SIZE: Final = 64 << 10
_UNSAID: Final = {PRIORITY: "1", CORE_POLICY: "default", OVERSUBSCRIBE: "false", DISABLED: "false"}
"""HAMi-core's defaults for unset variables (src/multiprocess/multiprocess_memory_limit.c)."""


class NvidiaContainers:
    """Implements `hami_dra.api.containers.ContainerVendor`."""

    name = "nvidia"
    driver = DRIVER
    reads: tuple[str, ...] = (DISABLED,)

    def sites(self, cards: Sequence[Card]) -> Mapping[str, Site]:
        return sites(cards)

    def assign(self, tenancy: Tenancy, held: Sequence[Mapping[str, str]]) -> Mapping[str, str]:  # noqa: ARG002
        """Return no assignment: amounts define everything."""
        return {}

    def edits(self, tenancies: Sequence[Tenancy], place: ContainerPlace, host: Host) -> Edits:
        held = grants(tenancies)
        visible = [uuid for holding in held for uuid in _visible(holding)]
        shown = listed(visible)
        limits = _limits(held)
        limited = _limiting(tenancies, limits, place, host) if limits else Edits()
        cdi, stale = _cdi_devices(held, visible, host)
        files = None if cdi else driver_files(host)
        driver = files.edits if files is not None else Edits()
        unbrought = () if cdi or files is not None else _runtime_notes(place, host.settings)
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
        missing = _not_limiting(host)
        limits = [f"{missing}: nothing keeps containers with a share of a GPU to their limits"] if missing else []
        cut = any(isinstance(card, GpuRecord) and card.mig is not None and card.mig.enabled for card in cards)
        return (
            *(Lack(LackKind.LIBRARIES, text) for text in _lacking_libraries(cards, host)),
            *(Lack(LackKind.PARTITIONS, text) for text in (_lacking_capabilities(host) if cut else ())),
            *(Lack(LackKind.LIMITS, text) for text in limits),
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


# --- limits ---------------------------------------------------------------------------------------


def _is_instance(holding: Grant) -> bool:
    """Return whether the container has MIG instances of the card, and not the card itself."""
    return all(tenancy.partition is not None for tenancy in holding.tenancies)


def _hidden_by_instances(held: Sequence[Grant]) -> tuple[str, ...]:
    """Describe what CUDA hides of the devices (MIG User Guide, "CUDA Device Enumeration")."""
    instances = [holding.card.index for holding in held if _is_instance(holding)]
    if len(instances) in (0, len(held)):
        return ()
    note = (
        f"a container has MIG instances (of GPU {', '.join(map(str, instances))}) and other GPUs: CUDA shows a program one MIG instance and "
        "nothing else, unless CUDA_VISIBLE_DEVICES names other GPUs; use a container for each of the two"
    )
    return (note,)


def _limits(held: Sequence[Grant]) -> dict[str, str]:
    """Return the limits of all cards, or nothing if no card is limited.

    Every card is named, the unlimited ones with all of their memory, to override other edits.
    Cards are numbered without MIG instances, which CUDA never shows together with them. A program
    on an instance has it as its only card, number 0, whose limit is no more than the instance has.
    """
    if not any(_is_limited(holding) for holding in held):
        return {}
    cards = [holding for holding in held if not _is_instance(holding)]
    numbers = range(len(cards))
    cores = {
        number: min(holding.amount(names.CAP_CORES), CORES)
        for number, holding in enumerate(cards)
        if _is_limited(holding) and not holding.whole
    }
    memory = [_mebibytes(holding) for holding in cards]
    memory[0] = min([memory[0], *(_mebibytes(holding) for holding in held if _is_instance(holding))])
    env = {MEMORY_LIMIT.format(number): f"{mebibytes}m" for number, mebibytes in enumerate(memory)}
    if len(cards) > 1:
        env[DEVICE_ORDER] = BY_PCI_ADDRESS
    env[CORE_LIMIT] = str(cores.get(0, NO_CORE_LIMIT))
    if len({cores.get(number, NO_CORE_LIMIT) for number in numbers}) > 1:
        # its own limit of 0 would mean the one above
        env |= {CORE_LIMIT_OF.format(number): str(cores.get(number) or CORES) for number in numbers}
    return env


def _is_limited(holding: Grant) -> bool:
    """Return whether there is something to limit: a share, or an oversubscribed card."""
    if _is_instance(holding):
        return False
    return not holding.whole or _memory(holding) > holding.card.memory


def _memory(holding: Grant) -> int:
    """Return the bytes that the container may use of the card."""
    if _is_instance(holding):
        return min(_instance_memory(holding.card, tenancy.partition) for tenancy in holding.tenancies)
    if not holding.whole:
        return holding.amount(names.CAP_MEMORY)
    # on a node whose memory is scaled up, a request for all of a card takes more than it has
    taken = (tenancy.consumed.get(names.CAP_MEMORY, 0) for tenancy in holding.tenancies if not tenancy.admin)
    return max([holding.card.memory, *taken])


def _instance_memory(card: Card, instance: MigInstance | None) -> int:
    """Return the bytes of a MIG instance; those of the card if its profile is not known."""
    sizes = {profile.id: profile.memory for profile in mig.profiles(card)}
    return sizes.get(instance.profile_id, card.memory) if instance is not None else card.memory


def _mebibytes(holding: Grant) -> int:
    amount = _memory(holding) // MIB
    if amount < 1:  # HAMi-core would take it for no limit
        raise Unpreparable(
            f"card {holding.card.index} ({holding.card.uuid}): a share of less than 1Mi of memory cannot be limited; ask for "
            "at least 1Mi"
        )
    return amount


# --- HAMi-core ------------------------------------------------------------------------------------


def _limiting(tenancies: Sequence[Tenancy], limits: Mapping[str, str], place: ContainerPlace, host: Host) -> Edits:
    """Return the library that limits a container, and the files that it reads and writes.

    An incomplete installation counts as none: runc refuses a mount whose source is missing, and a
    library that is not preloaded from where it is mounted limits nothing.
    """
    settings = host.settings
    folder = _library_folder(settings)
    env = _library_env(tenancies, settings)
    if state := _not_limiting(host):
        return Edits(env=env, notes=(f"{state}: nothing keeps the container to its limits of memory and cores",))
    mounts = _library_mounts(host)
    if not _enforced(tenancies) and place.container_env.get(DISABLED) in _TRUE:
        mounts = [mount for mount in mounts if mount.container != PRELOAD]
    written = [_locks(settings), _usage(place, settings, folder)]
    env[CACHE] = f"{folder}/{_cache_name(place, limits)}.cache"
    return Edits(
        env=env,
        tmpfs=tuple(each for each in written if isinstance(each, Tmpfs)),
        folders=tuple(each[0] for each in written if not isinstance(each, Tmpfs)),
        mounts=(*(each[1] for each in written if not isinstance(each, Tmpfs)), *mounts),
    )


def _library_folder(settings: HostSettings) -> str:
    return f"{settings.library_folder.rstrip('/')}/vgpu"


def _library_mounts(host: Host) -> list[Mount]:
    """Return all mounts of HAMi-core, the library first."""
    folder, version = _library_folder(host.settings), host.settings.library_version
    library = f"{folder}/libvgpu.so"
    on_host = f"{library}.{file_name(version)}" if version else library
    mounts = [Mount(on_host, library), Mount(f"{folder}/ld.so.preload", PRELOAD)]
    if host.exists(f"{folder}/license"):
        mounts.append(Mount(f"{folder}/license", "/tmp/license"))  # noqa: S108 (inside the container)
        mounts.append(Mount(f"{folder}/vgpuvalidator", "/usr/bin/vgpuvalidator"))
    return mounts


def _not_limiting(host: Host) -> str:
    """Return why HAMi-core would limit nothing: not installed or not preloaded; else empty."""
    library, preload, *others = _library_mounts(host)
    missing = [mount.host for mount in (library, preload, *others) if not host.exists(mount.host)]
    if library.host in missing:
        return f"HAMi-core is not installed ({library.host})"
    if missing:
        return f"HAMi-core is installed in part only ({', '.join(missing)} is missing)"
    named = host.read(preload.host)
    if named is not None and library.container not in _SEPARATORS.split(named):
        return f"HAMi-core is not preloaded ({preload.host} does not name {library.container})"
    return ""


_Written = Tmpfs | tuple[Folder, Mount]
"""Where the container may write: in memory, or a folder of the host and where it is mounted."""


def _locks(settings: HostSettings) -> _Written:
    """Return the place of locks, which HAMi-core takes to look for its process in NVML's list."""
    if settings.lock_folder is Keeping.PRIVATE:
        return Tmpfs(LOCKS, LOCKS_SIZE)
    return Folder(LOCKS, STICKY, per_view=False), Mount(LOCKS, LOCKS, READ_WRITE)


def _usage(place: ContainerPlace, settings: HostSettings, folder: str) -> _Written:
    """Return the place of the usage file, which has processes by their number in one container."""
    if settings.usage_cache is Keeping.PRIVATE or place.is_shared:
        return Tmpfs(folder, settings.usage_cache_size)
    own = f"{folder}/containers/{_folder_name(place)}"
    return Folder(own, EVERYBODY), Mount(own, folder, READ_WRITE)


def _cache_name(place: ContainerPlace, limits: Mapping[str, str]) -> str:
    """Return another name if the cards of a container have other numbers than before a restart.

    HAMi-core prefers an existing file to the variables (try_create_shrreg in
    src/multiprocess/multiprocess_memory_limit.c), and a file on the host outlives the container.
    """
    if MEMORY_LIMIT.format(1) not in limits:
        return file_name(place.view)
    digest = hashlib.sha256(repr(sorted(limits.items())).encode()).hexdigest()
    return file_name(f"{place.view}-{digest[:8]}")


def _enforced(tenancies: Sequence[Tenancy]) -> bool:
    return any(tenancy.parameters.limits == "enforced" for tenancy in tenancies)


def _folder_name(place: ContainerPlace) -> str:
    """Return the name that HAMi's monitor reads; it deletes folders that do not name a pod."""
    known = place.pod_uids and place.containers
    return file_name(f"{place.pod_uids[0]}_{place.containers[0]}" if known else place.view)


def _library_env(tenancies: Sequence[Tenancy], settings: HostSettings) -> dict[str, str]:
    env = {}
    if settings.memory_scaling > 1:
        env[OVERSUBSCRIBE] = "true"
    if settings.log_level:
        env[LOG_LEVEL] = settings.log_level
    priorities = [tenancy.parameters.priority for tenancy in tenancies if tenancy.parameters.priority is not None]
    if priorities:
        env[PRIORITY] = str(min(priorities))
    policies = {tenancy.parameters.core_policy for tenancy in tenancies} - {None, "default"}
    if not settings.core_limits:
        env[CORE_POLICY] = "disable"
    elif policies:
        env[CORE_POLICY] = "force" if "force" in policies else "disable"
    if _enforced(tenancies):  # the container's own values would count if nothing is set here
        env = {**_UNSAID, **env}
    return env


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


def _runtime_notes(place: ContainerPlace, settings: HostSettings) -> tuple[str, ...]:
    """Return a note for pods with another runtime, if NVIDIA's runtime must bring the libraries."""
    wanted = settings.library_runtime_class
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
    return [*stale, *(files.edits.notes if files is not None else ())]


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
    if not host.settings.imex_channels or not all(holding.whole for holding in held):
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
            if tenancy.partition is not None:
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

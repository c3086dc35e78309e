"""HAMi-core, the library that limits containers with shares of NVIDIA cards: its variables, mounts and files.

Called by `containers`. In: grants and tenancies of one container. Out: environment and edits. Pure.
As in HAMi's device plugin (D/nvidia/device-plugin/server.go, Allocate), with these differences:

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
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

from hami_dra.api import names
from hami_dra.api.booleans import parse_bool
from hami_dra.api.containers import ContainerPlace, Edits, Folder, Host, Mount, Tenancy, Tmpfs, Unpreparable
from hami_dra.api.hardware import Card, PartitionInstance
from hami_dra.api.options import VendorSettings
from hami_dra.vendors.grants import Grant, file_name
from hami_dra.vendors.nvidia import mig, options
from hami_dra.vendors.nvidia.records import MigInstance
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
_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})(?![0-9.])")
_SHARED_LOCKS: Final = (2, 8, 0)
"""The last version that takes the PID that is new in NVML's list for its own (`set_task_pid`)."""
_UNSAID: Final = {PRIORITY: "1", CORE_POLICY: "default", OVERSUBSCRIBE: "false", DISABLED: "false"}
"""HAMi-core's defaults for unset variables (src/multiprocess/multiprocess_memory_limit.c)."""


# --- limits ---------------------------------------------------------------------------------------


def is_instance(holding: Grant) -> bool:
    """Return whether the container has MIG instances of the card, and not the card itself."""
    return all(tenancy.partition is not None for tenancy in holding.tenancies)


def limits_of(held: Sequence[Grant]) -> dict[str, str]:
    """Return the limits of all cards, or nothing if no card is limited.

    Every card is named, the unlimited ones with all of their memory, to override other edits.
    Cards are numbered without MIG instances, which CUDA never shows together with them. A program
    on an instance has it as its only card, number 0, whose limit is no more than the instance has.
    """
    if not any(_is_limited(holding) for holding in held):
        return {}
    cards = [holding for holding in held if not is_instance(holding)]
    numbers = range(len(cards))
    cores = {
        number: min(holding.amount(names.CAP_CORES), CORES)
        for number, holding in enumerate(cards)
        if _is_limited(holding) and not holding.whole
    }
    memory = [_mebibytes(holding) for holding in cards]
    memory[0] = min([memory[0], *(_mebibytes(holding) for holding in held if is_instance(holding))])
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
    if is_instance(holding):
        return False
    return not holding.whole or _memory(holding) > holding.card.memory


def _memory(holding: Grant) -> int:
    """Return the bytes that the container may use of the card."""
    if is_instance(holding):
        return min(_instance_memory(holding.card, tenancy.partition) for tenancy in holding.tenancies)
    if not holding.whole:
        return holding.amount(names.CAP_MEMORY)
    # on a node whose memory is scaled up, a request for all of a card takes more than it has
    taken = (tenancy.consumed.get(names.CAP_MEMORY, 0) for tenancy in holding.tenancies if not tenancy.admin)
    return max([holding.card.memory, *taken])


def _instance_memory(card: Card, instance: PartitionInstance | None) -> int:
    """Return the bytes of a MIG instance; those of the card if its profile is not known."""
    sizes = {profile.id: profile.memory for profile in mig.profiles(card)}
    return sizes.get(instance.profile_id, card.memory) if isinstance(instance, MigInstance) else card.memory


def _mebibytes(holding: Grant) -> int:
    amount = _memory(holding) // MIB
    if amount < 1:  # HAMi-core would take it for no limit
        raise Unpreparable(
            f"card {holding.card.index} ({holding.card.uuid}): a share of less than 1Mi of memory cannot be limited; ask for "
            "at least 1Mi"
        )
    return amount


# --- HAMi-core ------------------------------------------------------------------------------------


def limiting(tenancies: Sequence[Tenancy], limits: Mapping[str, str], place: ContainerPlace, host: Host) -> Edits:
    """Return the library that limits a container, and the files that it reads and writes.

    An incomplete installation counts as none: runc refuses a mount whose source is missing, and a
    library that is not preloaded from where it is mounted limits nothing.
    """
    settings = host.settings.options
    folder = _library_folder(settings)
    env = _library_env(tenancies, settings)
    if state := not_limiting(host):
        return Edits(env=env, notes=(f"{state}: nothing keeps the container to its limits of memory and cores",))
    mounts = _library_mounts(host)
    if not _enforced(tenancies) and parse_bool(place.container_env.get(DISABLED, "")):
        mounts = [mount for mount in mounts if mount.container != PRELOAD]
    written = [_locks(settings), _usage(place, settings, folder)]
    env[CACHE] = f"{folder}/{_cache_name(place, limits)}.cache"
    return Edits(
        env=env,
        notes=(*_priority_notes(tenancies, limits, env, settings, place), *_lock_notes(settings)),
        tmpfs=tuple(each for each in written if isinstance(each, Tmpfs)),
        folders=tuple(each[0] for each in written if not isinstance(each, Tmpfs)),
        mounts=(*(each[1] for each in written if not isinstance(each, Tmpfs)), *mounts),
    )


def _priority_notes(
    tenancies: Sequence[Tenancy],
    limits: Mapping[str, str],
    env: Mapping[str, str],
    settings: VendorSettings,
    place: ContainerPlace,
) -> tuple[str, ...]:
    """Return why a priority that was asked for makes the container wait for nobody (`priority`)."""
    priority = min((each for tenancy in tenancies if (each := tenancy.parameters.priority) is not None), default=0)
    if priority == 0:  # the most important, which waits for nobody
        return ()
    cores = {limits[name] for name in limits if name.startswith(CORE_LIMIT)}
    if settings[options.USAGE_CACHE] is options.Keeping.PRIVATE or place.is_shared:
        why = "its usage file is in its own memory: set usageCache: host, and use a claim that is generated for the pod"
    elif cores <= {str(NO_CORE_LIMIT), str(CORES)} or env.get(CORE_POLICY) == "disable":
        why = "HAMi-core since v2.8.1 makes only containers with a limit of cores wait: ask for cores below 100"
    else:
        return ()
    return (f"priority {priority} has no effect on the container: {why}",)


def _lock_notes(settings: VendorSettings) -> tuple[str, ...]:
    version = _VERSION.match(settings[options.LIBRARY_VERSION])
    if (
        version is None
        or tuple(map(int, version.groups())) > _SHARED_LOCKS
        or settings[options.LOCK_FOLDER] is options.Keeping.HOST
    ):
        return ()
    note = (
        f"HAMi-core {settings[options.LIBRARY_VERSION]} finds its process under a lock that all containers of the node must share: containers "
        "that start CUDA together may be limited by each other's use; set lockFolder: host, or install v2.8.1 or newer"
    )
    return (note,)


def _library_folder(settings: VendorSettings) -> str:
    return f"{settings[options.LIBRARY_FOLDER].rstrip('/')}/vgpu"


def containers_folder(settings: VendorSettings) -> str:
    """Return the folder of the host with a folder for each container (`Keeping.HOST`)."""
    return f"{_library_folder(settings)}/containers"


def library_path(settings: VendorSettings) -> str:
    """Return the path of the library on the host; in a container it has no version."""
    library, version = f"{_library_folder(settings)}/libvgpu.so", settings[options.LIBRARY_VERSION]
    return f"{library}.{file_name(version)}" if version else library


def preload_file(settings: VendorSettings) -> tuple[str, bytes]:
    """Return the path on the host of the file that preloads the library, and its content."""
    folder = _library_folder(settings)
    return f"{folder}/ld.so.preload", f"{folder}/libvgpu.so\n".encode()


def _library_mounts(host: Host) -> list[Mount]:
    """Return all mounts of HAMi-core, the library first."""
    settings = host.settings.options
    folder = _library_folder(settings)
    mounts = [Mount(library_path(settings), f"{folder}/libvgpu.so"), Mount(preload_file(settings)[0], PRELOAD)]
    if host.exists(f"{folder}/license"):
        mounts.append(Mount(f"{folder}/license", "/tmp/license"))  # noqa: S108 (inside the container)
        mounts.append(Mount(f"{folder}/vgpuvalidator", "/usr/bin/vgpuvalidator"))
    return mounts


def not_limiting(host: Host) -> str:
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


def _locks(settings: VendorSettings) -> _Written:
    """Return the place of locks, which HAMi-core takes to look for its process in NVML's list."""
    if settings[options.LOCK_FOLDER] is options.Keeping.PRIVATE:
        return Tmpfs(LOCKS, LOCKS_SIZE)
    return Folder(LOCKS, STICKY, per_view=False), Mount(LOCKS, LOCKS, READ_WRITE)


def _usage(place: ContainerPlace, settings: VendorSettings, folder: str) -> _Written:
    """Return the place of the usage file, which has processes by their number in one container."""
    if settings[options.USAGE_CACHE] is options.Keeping.PRIVATE or place.is_shared:
        return Tmpfs(folder, settings[options.USAGE_CACHE_SIZE])
    own = f"{containers_folder(settings)}/{_folder_name(place)}"
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


def _library_env(tenancies: Sequence[Tenancy], settings: VendorSettings) -> dict[str, str]:
    env = {}
    if settings[options.MEMORY_SCALING] > 1:
        env[OVERSUBSCRIBE] = "true"
    if settings[options.LIBRARY_LOG_LEVEL]:
        env[LOG_LEVEL] = settings[options.LIBRARY_LOG_LEVEL]
    priorities = [tenancy.parameters.priority for tenancy in tenancies if tenancy.parameters.priority is not None]
    if priorities:
        env[PRIORITY] = str(min(priorities))
    policies = {tenancy.parameters.core_policy for tenancy in tenancies} - {None, "default"}
    if not settings[options.CORE_LIMITS]:
        env[CORE_POLICY] = "disable"
    elif policies:
        env[CORE_POLICY] = "force" if "force" in policies else "disable"
    if _enforced(tenancies):  # the container's own values would count if nothing is set here
        env = {**_UNSAID, **env}
    return env

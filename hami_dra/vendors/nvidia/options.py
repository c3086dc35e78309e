"""What an operator chooses for NVIDIA's cards: how they are shared, HAMi-core, libraries, IMEX."""

from enum import StrEnum
from fractions import Fraction
from typing import Final

from hami_dra.api.options import VendorOption, absolute_path, fraction, matching, one_of, size, switch
from hami_dra.vendors.options import DRIVER_ROOT, DRIVER_ROOT_MOUNT, SLOTS
from hami_dra.vendors.publishing import CORES


class Keeping(StrEnum):
    """The place of a folder that containers write to."""

    PRIVATE = "private"
    """In a small tmpfs of each container: private, and not on the host's disks."""
    HOST = "host"
    """On the host."""


MEMORY_SCALING: Final = VendorOption(
    name="memory-scaling",
    field="memoryScaling",
    default="1",
    read=fraction(),
    help="Memory offered / physical memory (HAMi's deviceMemoryScaling); above 1 it is oversubscribed. Not in MIG mode.",
)
CORE_SCALING: Final = VendorOption(
    name="core-scaling",
    field="coreScaling",
    default="1",
    read=fraction(Fraction(1, CORES)),
    help="Cores offered / physical cores (HAMi's deviceCoreScaling). Not in MIG mode.",
)
LIBRARY_FOLDER: Final = VendorOption(
    name="library-folder",
    default="/usr/local",
    read=absolute_path,
    envvar="HOOK_PATH",
    help="Directory on the node in which limiting libraries are installed.",
)
LIBRARY_VERSION: Final = VendorOption(
    name="library-version",
    default="",
    read=matching(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", "a version, such as v2.9.0"),
    help="Version of the library, if several are installed side by side.",
)
LIBRARY_LOG_LEVEL: Final = VendorOption(
    name="library-log-level",
    default="",
    read=matching(r"[0-9]", "a level from 0 to 9"),
    help="Log level of the library; empty: its own default.",
)
CORE_LIMITS: Final = VendorOption(
    name="core-limits",
    default=True,
    read=switch,
    help="Whether shares of cores are enforced, or only counted (HAMi's disableCoreLimit).",
)
USAGE_CACHE: Final = VendorOption(
    name="usage-cache",
    default="private",
    read=one_of(Keeping),
    choices=tuple(Keeping),
    help="HAMi-core's usage file. private: in a small tmpfs of each container. host: in a folder of the node, which "
    "HAMi's monitor can read, and which a container can fill.",
)
USAGE_CACHE_SIZE: Final = VendorOption(
    name="usage-cache-size",
    default="16Mi",
    read=size("4Mi", "1Gi"),
    help="Size limit of that tmpfs; HAMi-core's file needs 4Mi.",
)
PRIORITY_FEEDBACK: Final = VendorOption(
    name="priority-feedback",
    default=True,
    read=switch,
    help="With --usage-cache host: containers of a less important priority, with a limit of cores, wait while others compute "
    "on their cards. Off: where HAMi's monitor does that.",
)
LOCK_FOLDER: Final = VendorOption(
    name="lock-folder",
    default="private",
    read=one_of(Keeping),
    choices=tuple(Keeping),
    help="HAMi-core's locks. private: in a small tmpfs of each container. host: in /tmp/vgpulock, which all containers of "
    "the node share: for HAMi-core up to v2.8.0, whose processes start one after the other.",
)
CDI_HOOK: Final = VendorOption(
    name="cdi-hook",
    default="",
    read=absolute_path,
    help="Path of nvidia-cdi-hook on the node; default: searched for if the driver root is /.",
)
LIBRARY_RUNTIME_CLASS: Final = VendorOption(
    name="library-runtime-class",
    default="",
    read=matching(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "the name of a RuntimeClass"),
    help="RuntimeClass that gives pods NVIDIA's libraries; default: the node's default runtime provides them.",
)
IMEX_CHANNELS: Final = VendorOption(
    name="imex-channels",
    default=False,
    read=switch,
    help="Give the node's IMEX channels to containers with whole GPUs, which can then share GPU memory with each other.",
)
OPTIONS: Final = (
    SLOTS, MEMORY_SCALING, CORE_SCALING, LIBRARY_FOLDER, LIBRARY_VERSION, LIBRARY_LOG_LEVEL, CORE_LIMITS,
    USAGE_CACHE, USAGE_CACHE_SIZE, PRIORITY_FEEDBACK, LOCK_FOLDER, DRIVER_ROOT, DRIVER_ROOT_MOUNT, CDI_HOOK,
    LIBRARY_RUNTIME_CLASS, IMEX_CHANNELS,
)  # fmt: skip

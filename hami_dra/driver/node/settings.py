"""Settings of the node driver. Created by the CLI and by tests; raises ConfigError, which names the option."""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol, get_args

from msgspec import Struct, field

from hami_dra.api.core import Node
from hami_dra.api.errors import ConfigError
from hami_dra.api.flags import ABSOLUTE_PATH, NODE_NAME, POD_UID, Form, Option, duration
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.api.options import VendorSettings
from hami_dra.api.resource import ResourceClaim
from hami_dra.driver.fence import FENCE, FenceMode
from hami_dra.driver.slices import Pool
from hami_dra.vendors.faults import FaultKind

Effect = Literal["NoSchedule", "NoExecute", "None"]
"""`None`: the device carries the taint, and it has no effect (Kubernetes' own word)."""

EFFECTS: Final[Mapping[FaultKind, Effect]] = {
    FaultKind.LOST: "NoExecute",
    FaultKind.XID: "NoSchedule",
    FaultKind.MEMORY: "NoSchedule",
    FaultKind.UNHEALTHY: "NoSchedule",
}
"""Default effects. A pod on a lost card can only be restarted on another one. A card with any other
fault may still work: no new pods are placed there, and none is evicted.
"""


class DeviceRanking(Protocol):
    """Rank the devices of a pool in native mode, where kube-scheduler takes the first that fit.

    The driver knows no policies: the command that starts it passes a ranking of the controller's.
    """

    def __call__(self, pool: Pool, node: Node, claims: Collection[ResourceClaim]) -> dict[str, int]:
        """Return the rank of each card by its uuid; a card without a rank keeps its own order."""


class OnExit(StrEnum):
    KEEP = "keep"
    WITHDRAW = "withdraw"


_NATIVE: Final = Form(
    read="native".__eq__, write={True: "native", False: "exclusive"}.__getitem__, choices=("exclusive", "native")
)


def _effects(written: Sequence[str]) -> Mapping[FaultKind, Effect]:
    """Read KIND=EFFECT; other kinds have their defaults. Raises ValueError."""
    kinds = {kind.value: kind for kind in FaultKind}
    effects: dict[str, Effect] = {effect: effect for effect in get_args(Effect)}
    of_kind = dict(EFFECTS)
    for option in written:
        kind, _, effect = option.partition("=")
        if kind not in kinds or effect not in effects:
            raise ValueError(
                f"{option!r} is not KIND=EFFECT with a kind of {', '.join(kinds)} and an effect of {', '.join(effects)}"
            )
        of_kind[kinds[kind]] = effects[effect]
    return of_kind


class NodeSettings(Struct, frozen=True, kw_only=True):
    """Settings of the node driver. Times are in seconds."""

    node: Annotated[str, Option("The Node that this machine is.", NODE_NAME, envvar="NODE_NAME")] = ""
    native: Annotated[
        bool,
        Option(
            "The controller's --mode. native: devices are ordered for kube-scheduler's first fit.",
            _NATIVE,
            flags=("--mode",),
        ),
    ] = False
    ranking: DeviceRanking | None = None
    """Ranks the devices in native mode; None: by index."""
    options: VendorSettings = field(default_factory=VendorSettings)
    """Those that vendors declare."""
    fence: Annotated[FenceMode, FENCE] = "auto"
    beside_plugin: Annotated[
        bool, Option("Publish even if a device plugin offers the same devices.", flags=("--publish-beside-plugin",))
    ] = False
    effects: Annotated[
        Mapping[FaultKind, Effect],
        Option(
            "Effect of a kind of failure on a device. Kinds: lost (NoExecute), xid, memory-error, unhealthy (NoSchedule). "
            "Effects: NoSchedule, NoExecute, None. May be repeated.",
            Form(read=_effects, repeated=True),
            flags=("--taint-effect",),
            metavar="KIND=EFFECT",
        ),
    ] = field(default_factory=lambda: dict(EFFECTS))
    discover_every: Annotated[float, Option("Time between two discoveries of the hardware.", duration())] = 300.0
    health_every: Annotated[float, Option("Time between two health checks of the devices.", duration())] = 10.0
    check_claims_every: Annotated[
        float,
        Option(
            "Time between two checks that prepared claims still exist in the API server (one GET each).", duration()
        ),
    ] = 300.0
    monitor_interval: Annotated[
        float,
        Option(
            "Time between two readings of the devices' sensors (memory, temperature, ...) for /metrics; 0: never.",
            duration(least=0),
        ),
    ] = 15.0
    legacy_metrics: Annotated[
        frozenset[NameSet],
        Option(
            "Also export what containers use under the names of HAMi's monitor: hami (hami_vgpu_*, hami_container_*), "
            "hami-2.7 (vGPU_device_memory_usage_in_bytes, ...); may be repeated.",
            metavar="NAMES",
        ),
    ] = frozenset()
    recovery_time: Annotated[
        float,
        Option(
            "How long a fault must be absent before it counts as over; doubled each time it recurs.", duration(least=0)
        ),
    ] = 60.0
    confirm_time: Annotated[
        float, Option("How long a fault must last before it may evict pods (NoExecute).", duration(least=0))
    ] = 30.0
    """A tool may fail for a moment."""
    on_exit: Annotated[
        OnExit, Option("Slices at exit. keep: for the driver's next start; kubelet removes them if it does not start.")
    ] = OnExit.KEEP
    root: Annotated[Path, Option("kubelet's root directory.", ABSOLUTE_PATH)] = Path("/var/lib/kubelet")
    instance: Annotated[
        str,
        Option(
            "UID of the driver's pod: two may serve at the same time during an update.",
            POD_UID,
            flags=("--instance-uid",),
            envvar="POD_UID",
        ),
    ] = ""

    def __post_init__(self) -> None:
        if not self.node:
            raise ConfigError("--node: which node is this? Name it, or set NODE_NAME from the pod's spec.nodeName")

    @property
    def fence_mode(self) -> FenceMode:
        """Return the fence mode. In native mode kube-scheduler allocates, so it is not fenced off."""
        return "off" if self.native else self.fence

    @property
    def plugins_dir(self) -> Path:
        return self.root / "plugins"

    @property
    def registry_dir(self) -> Path:
        return self.root / "plugins_registry"

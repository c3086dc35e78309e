"""Settings of the node driver. Created by the CLI and by tests; raises ConfigError, which names the option."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal, Protocol

from msgspec import Struct, field

from hami_dra.api.core import Node
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.api.options import VendorSettings
from hami_dra.api.resource import ResourceClaim
from hami_dra.driver.fence import FenceMode
from hami_dra.driver.slices import Pool
from hami_dra.kube.protocol import ConfigError
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


class NodeSettings(Struct, frozen=True, kw_only=True):
    """Settings of the node driver. Times are in seconds."""

    node: str
    instance: str = ""
    """Uid of the driver's pod: distinguishes the two drivers on the node during a rolling update."""
    root: Path = Path("/var/lib/kubelet")
    """kubelet's `--root-dir`."""
    native: bool = False
    ranking: DeviceRanking | None = None
    """Ranks the devices in native mode; None: by index."""
    options: VendorSettings = field(default_factory=VendorSettings)
    """Those that vendors declare."""
    fence: FenceMode = "auto"
    beside_plugin: bool = False
    """Publish although a device plugin advertises the same cards."""
    effects: Mapping[FaultKind, Effect] = field(default_factory=lambda: dict(EFFECTS))
    discover_every: float = 300.0
    health_every: float = 10.0
    check_claims_every: float = 300.0
    """Interval of checks whether the prepared claims still exist."""
    monitor_interval: float = 15.0
    """Interval of the cards' readings; 0 disables monitoring."""
    legacy_metrics: frozenset[NameSet] = frozenset()
    """Names of HAMi's monitor under which the use by containers is exported too."""
    recovery_time: float = 60.0
    """How long a fault must be absent until it is over."""
    confirm_time: float = 30.0
    """How long a fault must last until it evicts pods: a tool may fail for a moment."""
    on_exit: OnExit = OnExit.KEEP

    def __post_init__(self) -> None:
        if not self.node:
            raise ConfigError("--node: which node is this? Name it, or set NODE_NAME from the pod's spec.nodeName")
        for name in ("discover_every", "health_every", "check_claims_every"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"--{name.replace('_', '-')}: must be more than 0")
        if self.monitor_interval < 0:
            raise ConfigError("--monitor-interval: must be 0 (disabled) or more")

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

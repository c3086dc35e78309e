"""All settings of the controller, in one frozen object. Created by the CLI, demo and tests.

Those that need nothing that decides are in `controller.settings.controller`. All durations are
seconds. A contradiction prevents the start (ConfigError).
"""

from enum import StrEnum

from msgspec import Struct, field

from controller.decide import Options
from controller.gangs import Source
from controller.scoring import Policies
from controller.settings.controller import (
    BindingSettings,
    FenceSettings,
    LeadershipSettings,
    ObservabilitySettings,
    QueueingSettings,
    RepairSettings,
)
from controller.settings.placing import DEFAULT_SCHEDULER, ControllerPreemption
from hami_dra.api.errors import ConfigError
from hami_dra.vendors.profiles import BUILT_IN_PROFILES, DriverProfiles


class Mode(StrEnum):
    EXCLUSIVE = "exclusive"
    """The controller is the only writer of allocations; the fence keeps kube-scheduler's allocator off."""
    NATIVE = "native"
    """kube-scheduler allocates; the controller observes, accounts, and removes leftovers of exclusive mode."""


class SelectorLimits(Struct, frozen=True):
    """CPU seconds that evaluating selectors may take. A reasonable one takes 1 to 4 microseconds a device."""

    slice: float = 0.02
    """Without interruption; then other pods get their turn."""
    expression: float = 1.0
    """One selector of a claim, on all devices."""
    claim: float = 2.0
    """All selectors of the claims of a pod, until it is decided."""
    device_class: float = 10.0
    """One selector of a DeviceClass, on all devices."""
    namespace: float = 6.0
    """All selectors of the claims of a namespace, per minute; the rest waits."""
    retry_first: float = 60.0
    """Seconds after which a claim that took too long is evaluated again; doubles each time up to `retry_most`."""
    retry_most: float = 3600.0


class DriverSettings(Struct, frozen=True):
    """Which devices are allocated here."""

    mode: Mode = Mode.EXCLUSIVE
    managed: frozenset[str] = frozenset()
    """Drivers whose devices only this controller allocates."""
    own_drivers: frozenset[str] = frozenset()
    """The managed drivers that publish the fence taint themselves if the cluster has no DeviceTaintRule."""
    profiles: DriverProfiles = BUILT_IN_PROFILES
    """How devices of other drivers are read (`--manage-profile`)."""

    def __post_init__(self) -> None:
        """Check the settings. Raises ConfigError."""
        if self.mode is Mode.EXCLUSIVE and not self.managed:
            raise ConfigError("exclusive mode needs at least one managed driver (--manage)")


class SchedulingSettings(Struct, frozen=True):
    """Which pods are decided, and how."""

    scheduler_names: frozenset[str] = DEFAULT_SCHEDULER
    """Pods of other schedulers are ignored."""
    gate: bool = True
    """False: our gate is removed from pods at once; allocation works without it."""
    gang_sources: frozenset[Source] = frozenset()
    """Optional kinds of groups of pods that count as gangs (`gangs.OPTIONAL_SOURCES`)."""
    policies: Policies = Policies()
    options: Options = field(default_factory=Options)
    """Passed to `decide`; the managed drivers and `search_steps` replace those in it."""
    selectors: SelectorLimits = SelectorLimits()
    search_steps: int = 20_000
    """Steps of the search on one node (0.1 s in total, in slices); `simulate` allows five times that."""


class Settings(Struct, frozen=True, kw_only=True):
    """All settings, in groups by who reads them."""

    drivers: DriverSettings
    scheduling: SchedulingSettings = SchedulingSettings()
    preemption: ControllerPreemption = ControllerPreemption()
    queueing: QueueingSettings = QueueingSettings()
    binding: BindingSettings = BindingSettings()
    fence: FenceSettings = FenceSettings()
    repair: RepairSettings = RepairSettings()
    observability: ObservabilitySettings = ObservabilitySettings()
    leadership: LeadershipSettings = LeadershipSettings()

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        for option, is_on in (("--preemption=devices", self.preempts), ("--defrag=execute", self.defragments)):
            if is_on and self.drivers.mode is not Mode.EXCLUSIVE:
                raise ConfigError(f"{option} needs --mode=exclusive: in native mode kube-scheduler allocates")
        if self.defragments and not self.preemption.save_after:
            raise ConfigError(
                "--defrag=execute needs --save-after: how long a pod or gang waits before others move for it"
            )

    @property
    def preempts(self) -> bool:
        """Whether pods are evicted for others of higher priority."""
        return self.preemption.preemption

    @property
    def defragments(self) -> bool:
        """Whether pods move to make room for others."""
        return self.preemption.defrag

    @property
    def evicts(self) -> bool:
        return self.preempts or self.defragments

    @property
    def save_after(self) -> float:
        """Seconds after which a place is reserved for a unit; 0: never."""
        return self.preemption.save_after if self.drivers.mode is Mode.EXCLUSIVE else 0.0

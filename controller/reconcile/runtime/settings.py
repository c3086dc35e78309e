"""All durations and names of the controller, in one frozen object. Created by the CLI, demo and
tests.

All durations are seconds. Constraints between them are checked here (and in `Timings`), so that a
mistake prevents the start (ConfigError).
"""

from enum import StrEnum

from msgspec import Struct, field

from controller.scheduling.decide import Options
from controller.scheduling.gangs import Source
from controller.scheduling.scoring import Policies
from hami_dra.api import names
from hami_dra.api.legacy_metrics import NameSet
from hami_dra.kube.lease import Timings
from hami_dra.kube.protocol import MOST_WRITE_SECONDS, ConfigError
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

    scheduler_names: frozenset[str] = frozenset({"default-scheduler"})
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
    """Steps of the search for devices on one node (0.1 s in total, interrupted when the slice is
    over). `simulate` allows five times that.
    """


class QueueingSettings(Struct, frozen=True):
    """How long pods wait for each thing that may let them be placed."""

    gate_patience: float = 10.0
    """How long an unschedulable pod keeps the gate; autoscaler and preemption should see it afterwards."""
    gang_hold: float = 120.0
    """How long the members of a gang that wait for a node keep their devices when kube-scheduler
    refused another one and some members run already.
    """
    nomination_patience: float = 60.0
    """How long a pod waits for the node that kube-scheduler is emptying for it."""
    refusal_time: float = 30.0
    """How long a node stays refused for a pod the first time; doubles each time up to `refusal_time_most`."""
    refusal_time_most: float = 600.0
    reconsider: float = 300.0
    """An unschedulable pod is evaluated again after this time even if nothing happened."""
    room_retry_first: float = 0.02
    """Least time from the last refusal of equal pods until they are tried again after a change that
    may help. Doubles with each refusal up to `room_retry_most`.
    """
    room_retry_most: float = 1.0
    turn_cost: float = 0.0005
    """Least CPU seconds that an evaluation of a pod counts for its namespace."""


class BindingSettings(Struct, frozen=True):
    """How decisions are written."""

    installation: str = "hami-dra"
    """Name in our allocations (`hami_dra.api.allocator`): claims of another installation are never touched."""
    commits_at_once: int = 64
    slow_commits_at_once: int = 8
    """Commits of one namespace, for a minute after one of its commits has taken longer than the write timeout."""
    retry_first: float = 1.0
    """Pause of a pod after a failed commit; doubles each time up to `retry_most`."""
    retry_most: float = 60.0
    """Also the pause after an internal error."""

    def __post_init__(self) -> None:
        """Check the settings. Raises ConfigError."""
        if self.commits_at_once < 1:
            raise ConfigError(f"commits at once: at least 1, not {self.commits_at_once}")


class FenceSettings(Struct, frozen=True):
    """How the fence is kept and proved."""

    quiet_time: float = 10.0
    """How long nothing is committed after a fence was created or restored."""
    probe: bool = True
    """Verify with a claim that kube-scheduler respects the fence, before anything is committed."""
    probe_namespace: str = names.PROBE_NAMESPACE
    """Namespace of the probe's pod and claim, and of nothing else."""
    probe_image: str = names.PROBE_IMAGE
    probe_timeout: float = 60.0


class RepairSettings(Struct, frozen=True):
    """When allocations are undone or freed."""

    unschedulable_timeout: float = 15.0
    """How long kube-scheduler may report a pod as unschedulable after our commit before the commit is undone."""
    silent_factor: float = 4.0
    """Multiple of that time if the pod's condition has not changed since the commit: kube-scheduler
    may not have tried yet.
    """
    settle_time: float = 1.0
    """How long to wait for kube-scheduler's nomination of a node after it undid an allocation."""
    sweep_interval: float = 1.0
    """Time between two checks of all pods that are not on the node of their allocation."""
    orphan_age: float = 60.0
    """How long an allocation may exist without a pod that refers to it."""

    @property
    def silent_timeout(self) -> float:
        return self.unschedulable_timeout * self.silent_factor

    @property
    def orphan_interval(self) -> float:
        return self.orphan_age / 6


class ObservabilitySettings(Struct, frozen=True):
    """What is reported, and how often."""

    identity: str = names.CONTROLLER
    """Reporter of events."""
    event_interval: float = 30.0
    """Least time between two events about an object that differ only in their figures."""
    quota_interval: float = 5.0
    """Least time between two updates of the usage annotation of quotas."""
    card_metrics: bool = True
    """Whether /metrics has series for each card and each pod; figures by driver are always there."""
    legacy_metrics: frozenset[NameSet] = frozenset()
    """Additional sets of metric names."""


class LeadershipSettings(Struct, frozen=True):
    """How one replica is chosen to act, and when it gives up."""

    leader_election: bool = True
    namespace: str = names.SYSTEM_NAMESPACE
    """Namespace of the lease, and of hami-dra's own pods."""
    lease_name: str = names.CONTROLLER
    lease: Timings = field(default_factory=Timings)
    stall_limit: float = 20.0
    """How long one decision may stall the main loop before this replica releases its lease and exits."""

    @property
    def unhealthy_after(self) -> float:
        """Return how long the main loop may be stalled before /healthz reports it."""
        return 1.5 * self.stall_limit

    @property
    def loop_limit(self) -> float:
        """Return the limit for work other than decisions.

        It is higher, because listing a large cluster is slow on a busy machine.
        """
        return 3 * self.stall_limit

    @property
    def write_timeout(self) -> float:
        return self.lease.write_timeout

    def __post_init__(self) -> None:
        """Check the settings. Raises ConfigError."""
        if self.write_timeout > MOST_WRITE_SECONDS:
            raise ConfigError(f"write timeout {self.write_timeout:g} s: at most {MOST_WRITE_SECONDS:g} s")
        if self.stall_limit <= 0:
            raise ConfigError(f"stall limit {self.stall_limit:g} s: it must be above 0")


class Settings(Struct, frozen=True, kw_only=True):
    """All settings, in groups by who reads them."""

    drivers: DriverSettings
    scheduling: SchedulingSettings = SchedulingSettings()
    queueing: QueueingSettings = QueueingSettings()
    binding: BindingSettings = BindingSettings()
    fence: FenceSettings = FenceSettings()
    repair: RepairSettings = RepairSettings()
    observability: ObservabilitySettings = ObservabilitySettings()
    leadership: LeadershipSettings = LeadershipSettings()

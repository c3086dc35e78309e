"""Every time span and name the controller goes by, in one frozen object. Made by the CLI, by the demo and by tests.

All spans are seconds. What must hold between them is checked here (and in `Timings`), so that a mistake stops the start.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from controller.decide import Options
from controller.scoring.policies import Policies
from hami_dra.api import names
from hami_dra.cluster.lease import Timings
from hami_dra.cluster.protocol import MOST_WRITE_SECONDS, ConfigError


class Mode(StrEnum):
    EXCLUSIVE = "exclusive"
    """The controller is the one writer of allocations; the fence keeps kube-scheduler's allocator off."""
    NATIVE = "native"
    """kube-scheduler allocates; the controller observes, accounts and clears away what exclusive mode left behind."""


class NameSet(StrEnum):
    """Metric names of other programs, exported next to our own for dashboards that know these."""

    HAMI = "hami"
    """`hami_gpu_*`, `hami_vgpu_*`: HAMi's scheduler since it has names with units."""
    HAMI_2_7 = "hami-2.7"
    """`GPUDeviceMemoryLimit`, ...: HAMi up to 2.7.0."""


@dataclass(frozen=True, slots=True)
class SelectorLimits:
    """CPU seconds that evaluating selectors may take. An honest one takes 1 to 4 microseconds a device."""

    slice: float = 0.02
    """In one go; then others get their turn."""
    expression: float = 1.0
    """One selector of a claim, on all devices."""
    claim: float = 2.0
    """All selectors of the claims of a pod, until it is decided on."""
    device_class: float = 10.0
    """One selector of a DeviceClass, on all devices."""
    namespace: float = 6.0
    """All selectors of the claims of a namespace, per minute; what is beyond waits."""
    retry_first: float = 60.0
    """Seconds after which a claim that took too long is looked at again; doubles each time up to `retry_most`."""
    retry_most: float = 3600.0


@dataclass(frozen=True, slots=True)
class Settings:
    installation: str = "hami-dra"
    """Value of the annotation hami.io/allocated-by: claims of another installation are never touched."""
    namespace: str = names.SYSTEM_NAMESPACE
    """Where the lease lives."""
    probe_namespace: str = names.PROBE_NAMESPACE
    """Where pod and claim of the probe live, and nothing else."""
    identity: str = names.CONTROLLER
    """Who reports events; and who holds the lease, where it is not left to be made up (`LeaderElector`)."""
    mode: Mode = Mode.EXCLUSIVE
    gate: bool = True
    """False: pods that carry our gate are let go at once; allocation works without it."""
    managed: frozenset[str] = frozenset()
    """Drivers whose devices only this controller allocates."""
    own_drivers: frozenset[str] = frozenset()
    """Those of them that publish the fence taint themselves where the cluster has no DeviceTaintRule."""
    policies: Policies = Policies()
    options: Options = field(default_factory=Options)
    """Passed on to `decide`; `managed` above replaces `options.managed`."""
    scheduler_names: frozenset[str] = frozenset({"default-scheduler"})
    """Pods of other schedulers are none of our business."""

    unschedulable_timeout: float = 15.0
    """How long kube-scheduler may call a pod unschedulable after our commit before the commit is undone."""
    silent_factor: float = 4.0
    """So many times that long where its condition never changed since the commit: it may not have looked yet."""
    settle_time: float = 1.0
    """After kube-scheduler undid an allocation: how long to wait for its nomination of a node."""
    nomination_patience: float = 60.0
    """How long a pod waits for the node that kube-scheduler is emptying for it."""
    refusal_time: float = 30.0
    """How long a node stays refused for a pod the first time; doubles each time up to `refusal_time_most`."""
    refusal_time_most: float = 600.0
    gate_patience: float = 10.0
    """How long a pod without room keeps the gate; then autoscaler and preemption should see it."""
    orphan_age: float = 60.0
    sweep_interval: float = 1.0
    retry_first: float = 1.0
    retry_most: float = 60.0
    reconsider: float = 300.0
    """A pod without room is looked at again after this even if nothing happened."""
    room_retry_first: float = 0.02
    """When something may have made room: how long after their last refusal pods that ask for the same are tried again at the
    earliest. Doubles with each refusal up to `room_retry_most`."""
    room_retry_most: float = 1.0
    turn_cost: float = 0.0005
    """CPU seconds that a look at a pod counts at least for its namespace."""
    selectors: SelectorLimits = SelectorLimits()
    search_steps: int = 20_000
    """Of the search for devices on one node (0.1 s in all, interrupted when the slice is over). `simulate` allows five times that."""

    event_interval: float = 30.0
    """How long newer figures of the same warning about an object wait to be told."""
    quota_interval: float = 5.0
    """How often at most the usage of quotas is written on them."""

    quiet_time: float = 10.0
    """After a fence is made or mended: how long nothing is committed."""
    probe: bool = True
    """Show with a claim that kube-scheduler respects the fence, before anything is committed."""
    probe_image: str = names.PROBE_IMAGE
    probe_timeout: float = 60.0

    commits_at_once: int = 64
    slow_commits_at_once: int = 8
    """Of one namespace, for a minute after one of its commits has taken longer than `write_timeout`."""

    card_metrics: bool = True
    """Whether /metrics has lines for each card and each pod; figures by driver are always there."""
    legacy_metrics: frozenset[NameSet] = frozenset()
    """Whose names /metrics has besides."""

    stall_limit: float = 20.0
    """How long one decision may hold up the main loop before this replica gives its lease back and ends."""

    leader_election: bool = True
    lease_name: str = names.CONTROLLER
    lease: Timings = field(default_factory=Timings)

    @property
    def silent_timeout(self) -> float:
        return self.unschedulable_timeout * self.silent_factor

    @property
    def unhealthy_after(self) -> float:
        """How long the main loop may be held up before /healthz says so."""
        return 1.5 * self.stall_limit

    @property
    def loop_limit(self) -> float:
        """As `stall_limit`, for all that is no decision: listing a large cluster is slow on a busy machine, and nobody's fault."""
        return 3 * self.stall_limit

    @property
    def orphan_interval(self) -> float:
        return self.orphan_age / 6

    @property
    def write_timeout(self) -> float:
        return self.lease.write_timeout

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if self.write_timeout > MOST_WRITE_SECONDS:
            raise ConfigError(f"write timeout {self.write_timeout:g} s: at most {MOST_WRITE_SECONDS:g} s")
        if self.stall_limit <= 0:
            raise ConfigError(f"stall limit {self.stall_limit:g} s: it must be above 0")
        if self.commits_at_once < 1:
            raise ConfigError(f"commits at once: at least 1, not {self.commits_at_once}")
        if self.mode is Mode.EXCLUSIVE and not self.managed:
            raise ConfigError("exclusive mode needs at least one managed driver (--manage)")
